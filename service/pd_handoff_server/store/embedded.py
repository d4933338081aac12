"""The store in this process: a torch arena under the rules of life, behind one lock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from pd_handoff_server import refusal
from pd_handoff_server.arena.draft import Draft, check_widths, measure
from pd_handoff_server.lifecycle import Failure, Handoff, Key, Spec, State, Tombstone, reader_mark
from pd_handoff_server.lifecycle.admission import outcome_refusal
from pd_handoff_server.refusal import Refusal

from .interface import LIVE_STATES, Content, Done, Origin, Parked, Reading, Sight, state_word
from .parking import Parking
from .waiting import Claimant, Reader


class EmbeddedStore(Parking):
    """Implements `Store`: each call here, those who wait in `Parking`, what both stand on in `Core`."""

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def reserve(self, spec: Spec, max_wait: int, done: Done, origin: Origin | None = None) -> Handoff | Parked:
        """See `Store`."""
        self._lock.acquire()
        try:
            if self._draining:
                raise refusal.draining()
            try:
                return self._reserve(spec)
            except Refusal as refused:
                if not self._waiting_helps(refused, max_wait, [spec]):
                    raise
                return self._park(Claimant([spec], self._until(max_wait), done, self._cancel), origin)
        finally:
            self.leave()

    def reserve_all(
        self, specs: Sequence[Spec], max_wait: int, done: Done, origin: Origin | None = None
    ) -> list[Handoff] | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining()
            try:
                return self._reserve_all(specs)
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
        if over is not None:
            namespace, number = over
            raise refusal.never_fits(number, quotas.limits[namespace], quotas.held[namespace], namespace) from None
        if max_wait > 0:
            return True
        shelf = self._waiting.shelf_before(specs)
        if shelf is not None:
            raise self._lifecycle.full(shelf) from None
        return False

    def _reserve(self, spec: Spec) -> Handoff:
        plan = self._lifecycle.admit(spec)
        if spec.widths is not None:
            check_widths(spec.widths, self._layout)
        if not self._waiting.claimants:
            return self._lifecycle.commit(plan)
        handoff = self._lifecycle.commit(plan, barge=not self._waiting.anyone_before([spec]))
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

    # -- Put -----------------------------------------------------------------------------------------------------------

    def put(self, key: Key, token: bytes, record: Content) -> int:
        """See `Store`."""
        self._lock.acquire()
        try:
            return self._put(self._lifecycle.holder(key, token), record)
        finally:
            self.leave()

    def _put(self, holder: Handoff | Tombstone, record: Content) -> int:
        if isinstance(holder, Tombstone):
            if holder.digest is None:
                raise outcome_refusal(holder, reading=False)
            return self._published_again(holder, self._measured(record))
        draft = self._measured(record)
        if holder.state is State.RESERVED:
            self._arena.write(holder.slot, holder.generation, draft)
            self._lifecycle.publish(holder)
            return holder.published_wall
        return self._published_again(holder, draft)

    def _measured(self, record: Content) -> Draft:
        return record if record.__class__ is Draft else measure(record, self._layout)  # type: ignore[arg-type]

    def put_reserving(
        self, spec: Spec, record: Content, max_wait: int, done: Done, origin: Origin | None = None
    ) -> int | Parked:
        """See `Store`."""
        with self._inside:
            self._refuse_draining()
            owned = self._lifecycle.owned(spec)
            if owned is not None:
                return self._put(owned, record)
            return self._put_reserving(spec, record, max_wait, done, origin)

    def _put_reserving(
        self, spec: Spec, record: Content, max_wait: int, done: Done, origin: Origin | None
    ) -> int | Parked:
        self._lifecycle.admit(spec)
        draft = self._measured(record)
        try:
            handoff = self._reserve(spec)
        except Refusal as refused:
            if not self._waiting_helps(refused, max_wait, [spec]):
                raise
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

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See `Store`."""
        with self._lock:
            self.release_memory()

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
