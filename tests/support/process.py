"""A store in a process of its own, started as an operator would: `pd-handoff serve`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .caller import CALLERS, Caller, UnaryCaller
from .preloaded import START_SECONDS, begin, command, run
from .steps import Steps
from .waits import PATIENCE

__all__ = ["NOT_SERVING", "SERVING", "START_SECONDS", "ProcessStore", "command", "flags", "run_command", "run_serve"]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_COMMAND = "pd_handoff.cli:main"
_EAGER = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 50)]


def flags(**settings: Any) -> list[str]:
    """Settings as flags; one of several values is repeated."""
    pairs = [
        (name, each) for name, value in settings.items() for each in (value if isinstance(value, tuple) else [value])
    ]
    return [part for name, value in pairs for part in ("--" + name.replace("_", "-"), str(value))]


def run_command(
    *arguments: str, environment: dict[str, str] | None = None, stdin: str = "", fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `pd-handoff` to its end, in a `fresh` interpreter or a copy of one."""
    return run(_COMMAND, arguments, environment or {}, stdin=stdin, fresh=fresh)


def run_serve(
    *arguments: str, environment: dict[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `pd-handoff serve` where it is expected to end by itself."""
    return run_command("serve", *arguments, environment=environment, fresh=fresh)


class ProcessStore:
    """A running `pd-handoff serve`; end it by `stop`, `kill`, or leaving the context. It listens `beside`, too.

    It runs in a copy of a process that has imported what a store needs (`preloaded`), or in a `fresh` interpreter.

    Attributes:
        events: its log events so far.
        target: where it listens.
    """

    def __init__(
        self,
        listen: str,
        *,
        environment: dict[str, str] | None = None,
        beside: Sequence[str] = (),
        fresh: bool = False,
        **settings: Any,
    ) -> None:
        arguments = flags(log_format="json", **settings) + [f"--listen={address}" for address in beside]
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        serve = ["serve", "--listen", listen, *arguments]
        try:
            streams = nothing, nothing, writing
            self.process = begin(_COMMAND, serve, environment or {}, fresh=fresh, streams=streams)
        finally:
            os.close(nothing)
            os.close(writing)
        self.target = listen
        self.events: list[dict[str, Any]] = []
        self.other_output: list[str] = []
        self._serving = threading.Event()
        self._channels: list[grpc.Channel] = []
        self._log = os.fdopen(reading)
        self._reader = threading.Thread(target=self._read, args=(self._log,), daemon=True)
        self._reader.start()

    def _read(self, log: IO[str]) -> None:
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                self.other_output.append(line)
                continue
            self.events.append(event)
            if event.get("event") == "serving":
                self.target = event["addresses"][0]
                self._serving.set()
        self._serving.set()  # its end: whoever waits has waited enough

    def wait(self) -> ProcessStore:
        """Return once health says SERVING. Raises AssertionError with its log when it ends or takes too long."""
        if self.target.endswith(":0"):
            self._serving.wait(START_SECONDS)  # the port is told there
        for status in self.watch():
            if status == SERVING:
                return self
        raise AssertionError(f"not SERVING; exit status {self.process.poll()}, log: {self.events} {self.other_output}")

    def watch(self, service: str = "", seconds: float = START_SECONDS) -> Iterator[int]:
        """The statuses of its health service, from before it listens until it ends."""
        with grpc.insecure_channel(self.target, _EAGER) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            watching = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True, timeout=seconds)
            ended = threading.Thread(target=self._cancel_at_end, args=(watching,), daemon=True)
            ended.start()
            with contextlib.suppress(grpc.RpcError):
                for answer in watching:
                    yield answer.status
            watching.cancel()

    def _cancel_at_end(self, watching: grpc.Call) -> None:
        self._reader.join(START_SECONDS)  # its log ends when it does
        watching.cancel()

    def caller(self, kind: str = UnaryCaller.name) -> Caller:
        """A caller of this kind on a connection of its own, closed with the store."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(self.target, options)
        self._channels.append(channel)
        return CALLERS[kind](channel)

    def steps(self, kind: str = UnaryCaller.name) -> Steps:
        """A caller's short forms."""
        return Steps(self.caller(kind))

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal, SIGTERM by default, and do not wait."""
        self.process.send_signal(number)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait for its end."""
        code = self.process.wait(seconds)
        self._reader.join(PATIENCE)
        return code

    def stop(self) -> int:
        """Drain it and wait for its end; returns its exit code."""
        self.signal()
        return self.exit_code()

    def close(self) -> None:
        """End it whatever it does, and drop all callers."""
        for channel in self._channels:
            channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.exit_code()
        self._log.close()

    def __enter__(self) -> ProcessStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
