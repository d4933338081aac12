"""A store in a process of its own, started as an operator would: `pd-handoff serve`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .caller import CALLERS, Caller, UnaryCaller
from .steps import Steps
from .waits import PATIENCE

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
START_SECONDS = 100.0
"""Given to a start: importing torch on a busy machine is most of it."""

_EAGER = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 50)]


def command(name: str) -> str:
    """A command of the environment that the tests run in."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def flags(**settings: Any) -> list[str]:
    """Settings as flags."""
    return [part for name, value in settings.items() for part in ("--" + name.replace("_", "-"), str(value))]


def run_serve(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `pd-handoff serve` where it is expected to end by itself."""
    return subprocess.run(
        [command("pd-handoff"), "serve", *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


class ProcessStore:
    """A running `pd-handoff serve`; end it by `stop`, `kill`, or leaving the context. It listens `beside`, too.

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
        **settings: Any,
    ) -> None:
        arguments = flags(log_format="json", **settings) + [f"--listen={address}" for address in beside]
        self.process = subprocess.Popen(
            [command("pd-handoff"), "serve", "--listen", listen, *arguments],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.target = listen
        self.events: list[dict[str, Any]] = []
        self.other_output: list[str] = []
        self._serving = threading.Event()
        self._channels: list[grpc.Channel] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
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
        if self.process.stderr is not None:
            self.process.stderr.close()

    def __enter__(self) -> ProcessStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
