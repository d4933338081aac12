"""File descriptors that run out in a running store: no caller loses its access, and no token outlives its revocation.

The limit of the running process is lowered until few descriptors are left, and strangers take these. Callers that are
connected go on. A token that is taken out of the file ends, though the file can hardly be opened. When the strangers
leave, new callers get in, and the metrics answer again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path
from typing import Any

import grpc
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import requests
from tests.support.credentials import access_file, bearing
from tests.support.process import ProcessStore
from tests.support.waits import eventually

from .common import WIDTHS, Options, Report, Scenario, differences, per_transport, record_of
from .outside import QUIET, metrics
from .target import SECONDS, STORE

LEFT = 12
"""Descriptors that are left when the strangers come."""
STRANGERS = 64
GOOD, FORMER = "honest-token-0123456789", "former-token-0123456789"


class Caller:
    """A connection of its own with a bearer token."""

    def __init__(self, address: str, token: str) -> None:
        self._bare = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._channel: Any = bearing(self._bare, token)

    def ask(self, name: str, request: Any) -> bytes:
        """The answer. Raises grpc.RpcError."""
        method = self._channel.unary_unary(f"/{STORE}/{name}")
        answer: bytes = method(request.SerializeToString(), timeout=SECONDS, wait_for_ready=True)
        return answer

    def hand_over(self, room: int, report: Report) -> None:
        """One hand-off, compared."""
        try:
            self.ask("Put", requests.put_once(room, record_of(("", room, 0), 0)))
            answer = pb.GetResponse.FromString(self.ask("Get", requests.get(room, reader="honest")))
        except grpc.RpcError as error:
            report.fault(f"room {room}: an honest caller got {error.code().name}: {error.details()}")
            return
        wrong = differences(answer.record, ("", room, 0), 0)
        report.expect(not wrong, f"room {room}: read another record, different in {wrong[:5]}")
        report.count("hand-offs without a descriptor to spare")

    def admitted(self) -> bool:
        """Whether the token is taken."""
        try:
            self.ask("Capabilities", pb.CapabilitiesRequest())
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False
        return True

    def close(self) -> None:
        """Ends the connection."""
        self._bare.close()


def opened(pid: int) -> int:
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def exhausted(store: ProcessStore, report: Report) -> Any:
    """Strangers hold every descriptor that the store may still open."""
    pid, host, port = store.process.pid, *store.target.rsplit(":", 1)
    former = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + LEFT
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, former[1]))
    strangers = [socket.create_connection((host, int(port)), SECONDS) for _ in range(STRANGERS)]
    try:
        eventually(lambda: opened(pid) >= limit - 2, "the strangers have every descriptor", SECONDS)
        report.count("times that no descriptor was left")
        yield
    finally:
        for stranger in strangers:
            stranger.close()
    eventually(lambda: opened(pid) < limit - 2, "the strangers' connections are let go", SECONDS)


def play(options: Options, report: Report, transport: str) -> None:
    """One transport."""
    lines = [f"honest admin * {GOOD}", f"former admin * {FORMER}"]
    tokens: Path = access_file(options.directory / "tokens", *lines)
    settings: dict[str, Any] = {"slots": 64, "transport": transport, **WIDTHS, **QUIET}
    with ProcessStore("127.0.0.1:0", token_file=tokens, **settings).wait() as store:
        honest, former = Caller(store.target, GOOD), Caller(store.target, FORMER)
        honest.hand_over(1, report)
        for turn in range(1, 1 + options.times(2, 20)):
            access_file(tokens, *lines)
            eventually(former.admitted, "the token is taken again", SECONDS)
            with exhausted(store, report):
                for number in range(16):
                    honest.hand_over(100 * turn + number, report)
                access_file(tokens, lines[0])
                try:
                    eventually(lambda: not former.admitted(), "the revoked token ends", SECONDS)
                    report.count("tokens revoked without a descriptor to spare")
                except AssertionError as still:
                    report.fault(str(still))
            late = Caller(store.target, GOOD)
            late.hand_over(100 * turn + 50, report)
            late.close()
            report.expect(bool(metrics(store)), "the metrics do not answer afterwards")
        honest.close()
        former.close()
        report.expect(store.process.poll() is None, "the store has ended")
        failures = [event for event in store.events if event.get("event") == "failed"]
        report.expect(not failures, f"the store failed: {failures[:2]}")


SCENARIO = Scenario(
    "descriptors", "file descriptors that run out: callers stay, and revoked tokens end", per_transport(play)
)
