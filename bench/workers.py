"""Client processes, from the parent's side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import peers


class WorkerError(Exception):
    """A client process could not do its job; the message says why."""


class Worker:
    """A running `bench.worker`."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        self._answer()

    def begin(self, do: str, **job: Any) -> None:
        """Hand over a job."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps({"do": do, **job}) + "\n")
        self._popen.stdin.flush()

    def result(self) -> Any:
        """What became of it. Raises WorkerError."""
        answer = self._answer()
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def ask(self, do: str, **job: Any) -> Any:
        """Both. Raises WorkerError."""
        self.begin(do, **job)
        return self.result()

    def _answer(self) -> Any:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.startswith("{"):  # libraries of peers chat
                return json.loads(line)
        raise WorkerError(f"ended with status {self._popen.wait(20)}")


@contextmanager
def worker(kind: str, address: str, *rest: str, experiments: str | None = None) -> Iterator[Worker]:
    """A client process of this kind; `experiments` sets GRPC_EXPERIMENTS for it."""
    python = peers.python() if kind in {"redis", "mooncake"} else sys.executable
    environment = peers.environment()
    environment.pop("GRPC_EXPERIMENTS", None)
    if experiments is not None:
        environment["GRPC_EXPERIMENTS"] = experiments
    popen = subprocess.Popen(
        [python, "-m", "bench.worker", kind, address, *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield Worker(popen)
    finally:
        assert popen.stdin is not None
        popen.stdin.close()
        try:
            popen.wait(20)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
