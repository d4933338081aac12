"""Rows and rules joined: what the calls of a store and those who wait in it stand on."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.arena.arena import Arena, DamagedRowError
from pd_handoff_server.arena.draft import Draft, check_widths
from pd_handoff_server.lifecycle import Handoff, Key, Lifecycle, Outcome, Tombstone, reader_mark
from pd_handoff_server.lifecycle.admission import outcome_refusal
from pd_handoff_server.lifecycle.clock import Clock
from pd_handoff_server.lifecycle.model import RESERVED
from pd_handoff_server.refusal import Refusal

from .interface import Census, Done, Facts, Reading
from .waiting import Waiting


def _nothing() -> None:
    """What is done where nothing has to be."""


class _Inside:
    """Whoever holds this is alone in the store; on the way out others get the answers that the change made possible."""

    __slots__ = ("_store",)

    def __init__(self, store: Core) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._store.enter()

    def __exit__(self, *_: object) -> None:
        self._store.leave()


class _Together:
    """Whoever holds this makes several calls as one thing: see `Store.together`."""

    __slots__ = ("_store",)

    def __init__(self, store: Core) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._store.gather()

    def __exit__(self, *_: object) -> None:
        self._store.disperse()


class Core:
    """A store's parts behind one lock, and the steps that several calls have in common.

    One thread at a time is inside; completions run after the lock is released.

    Attributes:
        alarm: called (locked) when something is due earlier than the moment that `tick` last returned.
        commit: called (locked) before anybody learns of a change.
        release_memory: called when no call follows any more.
    """

    def __init__(
        self,
        arena: Arena,
        lifecycle: Lifecycle,
        clock: Clock,
        *,
        epoch: str,
        max_wait: int,
        max_waiters: int,
        max_waiting_bytes: int = 256 << 20,
    ) -> None:
        self._arena = arena
        self._layout = arena.layout
        self._lifecycle = lifecycle
        self._clock = clock
        self._epoch = epoch
        self._max_wait = max_wait
        self._max_waiters = max_waiters
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting = Waiting()
        self._draining = False
        self._answers: list[tuple[Done, Any]] = []  # of changes that are not committed yet
        self._told: deque[tuple[Done, Any]] = deque()  # those that their callers may have
        self._armed = 0  # when the ticker looks next; 0 until it first did
        self._lock = threading.RLock()
        self._inside = _Inside(self)
        self._together = _Together(self)
        self._gathered = 0  # how often the thread that holds the lock has said that more calls follow
        self.alarm: Callable[[], None] = lambda: None
        self.commit: Callable[[], None] = _nothing
        self.release_memory: Callable[[], None] = lambda: None

    def enter(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def leave(self) -> None:
        """Settle, give the lock back, and run completions outside it, so that they may call the store."""
        if self._gathered:
            self._leave_gathered()
            return
        try:
            try:
                lifecycle, waiting = self._lifecycle, self._waiting
                if waiting.count:
                    self._settle()
                elif lifecycle.touched:
                    lifecycle.touched.clear()
                if lifecycle.due < self._armed or waiting.deadlines.due < self._armed:
                    self._armed = min(lifecycle.due, waiting.deadlines.due)
                    self.alarm()
            finally:
                if self.commit is not _nothing:
                    self.commit()
            if self._answers:
                self._told.extend(self._answers)
                self._answers.clear()
        finally:
            self._lock.release()
        if self._told:
            self._tell()

    def _tell(self) -> None:
        while self._told:
            try:
                done, result = self._told.popleft()
            except IndexError:  # another thread took the last one
                return
            done(result)

    def _leave_gathered(self) -> None:
        """More calls follow at once. Those who wait are served in between, since that may change what these meet."""
        try:
            if self._waiting.count:
                self._settle()
        finally:
            self._lock.release()

    def together(self) -> AbstractContextManager[None]:
        """See `Store`."""
        return self._together

    def gather(self) -> None:
        """Enter, and stay inside until `disperse`."""
        self._lock.acquire()
        self._gathered += 1

    def disperse(self) -> None:
        """The last of the calls that belong together has been made."""
        self._gathered -= 1
        self.leave()

    @abstractmethod
    def _settle(self) -> None:
        """Answer whoever can be answered after a change, since somebody waits. For who knows those that wait."""

    # -- limits --------------------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """See `Store`."""
        return Facts(
            self._layout.limits,
            self._lifecycle.policy,
            self._arena.slots,
            self._lifecycle.available,
            self._layout.row_bytes,
            self._epoch,
            self._max_wait,
            self._max_waiters,
        )

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def census(self) -> Census:
        """See `Store`."""
        with self._lock:
            lifecycle, waiting = self._lifecycle, self._waiting
            slots = lifecycle.slots
            published, consumed = lifecycle.published, lifecycle.consumed
            withheld = slots.total - slots.free - lifecycle.live
            return Census(
                free=slots.free,
                reserved=lifecycle.live - published - consumed,
                published=published,
                consumed=consumed,
                quarantined=withheld,
                waiting_readers=len(waiting) - waiting.claimants,
                waiting_claimants=waiting.claimants,
                waiting_bytes=waiting.weight,
                tombstones=lifecycle.remembered[0],
                producers=lifecycle.remembered[1],
            )

    def check_widths(self, widths: tuple[int, ...]) -> None:
        """See `Store`."""
        check_widths(widths, self._layout)

    def _refuse_draining(self) -> None:
        if self._draining:
            raise refusal.draining()

    # -- records -------------------------------------------------------------------------------------------------------

    def _publish(self, handoff: Handoff, draft: Draft) -> int:
        self._arena.write(handoff.slot, handoff.generation, draft)
        self._lifecycle.publish(handoff)
        return handoff.published_wall

    def _published_again(self, holder: Handoff | Tombstone, draft: Draft) -> int:
        """A producer that lost its answer repeats the Put of what is published, or was: OK for the same record."""
        if isinstance(holder, Handoff):
            if self._read_row(holder) != draft.image:
                raise refusal.record_immutable()
        elif draft.digest() != holder.digest:
            if holder.outcome is Outcome.COMPLETED:
                raise refusal.record_immutable()
            raise outcome_refusal(holder, reading=False)
        return holder.published_wall

    def _read(self, key: Key, attempt: int, reader_id: str, consume: bool) -> Reading | None:
        handoff = self._lifecycle.find(key, attempt)
        if handoff is None or handoff.state is RESERVED:
            return None
        image = self._read_row(handoff)
        if consume:
            self._lifecycle.consume(handoff, reader_mark(reader_id))
        return Reading(image, handoff)

    def _read_row(self, handoff: Handoff) -> bytes:
        try:
            return self._arena.read(handoff.slot, handoff.generation)
        except DamagedRowError:
            raise self._lifecycle.quarantine(handoff) from None

    def _not_there(self, key: Key, attempt: int, *, waited: bool) -> Refusal:
        handoff = self._lifecycle.find(key, attempt)
        if handoff is not None:
            return refusal.not_ready(handoff.state.value)
        return refusal.not_ready("NONE") if waited else refusal.not_found()
