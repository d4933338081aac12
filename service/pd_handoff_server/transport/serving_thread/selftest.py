"""Whether the fast transport works on this gRPC: names looked up, and real calls made, once a process."""

from __future__ import annotations

import functools
import os
import queue
import secrets
import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.handlers.send_budget import Unread
from pd_handoff_server.handlers.status import DETAILS_KEY
from pd_handoff_server.parser.fallback import Absent
from pd_handoff_server.store.interface import Done
from pd_handoff_server.transport.gate import STORE, UNARY

from . import grpc_internals
from .context import Front
from .server import routes

_TICK: Final = 0.05  # seconds
_TICKS: Final = 10
"""So many in a row without an answer or an error end one of two attempts. Where this process has to wait for a core,
ticks wait, too."""
_TIMEOUT: Final = 30.0  # seconds for each of the probe's calls, which end earlier by the ticks
_CALLS: Final = 64
_GROUPS: Final = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probe found.

    Attributes:
        problem: why the fast transport cannot be used; None when it can.
        polling: who reads the sockets: "serving thread", which saves two thread changes a call; "event engine", as gRPC
            has it by default since 1.80; or "unknown" where the system does not tell.
    """

    problem: str | None
    polling: str = "unknown"


class _ProbeError(Exception):
    pass


class _NoAnswerError(_ProbeError):
    """Nothing failed, and nothing came."""


@functools.cache
def probe() -> Verdict:
    """Try it out. Takes some hundredths of a second where it works, and ends with the first error where it does not.

    It waits for calls: an event loop has to run it in a thread.
    """
    try:
        try:
            return _attempt()
        except _NoAnswerError:  # a busy machine may hold one up
            return _attempt()
    except Exception as error:
        return Verdict(f"grpcio {grpc.__version__}: {type(error).__name__}: {error}")


def _attempt() -> Verdict:
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    lacking = grpc_internals.missing(server)
    if lacking:
        return Verdict(f"grpcio {grpc.__version__} lacks {', '.join(lacking)}")
    return _try(server)


class _Trial:
    """The probe's calls, in a thread of their own, until they are over or anything fails on either side.

    Attributes:
        polling: what the calls found.
        errors: in order of time. The first is the cause of those that follow.
    """

    def __init__(self) -> None:
        self.polling = "unknown"
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._answers = 0

    def fail(self, error: BaseException) -> None:
        """Something went wrong; nothing more is waited for."""
        self.errors.append(error)
        self._over.set()

    def run(self, address: str) -> None:
        """Make the calls. Raises the first error."""
        threading.Thread(target=self._call, args=(address,), name="pd-handoff-probe", daemon=True).start()
        seen, ticks = 0, 0
        while not self._over.wait(_TICK):
            ticks = ticks + 1 if seen == self._answers else 0
            seen = self._answers
            if ticks == _TICKS:
                self.fail(_NoAnswerError(f"no answer within {_TICKS * _TICK:g} s"))
        if self.errors:
            raise self.errors[0]

    def _call(self, address: str) -> None:
        try:
            with grpc.insecure_channel(address) as channel:
                self.polling = _calls(channel, self._answered)
        except Exception as error:
            self.fail(error)
        finally:
            self._over.set()

    def _answered(self) -> None:
        self._answers += 1


def _try(server: grpc.Server) -> Verdict:
    trial = _Trial()
    gate: Any = SimpleNamespace(
        guard=None, admit=lambda *_: None, calls=_Handlers(), ready_calls=_Handlers, unread=Unread()
    )
    front = Front(gate, lambda *_: None)
    address = f"unix-abstract:pd-handoff-probe-{secrets.token_hex(16)}"  # lies in no directory, goes by no proxy
    if not server.add_insecure_port(address):
        raise _ProbeError(f"cannot listen on {address}")
    grpc_internals.Loop(server, routes(front), trial.fail).start()
    try:
        trial.run(address)
    finally:
        stopped = server.stop(0)
    ended = stopped.wait(_TICKS * _TICK)
    if trial.errors:
        raise trial.errors[0]
    if not ended:
        raise _ProbeError("the server does not stop")
    return Verdict(None, trial.polling)


class _Handlers:
    """Stands for `Calls`: one method that answers, one that refuses, one that parks."""

    def __init__(self) -> None:
        self.sessions = 0
        self.reader = Absent("not what is tried here")
        self.handlers = {**dict.fromkeys(UNARY, _echo), "Release": _refuse, "Get": _park}


def _echo(data: bytes, call: Any, done: Done) -> bytes:
    del call, done
    return data


def _refuse(data: bytes, call: Any, done: Done) -> bytes:
    del data, call, done
    raise refusal.not_found()


def _park(data: bytes, call: Any, done: Done) -> Any:
    if data == b"parked" and not call.remaining:
        raise _ProbeError("a call does not know its deadline")
    threading.Thread(target=done, args=(data,)).start()
    return SimpleNamespace(cancel=lambda: True)


def _calls(channel: grpc.Channel, answered: Callable[[], None]) -> str:
    def method(name: str) -> Any:
        return channel.unary_unary(f"/{STORE}/{name}")

    echo = method("Capabilities")
    _expect(echo(b"", timeout=_TIMEOUT) == b"", "an answer differs")
    before = _engine_switches()
    for number in range(_CALLS):
        _expect(echo(b"%d" % number, timeout=_TIMEOUT) == b"%d" % number, "an answer differs")
        answered()
    after = _engine_switches()
    _expect(method("Get")(b"parked", timeout=_TIMEOUT) == b"parked", "the answer of a parked call differs")
    try:
        method("Release")(b"", timeout=_TIMEOUT)
    except grpc.RpcError as error:
        _expect(error.code() is grpc.StatusCode.NOT_FOUND, f"a refusal came as {error.code()}: {error.details()}")
        trailing: Any = error.trailing_metadata()
        _expect(DETAILS_KEY in dict(trailing), "a refusal came without its details")
    else:
        raise _ProbeError("a refusal did not come")
    _session(channel, echo, answered)
    if before is None or after is None:
        return "unknown"
    return "event engine" if after - before > 3 * _CALLS else "serving thread"


def _session(channel: grpc.Channel, echo: Any, answered: Callable[[], None]) -> None:
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    method: Any = channel.stream_stream(f"/{STORE}/Session")
    answers = method(iter(requests.get, None), timeout=_TIMEOUT)
    for asked in (
        pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()),
        pb.SessionRequest(call_id=2, release=pb.ReleaseRequest()),
        pb.SessionRequest(call_id=3, get=pb.GetRequest()),
    ):
        requests.put(asked.SerializeToString())
        answer = pb.SessionResponse.FromString(next(answers))
        wanted = "error" if asked.call_id == 2 else asked.WhichOneof("call")
        right = (answer.call_id, answer.WhichOneof("result")) == (asked.call_id, wanted)
        _expect(right, "an answer of a stream differs")
        answered()
    # Beside another that is open, calls may be carried out in groups.
    for number in range(_GROUPS):
        together = [echo.future(b"%d" % each, timeout=_TIMEOUT) for each in range(number)]
        _expect([each.result() for each in together] == [b"%d" % each for each in range(number)], "answers differ")
        answered()
    requests.put(None)
    _expect(next(answers, None) is None, "a stream does not end")


def _expect(right: bool, what: str) -> None:
    if not right:
        raise _ProbeError(what)


def _engine_switches() -> int | None:
    """How often gRPC's own threads have gone to sleep; None where the system does not tell."""
    total = 0
    try:
        for thread in os.scandir("/proc/self/task"):
            task = Path(thread.path)
            if (task / "comm").read_text().strip() == "event_engine":
                status = (task / "status").read_text()
                total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return total
