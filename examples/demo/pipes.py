"""The demo's own thread of talk: one JSON object a line, between the orchestrator and its children."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any


def say(event: str, **values: Any) -> None:
    """From a child to the orchestrator."""
    print(json.dumps({"event": event, **values}), flush=True)


def listen() -> dict[str, Any]:
    """The orchestrator's next message to this child. Raises EOFError when it has gone."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the orchestrator has gone")
    message: dict[str, Any] = json.loads(line)
    return message


class Child:
    """A process of the demo. Its stderr goes to a log file."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, encoding="utf-8"
            )
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        self._stdin = self.process.stdin
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put(None)

    def tell(self, **message: Any) -> None:
        """Send the child a message. Raises OSError when it has gone."""
        self._stdin.write(json.dumps(message) + "\n")
        self._stdin.flush()

    def expect(self, event: str, seconds: float) -> dict[str, Any]:
        """The child's next message, which has to be this one. Raises RuntimeError otherwise."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise self.failure(f"said nothing for {seconds:.0f} s, expected {event!r}") from None
        if line is None:
            raise self.failure(f"ended, expected {event!r}")
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise self.failure(f"said {line.strip()}, expected {event!r}")
        return message

    def failure(self, what: str) -> RuntimeError:
        """An error that names this child."""
        return RuntimeError(f"the {self.name} process {what}")

    def end(self, seconds: float) -> None:
        """Wait until it has ended by itself. Raises RuntimeError when it does not, or not in order."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"has not ended in {seconds:.0f} s") from None
        if status != 0:
            raise self.failure(f"ended with status {status}")

    def stop(self) -> None:
        """End it, whatever it does. Bounded."""
        self._stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
