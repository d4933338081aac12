"""The items of a batch, each carried out as a call of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked

from . import wire
from .call import Answer, Call
from .errors import to_status

Item = Callable[[Any, Call, Done, str], Answer]
"""Carries out one request, given where it stands in the batch."""


class Gathering:
    """The answers of a batch on their way; a Parked of its own while some are missing.

    The results of both batch responses are field 1, oneof 1 (response) or 2 (error).
    """

    def __init__(self, items: int, done: Done, note: Callable[[str], None] | None = None) -> None:
        """`note` is told the reason, or OK, of each item that has its answer."""
        self.results: list[bytes | None] = [None] * items
        self.parked: list[Parked] = []
        self._done = done
        self._note = note
        self._started = False
        self._finished = False
        self._lock = threading.Lock()

    def slot(self, index: int) -> Done:
        """The completion of one item."""

        def complete(result: Any) -> None:
            self._keep(index, result)
            if self._started:
                self._try_finish()

        return complete

    def _keep(self, index: int, result: bytes | Refusal) -> None:
        if isinstance(result, Refusal):
            framed = wire.framed(2, to_status(result).SerializeToString())
        else:
            framed = wire.framed(1, result)
        if self._note is not None:
            self._note(result.reason if isinstance(result, Refusal) else "OK")
        self.results[index] = wire.framed(1, framed)

    def run(self, items: Iterable[Any], one: Item, call: Call) -> Answer:
        """Try each item; the answer if all have theirs, else what waits for the rest."""
        for index, request in enumerate(items):
            try:
                answer = one(request, call, self.slot(index), f"requests[{index}].")
            except Refusal as refused:
                self._keep(index, refused)
                continue
            except Exception:
                self.cancel()  # the call fails as a whole: leave no item waiting for nobody
                raise
            if isinstance(answer, bytes):
                self._keep(index, answer)
            else:
                self.parked.append(answer)
        return self._start()

    def _start(self) -> Answer:
        """All items have been tried: the answer if it is whole, else wait for the rest."""
        if not self.parked or None not in self.results:
            self._finished = True
            return self._whole()
        self._started = True
        if None not in self.results:  # the last one came meanwhile, from another thread
            self._try_finish()
        return self

    def _whole(self) -> bytes:
        return b"".join(result for result in self.results if result is not None)

    def _try_finish(self) -> None:
        with self._lock:
            if self._finished or None in self.results:
                return
            self._finished = True
        self._done(self._whole())

    def cancel(self) -> bool:
        """Drop the items that still wait."""
        with self._lock:
            was_finished, self._finished = self._finished, True
        for parked in self.parked:
            parked.cancel()
        return not was_finished
