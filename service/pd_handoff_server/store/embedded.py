"""The store in this process: a torch arena under the rules of life, behind one lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from pd_handoff.v1 import record_pb2

from pd_handoff_server import refusal
from pd_handoff_server.arena.arena import Arena, DamagedRowError
from pd_handoff_server.arena.draft import Draft, check_widths, measure
from pd_handoff_server.lifecycle import Failure, Handoff, Key, Lifecycle, Outcome, Spec, State, Tombstone, reader_mark
from pd_handoff_server.lifecycle.admission import outcome_refusal
from pd_handoff_server.lifecycle.clock import Clock
from pd_handoff_server.lifecycle.deadlines import NEVER
from pd_handoff_server.refusal import Refusal

from .interface import LIVE_STATES, Census, Done, Facts, Origin, Parked, Reading, Sight, state_word
from .waiting import Claimant, Reader, Waiter, Waiting


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


class EmbeddedStore:
    """Implements `Store`. One thread at a time is inside; completions run after the lock is released.

    `alarm` is called (locked) when something is due earlier than the moment that `tick` last returned, `commit`
    (locked) before anybody learns of a change, `release_memory` when no call follows any more.
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
        self._answers: deque[tuple[Done, Any]] = deque()
        self._draining = False
        self._armed = 0  # when the ticker looks next; 0 until it first did
        self._lock = threading.Lock()
        self._inside = _Inside(self)
        self.alarm: Callable[[], None] = lambda: None
        self.commit: Callable[[], None] = _nothing
        self.release_memory: Callable[[], None] = lambda: None

    def enter(self) -> None:
        """Take the lock."""
        self._lock.acquire()

    def leave(self) -> None:
        """Settle, give the lock back, and run completions outside it, so that they may call the store."""
        try:
            try:
                self._settle()
            finally:
                if self.commit is not _nothing:
                    self.commit()
        finally:
            self._lock.release()
        while self._answers:
            try:
                done, result = self._answers.popleft()
            except IndexError:  # another thread took the last one
                return
            done(result)

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

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def reserve(self, spec: Spec, max_wait: int, done: Done, origin: Origin | None = None) -> Handoff | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining()
            try:
                return self._reserve(spec)
            except Refusal as refused:
                self._refuse_unless_waiting_helps(refused, max_wait, [spec])
                return self._park(Claimant([spec], self._until(max_wait), done, self._cancel), origin)

    def reserve_all(
        self, specs: Sequence[Spec], max_wait: int, done: Done, origin: Origin | None = None
    ) -> list[Handoff] | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining()
            try:
                return self._reserve_all(specs)
            except Refusal as refused:
                self._refuse_unless_waiting_helps(refused, max_wait, specs)
                return self._park(Claimant(list(specs), self._until(max_wait), done, self._cancel, batch=True), origin)

    def _refuse_unless_waiting_helps(self, refused: Refusal, max_wait: int, specs: Sequence[Spec]) -> None:
        if refused.reason != "ARENA_FULL" or self._lifecycle.quotas.hopeless(specs) or len(specs) > self._arena.slots:
            raise refused
        if max_wait <= 0:
            shelf = self._waiting.shelf_before(specs)
            raise refused if shelf is None else self._lifecycle.full(shelf)

    def _reserve(self, spec: Spec) -> Handoff:
        plan = self._lifecycle.admit(spec)
        if spec.widths is not None:
            check_widths(spec.widths, self._layout)
        waiting = self._waiting
        handoff = self._lifecycle.commit(plan, barge=not (waiting.claimants and waiting.anyone_before([spec])))
        self._note_reserved([spec])
        return handoff

    def _reserve_all(self, specs: Sequence[Spec]) -> list[Handoff]:
        for spec in specs:
            self._lifecycle.admit(spec)
            if spec.widths is not None:
                check_widths(spec.widths, self._layout)
        handoffs = self._lifecycle.reserve_all(specs, barge=not self._waiting.anyone_before(specs))
        self._note_reserved(specs)
        return handoffs

    def _note_reserved(self, specs: Sequence[Spec]) -> None:
        """Others may wait for a slot for these very keys; they need none, or may have none, from now on."""
        if self._waiting.claimants:
            self._lifecycle.touched.extend(spec.key for spec in specs)

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, key: Key, token: bytes, record: record_pb2.HandoffRecord) -> int:
        """See `Store`."""
        self._lock.acquire()
        try:
            return self._put(self._lifecycle.holder(key, token), record)
        finally:
            self.leave()

    def _put(self, holder: Handoff | Tombstone, record: record_pb2.HandoffRecord) -> int:
        if isinstance(holder, Tombstone):
            return self._put_again_after_end(holder, record)
        draft = measure(record, self._layout)
        if holder.state is State.RESERVED:
            self._arena.write(holder.slot, holder.generation, draft)
            self._lifecycle.publish(holder)
            return holder.published_wall
        if self._read_row(holder) != draft.image:
            raise refusal.record_immutable()
        return holder.published_wall

    def _publish(self, handoff: Handoff, draft: Draft) -> int:
        self._arena.write(handoff.slot, handoff.generation, draft)
        self._lifecycle.publish(handoff)
        return handoff.published_wall

    def _put_again_after_end(self, ended: Tombstone, record: record_pb2.HandoffRecord) -> int:
        """A producer that lost its answer repeats the Put of what was published: still OK."""
        if ended.digest is None:
            raise outcome_refusal(ended, reading=False)
        if measure(record, self._layout).digest() == ended.digest:
            return ended.published_wall
        if ended.outcome is Outcome.COMPLETED:
            raise refusal.record_immutable()
        raise outcome_refusal(ended, reading=False)

    def put_reserving(
        self, spec: Spec, record: record_pb2.HandoffRecord, max_wait: int, done: Done, origin: Origin | None = None
    ) -> int | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining()
            owned = self._lifecycle.owned(spec)
            if owned is not None:
                return self._put(owned, record)
            return self._put_reserving(spec, record, max_wait, done, origin)

    def _put_reserving(
        self, spec: Spec, record: record_pb2.HandoffRecord, max_wait: int, done: Done, origin: Origin | None
    ) -> int | Parked:
        self._lifecycle.admit(spec)
        draft = measure(record, self._layout)
        try:
            handoff = self._reserve(spec)
        except Refusal as refused:
            self._refuse_unless_waiting_helps(refused, max_wait, [spec])
            return self._park(Claimant([spec], self._until(max_wait), done, self._cancel, draft=draft), origin)
        return self._publish(handoff, draft)

    # -- Get -----------------------------------------------------------------------------------------------------------

    def get(
        self,
        key: Key,
        attempt: int,
        reader_id: str,
        consume: bool,
        max_wait: int,
        done: Done,
        origin: Origin | None = None,
    ) -> Reading | Parked:
        """See `Store`."""
        self._lock.acquire()
        try:
            reading = self._read(key, attempt, reader_id, consume)
            if reading is not None:
                return reading
            if max_wait <= 0:
                raise self._not_there(key, attempt, waited=False)
            self._refuse_draining()
            parts = (attempt, reader_id, consume)
            return self._park(Reader(key, self._until(max_wait), done, self._cancel, *parts), origin)
        finally:
            self.leave()

    def _read(self, key: Key, attempt: int, reader_id: str, consume: bool) -> Reading | None:
        handoff = self._lifecycle.find(key, attempt)
        if handoff is None or handoff.state is State.RESERVED:
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

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release(self, key: Key, token: bytes, reader_id: str) -> None:
        """See `Store`."""
        with self._inside:
            if token:
                self._lifecycle.release_token(key, token)
            else:
                self._lifecycle.release_reader(key, reader_mark(reader_id))

    def abort(self, key: Key, failure: Failure, token: bytes, attempt: int | None) -> bool:
        """See `Store`."""
        with self._inside:
            return self._lifecycle.abort(key, failure, token=token, attempt=attempt)

    # -- waiting -------------------------------------------------------------------------------------------------------

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
        if self._waiting.remove(waiter):
            if isinstance(result, Refusal):
                result.key = waiter.keys[0]
            self._answers.append((waiter.done, result))

    def _settle(self) -> None:
        """Answer whoever can be answered after a change, and have the ticker look when something is due earlier."""
        lifecycle, waiting = self._lifecycle, self._waiting
        if waiting.count:
            while True:
                touched, lifecycle.touched = lifecycle.touched, []
                for key in touched:
                    self._wake(key)
                served = self._serve_queue()
                if waiting.claimants:
                    for key in touched:
                        self._reconsider(key)
                if not served and not lifecycle.touched:
                    break
        elif lifecycle.touched:
            lifecycle.touched.clear()
        due = min(lifecycle.deadlines.due, lifecycle.outcomes.due, waiting.deadlines.due)
        if due < self._armed:
            self._armed = due
            self.alarm()

    def _wake(self, key: Key) -> None:
        for waiter in self._waiting.of(key):
            if not isinstance(waiter, Reader):
                continue
            try:
                reading = self._read(key, waiter.attempt, waiter.reader_id, waiter.consume)
            except Refusal as refused:
                self._finish(waiter, refused)
            else:
                if reading is not None:
                    self._finish(waiter, reading)

    def _reconsider(self, key: Key) -> None:
        """The key changed: answer those who wait for a slot for it and now need none of others, or may have none.

        After those whose turn it is: the slot of a consumed hand-off is theirs before it is the next owner's.
        """
        for waiter in self._waiting.of(key):
            if isinstance(waiter, Claimant):
                self._grant(waiter, barge=False)

    def _serve_queue(self) -> bool:
        waiting, served = self._waiting, False
        passed: set[str] = set()  # namespaces whose first in line has to wait for their quota
        while (turn := waiting.next_claimant(self._lifecycle.quotas.has_room, passed)) is not None:
            behind = next((spec.key[0] for spec in turn.specs if spec.key[0] in passed), None) if passed else None
            if behind is not None and turn.shelf is None:
                waiting.shelve(turn, behind)
                continue
            refused = self._grant(turn)
            if refused is None:
                served = True
            elif refused.quota is None:  # no slot for anybody
                if turn.shelf is not None:
                    waiting.shelve(turn, None)
                break
            else:
                passed.add(refused.quota)
                if turn.shelf != refused.quota:
                    waiting.shelve(turn, refused.quota)
        return served

    def _grant(self, waiter: Claimant, *, barge: bool = True) -> Refusal | None:
        """Try to give a waiting claimant what it waits for; ARENA_FULL when it has to go on waiting.

        With `barge` False it is not its turn, and it may have only what it frees itself.
        """
        try:
            if waiter.batch:
                result: Any = self._lifecycle.reserve_all(waiter.specs, barge=barge)
            elif waiter.draft is None:
                result = self._lifecycle.commit(self._lifecycle.admit(waiter.specs[0]), barge=barge)
            else:
                result = self._grant_put(waiter.specs[0], waiter.draft, barge=barge)
        except Refusal as refused:
            if refused.reason == "ARENA_FULL":
                return refused
            result = refused
        self._finish(waiter, result)
        if not isinstance(result, Refusal):
            self._note_reserved(waiter.specs)
        return None

    def _grant_put(self, spec: Spec, draft: Draft, *, barge: bool) -> int:
        owned = self._lifecycle.owned(spec)
        if isinstance(owned, Tombstone):
            if owned.digest != draft.digest():
                raise outcome_refusal(owned, reading=False)
            return owned.published_wall
        if owned is not None:
            if self._read_row(owned) != draft.image:
                raise refusal.record_immutable()
            return owned.published_wall
        return self._publish(self._lifecycle.commit(self._lifecycle.admit(spec), barge=barge), draft)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self) -> int | None:
        """See `Store`."""
        with self._inside:
            self._lifecycle.expire()
            self._settle()
            now = self._clock.monotonic()
            for waiter in list(self._waiting.due(now)):
                if isinstance(waiter, Reader):
                    try:
                        result = self._not_there(waiter.keys[0], waiter.attempt, waited=True)
                    except Refusal as refused:
                        result = refused
                else:
                    result = self._lifecycle.full(waiter.shelf if isinstance(waiter, Claimant) else None)
                self._finish(waiter, result)
            self._settle()
            due = self._next_deadline()
            self._armed = NEVER if due is None else due
        return due

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

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            self.release_memory()

    def _refuse_draining(self) -> None:
        if self._draining:
            raise refusal.draining()

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(
        self, namespaces: frozenset[str] | None, states: frozenset[str], after: int, count: int
    ) -> tuple[list[Sight], int]:
        """See `Store`."""
        with self._lock:
            entries: list[Handoff | Tombstone] = list(self._lifecycle.handoffs())
            # All live states, the default, means those that hold a slot: no pages of what was read and freed long ago.
            if states != LIVE_STATES and (states - LIVE_STATES or "CONSUMED" in states):
                entries.extend(self._lifecycle.tombstones())
            chosen = (
                entry
                for entry in entries
                if (namespaces is None or entry.key[0] in namespaces) and state_word(entry) in states
            )
            page = list(islice(chosen, after, after + count + 1))
            more = after + count if len(page) > count else 0
            return [self._sight(entry) for entry in page[:count]], more

    def look_at(self, key: Key, contents: bool) -> tuple[Sight, bytes | None]:
        """See `Store`."""
        with self._inside:
            entry = self._lifecycle.newest(key)
            if entry is None:
                raise refusal.not_found()
            image = None
            if contents and isinstance(entry, Handoff) and entry.state is not State.RESERVED:
                image = self._read_row(entry)
            return self._sight(entry), image

    def _sight(self, entry: Handoff | Tombstone) -> Sight:
        now = self._clock.monotonic()
        waiting = len(self._waiting.of(entry.key))
        left = max((entry.deadline or now) - now, 0)
        if isinstance(entry, Tombstone):
            return Sight(entry, now - entry.ended_mono, left, waiting, None)
        widths = entry.widths if entry.state is State.RESERVED else self._arena.widths(entry.slot)
        return Sight(entry, now - entry.reserved_mono, left, waiting, widths)
