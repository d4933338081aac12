"""JSON lines between the example's parent and its engine processes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 60.0
START_SECONDS = 240.0  # of a busy machine; it takes seconds


def serve(handlers: dict[str, Callable[..., Any]]) -> None:
    """Answers commands from stdin until it ends. What a handler raises is the answer, as text: a scheduler that raises
    would be gone, and the parent is to see that."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print goes to the log
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": handlers[command["do"]](**command["with"])}
        except Exception as error:  # whatever the engine raises
            answer = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class Raised(Exception):  # noqa: N818  # what happened to the other process
    """The engine process raised; its own words."""


class Engine:
    """One engine process. Starting it takes some seconds of imports: start them all, then wait."""

    def __init__(self, module: str, arguments: list[str], log: Path, sglang: Path | None) -> None:
        environment = dict(os.environ)
        root = Path(__file__).parents[2]
        environment["PYTHONPATH"] = os.pathsep.join([*([str(sglang)] if sglang else []), str(root)])
        environment["TOKENIZERS_PARALLELISM"] = "false"
        self.log = log
        self._answers: queue.Queue[str] = queue.Queue()
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment,
                cwd=root,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_ready(self) -> None:
        """Raises RuntimeError, with its log, when it does not come up."""
        self._next(START_SECONDS)

    def do(self, what: str, **arguments: Any) -> Any:
        """One command, and its answer. Raises Raised for what it raised."""
        if self.process.stdin is None:
            raise RuntimeError("the engine process has no stdin")
        self.process.stdin.write(json.dumps({"do": what, "with": arguments}) + "\n")
        self.process.stdin.flush()
        answer = self._next()
        if "raised" in answer:
            raise Raised(answer["raised"])
        return answer["value"]

    def stop(self) -> int:
        """Ends its stdin, and so the process; bounded. Returns its exit status."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._answers.put(line)
        self._answers.put("")

    def _next(self, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            line = ""
        if not line:
            text = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
            raise RuntimeError(f"no answer from {self.process.args!r}\n--- its log:\n{text}")
        answer: dict[str, Any] = json.loads(line)
        return answer
