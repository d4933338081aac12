"""The store in this process: a torch arena under the rules of life, behind one lock."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from pd_handoff_server import refusal
from pd_handoff_server.arena.arena import Arena, DamagedRowError
from pd_handoff_server.arena.layout import HeapShape
from pd_handoff_server.arena.packed_record import Draft, check_widths, measure
from pd_handoff_server.lifecycle import Failure, Handoff, Key, Lifecycle, Outcome, Spec, State, Tombstone, reader_mark
from pd_handoff_server.lifecycle.admission import outcome_refusal
from pd_handoff_server.lifecycle.clock import Clock
from pd_handoff_server.lifecycle.deadlines import NEVER
from pd_handoff_server.lifecycle.model import RESERVED
from pd_handoff_server.lifecycle.pages import HEAP_LINE
from pd_handoff_server.refusal import Refusal

from .interface import (
    LIVE_STATES,
    READY,
    Census,
    Content,
    Delivery,
    Done,
    Facts,
    Origin,
    Parked,
    Published,
    Query,
    Reading,
    Ready,
    Reserved,
    Sight,
)
from .waiting import Claimant, Reader, Waiter, Waiting

_AT_ONCE: Final = 64
"""Calls that the thread of another call answers; the timer's thread answers those beyond."""
_BREATH: Final = 16
"""Calls that the timer's thread answers before it lets other threads go on."""
_LOOK_COST: Final = 65_536
"""Positions that one look may pass, of which each that holds something counts `_ENTRY_COST` more."""
_ENTRY_COST: Final = 15


_tuple: Final = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor."""


def _state_word(entry: Handoff | Tombstone) -> str:
    """RESERVED, PUBLISHED, CONSUMED, ABORTED or EXPIRED."""
    return entry.state.value if isinstance(entry, Handoff) else entry.outcome.state


def _nothing() -> None:
    """What is done where nothing has to be."""


class _Inside:
    """Whoever holds this is alone in the store; on the way out others get the answers that the change made possible."""

    __slots__ = ("_store",)

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._store.enter()

    def __exit__(self, *_: object) -> None:
        self._store.leave()


class _Together:
    """Whoever holds this makes several calls as one thing: see `Store.together`."""

    __slots__ = ("_store",)

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        self._store.gather()

    def __exit__(self, *_: object) -> None:
        self._store.disperse()


class EmbeddedStore:
    """Implements `Store`: a torch arena and the rules of life behind one lock, and the calls that wait.

    One thread at a time is inside; completions run after the lock is released.

    Attributes:
        alarm: called (locked) when something is due earlier than the moment that `tick` last returned.
        commit: called (locked) before anybody learns of a change.
        release_memory: called when no call follows any more.
        hand_over: called when many calls wait to be told their answers; `tick` is to be called then. None: nobody is.
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
        self._heap = arena.heap
        self._heap_shape = HeapShape(0) if arena.heap is None else arena.heap.shape
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
        self._tellers: set[int] = set()  # threads that are telling
        self._armed = 0  # when the ticker looks next; 0 until it first did
        self._lock = threading.RLock()
        self._inside = _Inside(self)
        self._together = _Together(self)
        self._gathered = 0  # how often the thread that holds the lock has said that more calls follow
        self.alarm: Callable[[], None] = lambda: None
        self.commit: Callable[[], None] = _nothing
        self.release_memory: Callable[[], None] = lambda: None
        self.hand_over: Callable[[], None] | None = None

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
        """Give calls their answers; of very many, so that this call ends, the timer's thread gives the rest."""
        while not self._tell_some(_AT_ONCE):
            if self.hand_over is not None:
                self.hand_over()
                return

    def _tell_some(self, count: int) -> bool:
        """Tell up to so many; True when no more are waiting.

        Whoever is told may call the store again, and does so when a batch makes what it owes. What that makes possible
        is told after, not within: else each batch would be asked how much its caller holds before those that were told
        before it have been counted, and thousands would be one inside the other.
        """
        me = threading.get_ident()
        if me in self._tellers:
            return True  # whoever tells goes on with these
        self._tellers.add(me)
        try:
            for _ in range(count):
                try:
                    done, result = self._told.popleft()
                except IndexError:  # another thread took the last one
                    return True
                done(result)
        finally:
            self._tellers.discard(me)
        return not self._told

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
            self._heap_shape.total,
            self._lifecycle.pages.available * self._heap_shape.page_bytes,
            self._heap_shape.page_bytes if self._heap_shape.pages else 0,
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
            pages = lifecycle.pages
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
                heap_free=pages.free * pages.page_bytes,
                heap_in_use=pages.in_use * pages.page_bytes,
                heap_consumed=pages.lent * pages.page_bytes,
            )

    def check_widths(self, widths: tuple[int, ...]) -> None:
        """See `Store`."""
        check_widths(widths, self._layout)

    def _refuse_draining(self, specs: Sequence[Spec] = ()) -> None:
        """Raises Refusal DRAINING while the store drains, unless these only renew what their owners hold."""
        if self._draining and not (specs and all(map(self._lifecycle.renews, specs))):
            raise refusal.draining()

    # -- records -------------------------------------------------------------------------------------------------------

    def _publish(self, handoff: Handoff, draft: Draft) -> int:
        if self._heap is not None and (handoff.pages or draft.attachments is not None):
            self._lifecycle.fit_pages(handoff, self._pages_of(draft), barge=not self._waiting.anyone_for_pages)
        self._arena.write(handoff.slot, handoff.generation, draft)
        self._lifecycle.publish(handoff)
        return handoff.published_wall

    def _pages_of(self, draft: Draft) -> int:
        return 0 if draft.attachments is None else self._heap_shape.pages_for(len(draft.attachments.data))

    def _published_again(self, holder: Handoff | Tombstone, draft: Draft) -> int:
        """A producer that lost its answer repeats the Put of what is published, or was: OK for the same record."""
        if isinstance(holder, Handoff):
            if self._read_row(holder) != draft.image:
                raise refusal.record_immutable()
            attached = b"" if draft.attachments is None else draft.attachments.digest
            if attached != (b"" if self._heap is None else self._heap.digest(holder.slot)):
                raise refusal.record_immutable()
        elif draft.digest() != holder.digest:
            if holder.outcome is Outcome.COMPLETED:
                raise refusal.record_immutable()
            raise outcome_refusal(holder, reading=False)
        return holder.published_wall

    def _readable(self, query: Query) -> Handoff | None:
        """The hand-off whose record answers this query, once there is one. Raises Refusal where there never will be."""
        handoff = self._lifecycle.find(query.key, query.attempt)
        if handoff is None:
            return None
        digest = query.request_digest
        if digest and handoff.request_digest and digest != handoff.request_digest:
            raise refusal.request_mismatch(handoff.state.value)
        return None if handoff.state is RESERVED else handoff

    def _reading(self, handoff: Handoff, wanted: frozenset[str] | None = None) -> Reading:
        image = self._read_row(handoff)
        if self._heap is not None:
            image = self._with_attachments(handoff, image, wanted)
        return Reading(image, handoff.attempt, self._epoch, handoff.reserved_wall, handoff.published_wall)

    def _reserved(self, handoff: Handoff) -> Reserved:
        return _tuple(Reserved, (handoff.token, handoff.lease, self._epoch))

    def _published(self, wall: int) -> Published:
        return _tuple(Published, (wall, self._epoch))

    def _read_row(self, handoff: Handoff) -> bytes:
        try:
            return self._arena.read(handoff.slot, handoff.generation)
        except DamagedRowError:
            raise self._lifecycle.quarantine(handoff) from None

    def _with_attachments(self, handoff: Handoff, image: bytes, wanted: frozenset[str] | None = None) -> bytes:
        try:
            attached = self._arena.attached(handoff.slot, handoff.generation, wanted)
        except DamagedRowError:
            raise self._lifecycle.quarantine(handoff) from None
        return b"".join((image, *attached)) if attached else image

    def _size_of(self, handoff: Handoff, query: Query) -> int:
        """Bytes of the record that a query is answered with, at most."""
        size = self._arena.size(handoff.slot)
        return size if self._heap is None else size + self._heap.size(handoff.slot, query.attachments)

    def _not_there(self, query: Query, *, waited: bool) -> Refusal:
        handoff = self._lifecycle.find(query.key, query.attempt)
        if handoff is not None:
            return refusal.not_ready(handoff.state.value)
        return refusal.not_ready("NONE") if waited else refusal.not_found()

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def reserve(self, spec: Spec, max_wait: int, done: Done, origin: Origin | None = None) -> Reserved | Parked:
        """See `Store`."""
        self._lock.acquire()
        try:
            if self._draining:
                self._refuse_draining([spec])
            try:
                return self._reserved(self._reserve(spec))
            except Refusal as refused:
                if not self._waiting_helps(refused, max_wait, [spec]):
                    raise
                return self._park(Claimant([spec], self._until(max_wait), done, self._cancel), origin)
        finally:
            self.leave()

    def reserve_all(
        self, specs: Sequence[Spec], max_wait: int, done: Done, origin: Origin | None = None
    ) -> list[Reserved] | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining(specs)
            try:
                return list(map(self._reserved, self._reserve_all(specs)))
            except Refusal as refused:
                if not self._waiting_helps(refused, max_wait, specs):
                    raise
                return self._park(Claimant(list(specs), self._until(max_wait), done, self._cancel, batch=True), origin)

    def _waiting_helps(self, refused: Refusal, max_wait: int, specs: Sequence[Spec]) -> bool:
        """Whether the call may wait for what it was refused. Raises Refusal for what describes it better."""
        if refused.reason != "ARENA_FULL":
            return False
        quotas, slots = self._lifecycle.quotas, self._arena.slots
        if len(specs) > slots:
            raise refusal.never_fits(len(specs), slots, self._lifecycle.in_use) from None
        over = quotas.hopeless(specs)
        pages = sum(spec.pages for spec in specs)
        if pages > self._heap_shape.pages:
            wanted = pages * self._heap_shape.page_bytes
            raise refusal.heap_never_fits(wanted, self._lifecycle.full(HEAP_LINE)) from None
        if over is not None:
            namespace, number = over
            raise refusal.never_fits(number, quotas.limits[namespace], quotas.held[namespace], namespace) from None
        if max_wait > 0:
            return True
        line = self._waiting.line_before(specs)
        if line is not None:
            raise self._lifecycle.full(line) from None
        return False

    def _reserve(self, spec: Spec) -> Handoff:
        plan = self._lifecycle.admit(spec)
        if spec.widths is not None:
            self._check_declared(spec)
        if not self._waiting.claimants:
            return self._lifecycle.commit(plan)
        handoff = self._lifecycle.commit(plan, barge=not self._waiting.anyone_before([spec]))
        self._note_reserved([spec])
        return handoff

    def _reserve_all(self, specs: Sequence[Spec]) -> list[Handoff]:
        for spec in specs:
            self._lifecycle.admit(spec)
            if spec.widths is not None:
                self._check_declared(spec)
        handoffs = self._lifecycle.reserve_all(specs, barge=not self._waiting.anyone_before(specs))
        self._note_reserved(specs)
        return handoffs

    def _check_declared(self, spec: Spec) -> None:
        """Raises Refusal for widths that can never fit; notes how many pages of the heap they stand for."""
        check_widths(spec.widths, self._layout)
        declared = spec.widths[-1]
        if declared:
            spec.pages = max(spec.pages, self._heap_shape.pages_for(declared))

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, key: Key, token: bytes, record: Content, done: Done) -> Published:
        """See `Store`."""
        content = record if record.__class__ is Draft else self._ahead(record)
        self._lock.acquire()
        try:
            return self._published(self._put(self._lifecycle.holder(key, token), content))
        finally:
            self.leave()

    def _ahead(self, record: Content) -> Content | Refusal:
        """A record with attachments, measured before the lock is taken, since that takes long; else as it is.

        What is wrong with it is told later, since the token and the state come before it.
        """
        if isinstance(record, Draft) or not record.attachments:
            return record
        try:
            return measure(record, self._layout)
        except Refusal as refused:
            return refused.with_traceback(None)

    def _put(self, holder: Handoff | Tombstone, record: Content | Refusal) -> int:
        if isinstance(holder, Tombstone):
            if holder.digest is None:
                raise outcome_refusal(holder, reading=False)
            return self._published_again(holder, self._measured(record))
        draft = self._measured(record)
        if holder.state is State.RESERVED:
            return self._publish(holder, draft)
        return self._published_again(holder, draft)

    def _measured(self, record: Content | Refusal) -> Draft:
        if isinstance(record, Refusal):
            raise record
        return record if record.__class__ is Draft else measure(record, self._layout)  # type: ignore[arg-type]

    def put_reserving(
        self, spec: Spec, record: Content, max_wait: int, done: Done, origin: Origin | None = None
    ) -> Published | Parked:
        """See `Store`."""
        content = self._ahead(record)
        with self._inside:
            owned = self._lifecycle.owned(spec)
            if owned is not None:
                return self._published(self._put(owned, content))
            self._refuse_draining([spec])
            return self._put_reserving(spec, content, max_wait, done, origin)

    def _put_reserving(
        self, spec: Spec, record: Content | Refusal, max_wait: int, done: Done, origin: Origin | None
    ) -> Published | Parked:
        self._lifecycle.admit(spec)
        draft = self._measured(record)
        spec.pages = self._pages_of(draft)
        try:
            handoff = self._reserve(spec)
        except Refusal as refused:
            if not self._waiting_helps(refused, max_wait, [spec]):
                raise
            return self._park(Claimant([spec], self._until(max_wait), done, self._cancel, draft=draft), origin)
        return self._published(self._publish(handoff, draft))

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(self, query: Query, max_wait: int, done: Done, origin: Origin | None = None) -> Reading | Parked:
        """See `Store`."""
        if query.expected_epoch:
            self._check_epoch(query)
        self._lock.acquire()
        try:
            handoff = self._readable(query)
            if handoff is not None:
                if query.room is not None and (refused := query.room(self._size_of(handoff, query))) is not None:
                    raise refused
                reading = self._reading(handoff, query.attachments)
                if query.consume:
                    self._lifecycle.consume(handoff, reader_mark(query.reader_id))
                return reading
            if max_wait <= 0:
                raise self._not_there(query, waited=False)
            self._refuse_draining()
            return self._park(Reader(query, self._until(max_wait), done, self._cancel), origin)
        finally:
            self.leave()

    def await_record(self, query: Query, max_wait: int, done: Done, origin: Origin | None = None) -> Ready | Parked:
        """See `Store`."""
        self._check_epoch(query)
        with self._inside:
            if self._readable(query) is not None:
                return READY
            if max_wait <= 0:
                raise self._not_there(query, waited=False)
            self._refuse_draining()
            return self._park(Reader(query, self._until(max_wait), done, self._cancel, glance=True), origin)

    def _check_epoch(self, query: Query) -> None:
        if query.expected_epoch and query.expected_epoch != self._epoch:
            raise refusal.store_restarted(query.expected_epoch[:64], self._epoch)

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release(self, key: Key, token: bytes, reader_id: str, done: Done) -> None:
        """See `Store`."""
        with self._inside:
            if token:
                self._lifecycle.release_token(key, token)
            else:
                self._lifecycle.release_reader(key, reader_mark(reader_id))

    def abort(self, key: Key, failure: Failure, token: bytes, attempt: int | None, done: Done) -> bool:
        """See `Store`."""
        with self._inside:
            return self._lifecycle.abort(key, failure, token=token, attempt=attempt)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            self.release_memory()

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(
        self, namespaces: frozenset[str] | None, states: frozenset[str], after: int, count: int, done: Done
    ) -> tuple[list[Sight], int]:
        """See `Store`."""
        lifecycle = self._lifecycle
        sights: list[Sight] = []
        with self._lock:
            # All live states, the default, means those that hold a slot: no pages of what was read and freed long ago.
            ended = states != LIVE_STATES and bool(states - LIVE_STATES or "CONSUMED" in states)
            end = lifecycle.positions if ended else self._arena.slots
            position, budget = after, _LOOK_COST
            while position < end and (budget > 0 or not sights):  # an empty page would look like the last one
                entry = lifecycle.entry(position)
                budget -= 1
                if entry is not None:
                    budget -= _ENTRY_COST
                    if (namespaces is None or entry.key[0] in namespaces) and _state_word(entry) in states:
                        if len(sights) == count:
                            break
                        sights.append(self._sight(entry))
                position += 1
            return sights, position if position < end else 0

    def look_at(self, key: Key, contents: bool, done: Done) -> tuple[Sight, bytes | None]:
        """See `Store`."""
        with self._inside:
            entry = self._lifecycle.newest(key)
            if entry is None:
                raise refusal.not_found()
            image = None
            if contents and isinstance(entry, Handoff) and entry.state is not State.RESERVED:
                image = self._with_attachments(entry, self._read_row(entry))
            return self._sight(entry), image

    def _sight(self, entry: Handoff | Tombstone) -> Sight:
        now = self._clock.monotonic()
        common: dict[str, Any] = {
            "key": entry.key,
            "attempt": entry.attempt,
            "state": _state_word(entry),
            "owner": entry.owner,
            "expires_in": max((entry.deadline or now) - now, 0),
            "waiting": len(self._waiting.of(entry.key)),
            "reserved_wall": entry.reserved_wall,
            "published_wall": entry.published_wall,
            "producer": entry.producer,
        }
        if isinstance(entry, Tombstone):
            return Sight(**common, age=now - entry.ended_mono, failure=entry.failure)
        return Sight(
            **common,
            age=now - entry.reserved_mono,
            widths=entry.widths if entry.state is State.RESERVED else self._arena.widths(entry.slot),
            slot=entry.slot,
            generation=entry.generation,
            expected_readers=entry.expected_readers,
            readers_done=len(entry.readers),
        )

    # -- coming and going ----------------------------------------------------------------------------------------------

    def _until(self, max_wait: int) -> int:
        return self._clock.monotonic() + min(max_wait, self._max_wait)

    def _park(self, waiter: Waiter, origin: Origin | None) -> Parked:
        if origin is not None:
            waiter.sharer = origin.sharer
            waiter.weight += origin.take_weight()
        waiting = self._waiting
        if len(waiting) >= self._max_waiters:
            refused = refusal.too_many_waiters(self._max_waiters)
            self._push_out(waiting.share, waiting.share(waiter.sharer) + 1, refused)
        while waiting.weight + waiter.weight > self._max_waiting_bytes:  # ends: each turn raises or takes one out
            refused = refusal.too_many_waiting_bytes(self._max_waiting_bytes)
            self._push_out(waiting.burden, waiting.burden(waiter.sharer) + waiter.weight, refused)
        waiting.add(waiter)
        return waiter

    def _push_out(self, measure: Callable[[str], int], mine: int, refused: Refusal) -> None:
        """Take a place from whoever has most, if they have more than the newcomer will have; else refuse that one."""
        victim = self._waiting.newest_of_greediest(measure)
        if victim is None or measure(victim.sharer) <= mine:
            raise refused
        self._finish(victim, refused)

    def _cancel(self, waiter: Waiter) -> bool:
        with self._inside:
            return self._waiting.remove(waiter)  # leaving serves whoever stood behind it

    def _finish(self, waiter: Waiter, result: Any) -> None:
        done = waiter.done
        if self._waiting.remove(waiter):
            if isinstance(result, Refusal):
                result.key = waiter.keys[0]
                result.__traceback__ = None  # which holds all that was going on where it was raised
            self._answers.append((done, result))

    # -- after each change ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        lifecycle, waiting = self._lifecycle, self._waiting
        while True:
            touched, lifecycle.touched = lifecycle.touched, []
            for key in touched:
                self._wake(key)
            if not waiting.claimants:
                if not lifecycle.touched:
                    return
                continue
            served = self._serve_queue()
            for key in touched:
                self._reconsider(key)
            if not served and not lifecycle.touched:
                return

    def _wake(self, key: Key) -> None:
        """Answer those who can have this record now, with one copy of it for all of them."""
        found: Handoff | None = None
        shared: dict[frozenset[str] | None, Reading] = {}  # by the attachments that are wanted
        for waiter in self._waiting.of(key):
            if not isinstance(waiter, Reader):
                continue
            result: Any
            try:
                handoff = self._readable(waiter.query)
                if handoff is None:
                    continue
                if waiter.glance:
                    result = READY
                else:
                    if found is not handoff:
                        found, shared = handoff, {}
                    result = self._take(waiter, handoff, shared)
            except Refusal as refused:
                result = refused
            self._finish(waiter, result)

    def _take(
        self, waiter: Reader, handoff: Handoff, shared: dict[frozenset[str] | None, Reading]
    ) -> Reading | Refusal:
        """The record, and the reader counted, unless too much is kept for its caller."""
        done, wanted = waiter.done, waiter.query.attachments
        reading = shared.get(wanted)
        if isinstance(done, Delivery):
            size = self._size_of(handoff, waiter.query) if reading is None else len(reading.image)
            refused = done.turn_away(size)
            if refused is not None:
                return refused
        if reading is None:
            reading = shared[wanted] = self._reading(handoff, wanted)
        if waiter.query.consume:
            self._lifecycle.consume(handoff, reader_mark(waiter.query.reader_id))
        return reading

    def _reconsider(self, key: Key) -> None:
        """The key changed: answer those who wait for a slot for it and now need none of others, or may have none.

        After those whose turn it is: the slot of a consumed hand-off is theirs before it is the next owner's.
        """
        for waiter in self._waiting.of(key):
            if isinstance(waiter, Claimant):
                self._grant(waiter, barge=False)

    def _serve_queue(self) -> bool:
        waiting, served = self._waiting, False
        quotas = self._lifecycle.quotas
        passed: set[str] = set()  # namespaces in whose lines nobody can be served now
        while (turn := waiting.next_claimant(quotas.has_room, passed)) is not None:
            lines = self._behind(turn, quotas.of(turn.specs))
            if not lines:
                refused = self._grant(turn)
                if refused is None:
                    served = True
                    continue
                if refused.quota is not None:  # else there is no slot for anybody
                    lines = (HEAP_LINE,) if refused.quota == HEAP_LINE else quotas.of(turn.specs)
            if lines != turn.lines:
                waiting.line_up(turn, lines)
            if not lines:
                break
            passed.update(lines)
        return served

    def _behind(self, turn: Claimant, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        """The lines in which somebody came before this claimant, and in which it has to stand: those of its namespaces
        together, or the one for the heap; empty when it is its turn."""
        if self._waiting.is_behind(turn, namespaces):
            return namespaces
        return (HEAP_LINE,) if turn.paged and self._waiting.is_behind(turn, (HEAP_LINE,)) else ()

    def _grant(self, waiter: Claimant, *, barge: bool = True) -> Refusal | None:
        """Try to give a waiting claimant what it waits for; ARENA_FULL when it has to go on waiting.

        With `barge` False it is not its turn, and it may have only what it frees itself.
        """
        try:
            if waiter.batch:
                result: Any = list(map(self._reserved, self._lifecycle.reserve_all(waiter.specs, barge=barge)))
            elif waiter.draft is None:
                result = self._reserved(self._lifecycle.commit(self._lifecycle.admit(waiter.specs[0]), barge=barge))
            else:
                result = self._published(self._grant_put(waiter.specs[0], waiter.draft, barge=barge))
        except Refusal as refused:
            if refused.reason == "ARENA_FULL":
                return refused.with_traceback(None)  # else it would hold the frame that it is returned to: a cycle
            result = refused
        self._finish(waiter, result)
        if not isinstance(result, Refusal):
            self._note_reserved(waiter.specs)
        return None

    def _grant_put(self, spec: Spec, draft: Draft, *, barge: bool) -> int:
        owned = self._lifecycle.owned(spec)
        if owned is not None:
            return self._published_again(owned, draft)
        return self._publish(self._lifecycle.commit(self._lifecycle.admit(spec), barge=barge), draft)

    def _note_reserved(self, specs: Sequence[Spec]) -> None:
        """Others may wait for a slot for these very keys; they need none, or may have none, from now on."""
        if self._waiting.claimants:
            self._lifecycle.touched.extend(spec.key for spec in specs)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> int | None:
        """See `Store`."""
        with self._inside:
            self._lifecycle.expire()
            self._settle()
            self._give_up(self._waiting.due(self._clock.monotonic()))
            self._settle()
            due = self._next_deadline()
            self._armed = NEVER if due is None else due
        while not self._tell_some(_BREATH):
            time.sleep(0)
        return due

    def _give_up(self, due: Iterable[Waiter]) -> None:
        for waiter in list(due):
            if isinstance(waiter, Reader):
                try:
                    result = self._not_there(waiter.query, waited=True)
                except Refusal as refused:
                    result = refused
            else:
                result = self._lifecycle.full(self._held_up(waiter) if isinstance(waiter, Claimant) else None)
            self._finish(waiter, result)

    def _held_up(self, waiter: Claimant) -> str | None:
        """The namespace whose quota a claimant waits for; None when it waits for any slot."""
        quotas = self._lifecycle.quotas
        full = (namespace for namespace in waiter.lines if not quotas.has_room(namespace))
        return next(full, waiter.lines[0] if waiter.lines else None)

    def _next_deadline(self) -> int | None:
        own, waits = self._lifecycle.next_deadline(), self._waiting.next()
        if own is None or waits is None:
            return waits if own is None else own
        return min(own, waits)

    def drain(self) -> None:
        """See `Store`."""
        with self._inside:
            self._draining = True
            for waiter in self._waiting.everyone():
                self._finish(waiter, refusal.draining())
