"""Processes of a serving fleet, owned by their ids: a store and its workers, killed and started again."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pd_handoff import AdminClient

from tests.support.preloaded import Talker
from tests.support.process import ProcessStore
from tests.support.waits import PATIENCE

REPOSITORY = Path(__file__).parents[2]
Message = tuple["Worker", int, dict[str, Any]]
"""(who, in which life, what it said)."""


class Worker:
    """A prefill or decode process that can be killed and started again under the same name.

    Attributes:
        side: "prefill" or "decode".
        name: instance id or reader id; the same in every life.
        life: counts starts.
    """

    def __init__(self, side: str, name: str, target: str, inbox: SimpleQueue[Message]) -> None:
        self.side = side
        self.name = name
        self.life = 0
        self._target = target
        self._inbox = inbox
        self._process: Talker | None = None
        self.start()

    def start(self) -> None:
        """A new life."""
        self.life += 1
        self._process = Talker("tests.faults.worker:main", self.side, self._target, self.name)
        reader = threading.Thread(target=self._read, args=(self._process, self.life), daemon=True)
        reader.start()

    def _read(self, process: Talker, life: int) -> None:
        for line in process.stdout:
            try:
                self._inbox.put((self, life, json.loads(line)))
            except ValueError:  # it was killed amid a line
                return

    def send(self, **job: object) -> None:
        """Give it a job. A process that has died takes none, and does not say so."""
        assert self._process is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
        except (BrokenPipeError, ValueError):  # it has died just now, or is dead
            return

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Of the present life."""
        assert self._process is not None
        return self._process.pid


class Fleet:
    """One store and some workers on a Unix socket. Lives of the store are on each transport in turn.

    Attributes:
        store: the present life of the store.
        transport: of that life.
        settings: of the store; `arena_file` among them or not.
        inbox: what workers say.
    """

    def __init__(
        self, directory: Path, prefills: int, decodes: int, transports: tuple[str, ...], **settings: Any
    ) -> None:
        self.target = f"unix:{directory / 's'}"
        self.settings = settings
        self._transports = itertools.cycle(transports)
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.admin = AdminClient(self.target)
        self.store = self.start_store()
        self.prefills = [Worker("prefill", f"prefill-{n}", self.target, self.inbox) for n in range(prefills)]
        self.decodes = [Worker("decode", f"decode-{n}", self.target, self.inbox) for n in range(decodes)]

    def start_store(self, *, again: bool = False) -> ProcessStore:
        """A new life of the store, on the next transport or `again` on the same; it is not SERVING yet."""
        if not again:
            self.transport = next(self._transports)
        self.store = ProcessStore(self.target, transport=self.transport, **self.settings)
        return self.store

    def epoch(self) -> str:
        """That of the store, once it serves."""
        self.store.wait()
        return self.admin.capabilities().store_epoch

    def failures(self) -> list[str]:
        """What the present life of the store could not foresee, as its log has it: a sentence each."""
        return [f"the store failed: {event}" for event in self.store.events if event.get("event") == "failed"]

    def next_message(self, seconds: float) -> Message | None:
        """What a worker in its present life says, within so many seconds."""
        while True:
            try:
                worker, life, message = self.inbox.get(timeout=max(seconds, 0.001))
            except Empty:
                return None
            if worker.life == life:
                return worker, life, message

    def close(self) -> None:
        """Kill all."""
        for worker in (*self.prefills, *self.decodes):
            worker.kill()
        self.admin.close()
        self.store.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
