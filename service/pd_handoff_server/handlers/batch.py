"""The items of a batch, each carried out as a call of its own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked, Ready

from . import responses
from .call import Answer, Call
from .send_budget import Unread
from .status import INTERNAL, to_status


class Owed:
    """The answer of an item that can be made, but not before those of all other items can.

    Attributes:
        make: makes it, as a call of its own. Raises Refusal.
    """

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Done], Any]) -> None:
        self.make = make


_LARGEST_MESSAGE = 1 << 31
_ITEM_OVERHEAD = 256  # of an answer, beside its record: framing, moments, epoch

Item = Callable[[Any, Call, Done, object], "Answer | Owed"]
"""Carries out one request, given where it stands in the batch as something to format."""


@functools.lru_cache(maxsize=4096)
def _head(tag: int, size: int) -> bytes:
    """What stands before an item's answer of so many bytes, or before its error."""
    inner = bytes((tag,)) + responses.varint(size)
    return b"\x0a" + responses.varint(len(inner) + size) + inner


class Slot:
    """The completion of one item; its text is where the item stands.

    Attributes:
        owed: what takes the place of the store's `Ready`.
    """

    __slots__ = ("_gathering", "_index", "owed")

    def __init__(self, gathering: Gathering, index: int) -> None:
        self._gathering = gathering
        self._index = index
        self.owed: Owed | None = None

    def __call__(self, result: Any) -> None:
        if isinstance(result, Ready) and self.owed is not None:
            result = self.owed
        self._gathering.complete(self._index, result)

    def has_room(self, size: int) -> Refusal | None:
        """A `Room` of the store: what is left of the batch's answer."""
        return self._gathering.has_room(size)

    def __str__(self) -> str:
        return f"requests[{self._index}]."


class Gathering:
    """The answers of a batch on their way; a Parked of its own while some are missing.

    The results of both batch responses are field 1, oneof 1 (response) or 2 (error). Answers that are owed are made all
    together, as one thing, once no item waits for them any more.
    """

    def __init__(
        self,
        items: int,
        done: Done,
        refused: Callable[[Refusal, BaseException | None], None],
        note: Callable[[str], None] | None = None,
        unread: Unread | None = None,
        most: int = _LARGEST_MESSAGE,
    ) -> None:
        """`refused` is told why an item was refused, `note` the reason, or OK, of each that has its answer; `unread` of
        what is kept while others wait. The answer may have `most` bytes."""
        self.results: list[tuple[bytes, bytes] | Owed | None] = [None] * items  # framing, and what it frames
        self.parked: list[Parked] = []
        self._left = most - items * _ITEM_OVERHEAD
        self._most = most
        self._done = done
        self._refused = refused
        self._note = note
        self._unread = Unread() if unread is None else unread
        self._call: Call | None = None  # once some of its items wait
        self._finished = False
        self._making = False
        self._together: AbstractContextManager[None] = nullcontext()
        self._lock = threading.Lock()

    def has_room(self, size: int) -> Refusal | None:
        """Why a record of so many bytes does not fit the answer any more; None: it does, and its room is taken.

        Asked while the store is locked, before the record is read and its reader counted.
        """
        if size > self._left:
            return refusal.batch_answer_full(self._most)
        self._left -= size
        return None

    def complete(self, index: int, result: bytes | Refusal | Owed) -> None:
        """An item that had to wait has its answer."""
        kept = self._keep(index, result)
        with self._lock:
            call = None if self._finished else self._call
            if call is not None:
                self._unread.hold_more(call, kept)
        if call is not None:
            self._try_finish()

    def _keep(self, index: int, result: bytes | Refusal | Owed) -> int:
        """Note an item's answer; returns its size in bytes."""
        if isinstance(result, Owed):
            self.results[index] = result
            return 0
        if isinstance(result, Refusal):
            self._refused(result, None)
            if result.reason == "INVALID_RECORD":  # the one judged where nobody knows of the batch
                found = [(f"requests[{index}].{field}", what) for field, what in result.violations]
                result = refusal.invalid(result.reason, found)
            tag, data, outcome = 0x12, to_status(result).SerializeToString(), result.reason
        else:
            tag, data, outcome = 0x0A, result, "OK"
        if self._note is not None:
            self._note(outcome)
        size = len(data)
        self.results[index] = _head(tag, size), data
        return size

    def run(self, items: Iterable[Any], one: Item, call: Call, together: AbstractContextManager[None]) -> Answer:
        """Try each item, all inside `together`; the answer if all have theirs, else what waits for the rest."""
        self._together = together
        tried: list[Answer | Refusal | Owed] = []
        try:
            with together:
                for index, request in enumerate(items):
                    slot = Slot(self, index)
                    try:
                        tried.append(one(request, call, slot, slot))
                    except Refusal as refused:
                        refused.key, refused.owner = call.key, call.owner
                        # Without its traceback, which holds this frame: a cycle with all of the request in it.
                        tried.append(refused.with_traceback(None))
                if Owed in map(type, tried) and all(isinstance(answer, bytes | Refusal | Owed) for answer in tried):
                    tried = [
                        self._make(index, answer) if isinstance(answer, Owed) else answer
                        for index, answer in enumerate(tried)
                    ]
        except Exception:
            self.parked = [answer for answer in tried if not isinstance(answer, bytes | Refusal | Owed)]
            self.cancel()  # the call fails as a whole: leave no item waiting for nobody
            raise
        for index, answer in enumerate(tried):  # not before: what is told of refusals takes its time
            if isinstance(answer, bytes | Refusal | Owed):
                self._keep(index, answer)
            else:
                self.parked.append(answer)
        return self._start(call)

    def _start(self, call: Call) -> Answer:
        """All items have been tried: the answer if it is whole, else wait for the rest."""
        if not self.parked or None not in self.results:
            self._finished = True
            return self._whole()
        with self._lock:
            self._call = call
            self._unread.hold(call, sum(len(result[1]) for result in self.results if isinstance(result, tuple)))
        if None not in self.results:  # the last one came meanwhile, from another thread
            self._try_finish()
        return self

    def _whole(self) -> bytes:
        return b"".join(chain.from_iterable(result for result in self.results if isinstance(result, tuple)))

    def _try_finish(self) -> None:
        with self._lock:
            if self._finished or self._making or None in self.results:
                return
            self._making = Owed in map(type, self.results)
            self._finished = not self._making
        if self._making:
            self._make_owed()
            return
        self.parked.clear()  # they lead back here, and the search for cycles is rare
        self._done(self._whole())

    def _make_owed(self) -> None:
        """No item waits for a record any more: make all that is owed, as one thing, unless the caller may not have it
        now."""
        refused = None if self._call is None else self._unread.over(self._call)
        made: dict[int, Any] = {}
        if refused is None:
            try:
                with self._together:
                    for index, owed in enumerate(self.results):
                        if isinstance(owed, Owed):
                            made[index] = self._make(index, owed)
            except Exception as error:  # the caller must get an answer whatever happens
                self._refused(INTERNAL, error)
                refused = INTERNAL
        if refused is not None:
            self._end_with(refused)
            return
        kept = 0
        for index, answer in made.items():
            if isinstance(answer, bytes | Refusal):
                kept += self._keep(index, answer)
            else:
                self.parked.append(answer)
        with self._lock:
            self._making = False
            if self._call is not None and not self._finished:
                self._unread.hold_more(self._call, kept)
        self._try_finish()

    def _make(self, index: int, owed: Owed) -> Answer | Refusal:
        self.results[index] = None
        try:
            answer: Answer = owed.make(Slot(self, index))
        except Refusal as refused:
            return refused.with_traceback(None)
        return answer

    def _end_with(self, refused: Refusal) -> None:
        with self._lock:
            was_finished, self._finished = self._finished, True
        self.parked.clear()
        if not was_finished:
            self._done(refused)

    def cancel(self) -> bool:
        """Drop the items that still wait."""
        with self._lock:
            was_finished, self._finished = self._finished, True
        for parked in self.parked:
            parked.cancel()
        return not was_finished
