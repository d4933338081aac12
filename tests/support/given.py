"""A store that is given by its address, or by a command that starts one, and judged over the wire alone."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from . import namespaces, requests
from .caller import CALLERS, Caller, UnaryCaller
from .failures import CallFailed
from .local import DEFAULTS
from .process import START_SECONDS, flags
from .steps import Steps
from .waits import PATIENCE

SETTINGS: Final = "{settings}"
ADDRESS: Final = "{address}"
_MOST_RUNNING: Final = 4


class GivenStore:
    """A test's view of a store that runs elsewhere: what the wire offers, and nothing of a store in this process.

    Attributes:
        target: where it listens, for `grpc.insecure_channel`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._channels: list[grpc.Channel] = []
        self._callers: list[Caller] = []

    def channel(self, *options: tuple[str, Any]) -> grpc.Channel:
        """A connection of its own, closed with the test."""
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options]
        channel = grpc.insecure_channel(self.target, own)
        self._channels.append(channel)
        return channel

    def caller(self, kind: str = UnaryCaller.name) -> Caller:
        """A caller of this kind on a connection of its own, closed with the test."""
        caller = CALLERS[kind](self.channel())
        self._callers.append(caller)
        return caller

    def steps(self, kind: str = UnaryCaller.name) -> Steps:
        """A caller's short forms."""
        return Steps(self.caller(kind))

    def until_waiting(self, count: int) -> None:
        """Return once the calls that were sent before can be in the store: each connection has had an answer since.

        The wire does not tell how many calls wait; a test whose outcome hangs on their order needs `internals`.
        """
        del count
        for caller in list(self._callers):
            caller.call("Capabilities", pb.CapabilitiesRequest())

    def sight(self, which: requests.Key) -> admin_pb2.Handoff:
        """What the admin service shows of a key's newest attempt."""
        request = admin_pb2.GetHandoffRequest(key=requests.key(which))
        answer: admin_pb2.GetHandoffResponse = UnaryCaller(self.channel()).call("GetHandoff", request)
        return answer.handoff

    def listing(self, **fields_: Any) -> list[admin_pb2.Handoff]:
        """What the admin service lists of this test's namespace, first page."""
        request = admin_pb2.ListHandoffsRequest(**fields_)
        answer: admin_pb2.ListHandoffsResponse = UnaryCaller(self.channel()).call("ListHandoffs", request)
        return list(answer.handoffs)

    def close(self, scope: namespaces.Scope) -> None:
        """Give up all that still waits, end every hand-off that the test has named, and disconnect."""
        for caller in self._callers:
            caller.close()
        cleaner = UnaryCaller(self.channel())
        why = requests.failure(500, "TEST_ENDED", "")
        for key in scope.keys.values():
            request = pb.AbortRequest(key=key, failure=why)
            with contextlib.suppress(CallFailed):  # keys that are refused have nothing to end
                cleaner.call("Abort", request.SerializeToString())
        for channel in self._channels:
            channel.close()


class _Running:
    """A store that the command has started, in a process group of its own."""

    def __init__(self, command: str, directory: Path, settings: dict[str, Any]) -> None:
        self.target = f"unix:{directory / 's'}"
        words = []
        for word in shlex.split(command):
            words += flags(**settings) if word == SETTINGS else [word.replace(ADDRESS, self.target)]
        self._log = (directory / "log").open("wb")
        self._path = directory / "log"
        self._process = subprocess.Popen(words, stdout=self._log, stderr=self._log, start_new_session=True)

    def wait(self) -> None:
        """Return once its health service says SERVING. Raises AssertionError with its log."""
        request = health_pb2.HealthCheckRequest()
        with grpc.insecure_channel(self.target) as channel:
            watching = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True, timeout=START_SECONDS)
            with contextlib.suppress(grpc.RpcError):
                for answer in watching:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        watching.cancel()
                        return
        raise AssertionError(f"not SERVING; exit {self._process.poll()}: {self._path.read_text()[-2000:]}")

    def close(self) -> None:
        """End it, at last by force."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


class Given:
    """The store under test, as the options of the run give it: `address`, or `command`.

    The command is run as it stands with `{address}` replaced by a Unix socket. With `{settings}` in it, flags as of
    `pd-handoff serve` come in there, and tests that need settings of their own can be judged too.
    """

    def __init__(self, address: str | None, command: str | None, directory: Path) -> None:
        self._address = address
        self._command = command or ""
        self._directory = directory
        self._running: dict[tuple[tuple[str, Any], ...], _Running] = {}
        self._kept: set[tuple[tuple[str, Any], ...]] = set()
        self._count = 0

    def open(self, *, keep: bool = False, **settings: Any) -> GivenStore:
        """The store with these settings; what a test finds of other tests is in other namespaces.

        Of those that the command has started, the last few used stay, and one that is opened to `keep` until the end.
        """
        if self._address:
            return GivenStore(self._address)
        wanted = {**DEFAULTS, **settings} if SETTINGS in shlex.split(self._command) else {}
        which = tuple(sorted(wanted.items()))
        if which not in self._running:
            passing = [each for each in self._running if each not in self._kept]
            if len(passing) >= _MOST_RUNNING:
                self._running.pop(passing[0]).close()
            self._count += 1
            directory = self._directory / str(self._count)
            directory.mkdir()
            self._running[which] = _Running(self._command, directory, wanted)
            self._running[which].wait()
        if keep:
            self._kept.add(which)
        self._running[which] = self._running.pop(which)  # the one used last is the last to go
        return GivenStore(self._running[which].target)

    def close(self) -> None:
        """End all that was started."""
        for each in self._running.values():
            each.close()
        self._running.clear()
