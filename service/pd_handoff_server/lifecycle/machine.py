"""The state machine of contract section 4: its state, and every rule that changes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal

from .admission import Plan, judge, outcome_refusal, refuse_latecomer, refuse_other_request
from .clock import Clock
from .deadlines import NEVER, Deadlines
from .model import (
    CONSUMED,
    PUBLISHED,
    RESERVED,
    Failure,
    Handoff,
    Key,
    Observer,
    Outcome,
    Policy,
    Rows,
    Spec,
    State,
    Tombstone,
    watchers,
)
from .pages import HEAP_LINE, Pages
from .producers import Producers
from .quotas import Quotas
from .slots import Slots
from .tokens import TokenMint
from .tombstones import Tombstones

_SECOND = 1_000_000_000


def _further_pages(plan: Plan) -> int:
    """Pages that this takes beyond what its hand-off holds."""
    kept = plan.kept
    if kept is None:
        return plan.spec.pages
    return max(plan.spec.pages - kept.pages, 0) if kept.state is RESERVED else 0


class Lifecycle:
    """Every rule about who owns which hand-off, and until when. Not thread-safe: the store locks around it.

    Time comes from `clock`; whatever is overdue ends before a call is judged, so a late timer changes no answer.

    Attributes:
        touched: keys whose readers may have an answer now; the store takes and clears it.
        published: how many hand-offs are in that state.
        due: a moment at or before that at which something ends or is forgotten by itself; monotonic, nanoseconds.
    """

    def __init__(
        self,
        slots: int,
        policy: Policy,
        clock: Clock,
        mint: TokenMint,
        rows: Rows,
        observers: Sequence[Observer] = (),
        quotas: Quotas | None = None,
        pages: Pages | None = None,
    ) -> None:
        self.policy = policy
        self.published = 0
        self.slots = Slots(slots)
        self.touched: list[Key] = []
        self._monotonic = clock.monotonic
        self._wall = clock.wall
        self._mint = mint.mint
        self._foreign = mint.foreign
        self._rows = rows
        self._on_reserved = watchers(observers, "reserved")
        self._on_renewed = watchers(observers, "renewed")
        self._on_published = watchers(observers, "published")
        self._on_consumed = watchers(observers, "consumed")
        self._on_ended = watchers(observers, "ended")
        self._on_buried = watchers(observers, "buried")
        self._on_forgotten = watchers(observers, "forgotten")
        self._on_producer_epoch = watchers(observers, "producer_epoch")
        self._on_producer_forgotten = watchers(observers, "producer_forgotten")
        self._now = clock.monotonic()  # as of the last look for what is overdue, with which every call begins
        self.due = NEVER
        self.quotas = Quotas({}) if quotas is None else quotas
        self.pages = Pages() if pages is None else pages
        self._live: dict[Key, Handoff] = {}
        self._holders: list[Handoff | None] = [None] * slots  # of `_live`, by slot
        self._tombstones = Tombstones(policy.tombstones)
        self._producers = Producers(policy.producers, policy.producer_time)
        self._deadlines: Deadlines[Handoff] = Deadlines()  # of reservations and records
        self._consumed: OrderedDict[int, Handoff] = OrderedDict()  # by slot, oldest first
        self._reserved_by: dict[tuple[str, str], dict[int, Handoff]] = {}  # by instance, then slot

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Slots that a Reserve could have: free ones, and those of consumed hand-offs."""
        return self.slots.free + len(self._consumed)

    @property
    def in_use(self) -> int:
        """Slots that no Reserve could have."""
        return self.slots.total - self.available

    @property
    def live(self) -> int:
        """Hand-offs that hold a slot."""
        return len(self._live)

    @property
    def consumed(self) -> int:
        """Slots of consumed hand-offs that can still be read."""
        return len(self._consumed)

    @property
    def remembered(self) -> tuple[int, int]:
        """How many outcomes and how many producers are remembered."""
        return len(self._tombstones), len(self._producers)

    def state_of(self, key: Key) -> str:
        """The state of a key in one word: NONE, RESERVED, PUBLISHED, CONSUMED, ABORTED or EXPIRED."""
        live = self._live.get(key)
        if live is not None:
            return live.state.value
        ended = self._tombstones.newest(key)
        return "NONE" if ended is None else ended.outcome.state

    def newest(self, key: Key) -> Handoff | Tombstone | None:
        """The newest attempt of a key, for people to look at. Changes nothing, not even what is overdue."""
        live = self._live.get(key)
        ended = self._tombstones.newest(key)
        if live is None or (ended is not None and ended.attempt > live.attempt):
            return ended
        return live

    def handoffs(self) -> Iterator[Handoff]:
        """Live hand-offs, oldest first."""
        return iter(self._live.values())

    def entry(self, position: int) -> Handoff | Tombstone | None:
        """What stands at a position below `positions`: live hand-offs by slot, then outcomes by place.

        Nothing moves to another position while it is there.
        """
        slots = len(self._holders)
        return self._holders[position] if position < slots else self._tombstones.places[position - slots]

    @property
    def positions(self) -> int:
        """How many there are, empty ones among them."""
        return len(self._holders) + len(self._tombstones.places)

    def tombstones(self) -> Iterator[Tombstone]:
        """Remembered outcomes, oldest first."""
        return iter(self._tombstones)

    def producers(self) -> Iterator[tuple[tuple[str, str], int]]:
        """((namespace, instance id), epoch) of every known producer, least recently seen first."""
        return iter(self._producers)

    def _newest_attempt(self, key: Key) -> int:
        live, ended = self._live.get(key), self._tombstones.newest(key)
        return max(-1 if live is None else live.attempt, -1 if ended is None else ended.attempt)

    # -- of one process, by its starts ---------------------------------------------------------------------------------

    def _outdated(self, spec: Spec) -> list[Handoff]:
        """The reservations that this Reserve ends because they are of an earlier start of its producer."""
        if spec.producer is None:
            return []
        held = self._reserved_by.get((spec.key[0], spec.producer[0]))
        if not held:
            return []
        epoch = spec.producer[1]
        return [handoff for handoff in held.values() if handoff.producer is not None and handoff.producer[1] < epoch]

    def _index_producer(self, handoff: Handoff) -> None:
        if handoff.producer is not None:
            instance = (handoff.key[0], handoff.producer[0])
            self._reserved_by.setdefault(instance, {})[handoff.slot] = handoff

    def _unindex_producer(self, handoff: Handoff) -> None:
        if handoff.producer is None:
            return
        instance = (handoff.key[0], handoff.producer[0])
        held = self._reserved_by.get(instance)
        if held is not None and held.pop(handoff.slot, None) is not None and not held:
            del self._reserved_by[instance]

    # -- Reserve -------------------------------------------------------------------------------------------------------

    def admit(self, spec: Spec) -> Plan:
        """Judge a Reserve without changing anything but what is overdue.

        Raises Refusal: HANDOFF_EXISTS, STALE_RESERVATION, PRODUCER_RESTARTED, or the outcome of an ended attempt.
        """
        self.expire()
        producer = spec.producer
        if producer is not None:
            known = self._producers.epoch((spec.key[0], producer[0]))
            if known is not None and producer[1] < known:
                raise refusal.producer_restarted()
        live, ended = self._live.get(spec.key), self._tombstones.newest(spec.key)
        if ended is not None:
            refuse_latecomer(spec, live, self._tombstones.own(spec.key, spec.attempt, spec.owner))
        return judge(spec, live, ended, self._now)

    def renews(self, spec: Spec) -> bool:
        """Whether this Reserve would only renew what its owner holds."""
        try:
            return self.admit(spec).kept is not None
        except Refusal:
            return False

    def commit(self, plan: Plan, *, barge: bool = True) -> Handoff:
        """Carry out what `admit` allowed a moment ago: renew, or take a slot.

        With `barge` False others wait for slots already: only a slot that the plan itself frees may be taken. Raises
        Refusal ARENA_FULL, having changed nothing.
        """
        if not (barge and self.slots.free) and plan.kept is None and plan.replaces is None:
            supply = len(self._outdated(plan.spec)) + (self.available if barge else 0)
            if supply < 1:
                raise self.full()
        if self.quotas.limits:
            self._check_quotas([plan])
        if plan.spec.pages:
            self._check_pages([plan], barge=barge)
        return self._carry_out(plan)

    def reserve_all(self, specs: Sequence[Spec], *, barge: bool = True) -> list[Handoff]:
        """Reserve all or none. Keys must differ. Raises the first Refusal, having changed nothing."""
        plans = [self.admit(spec) for spec in specs]
        newest: dict[tuple[str, str], int] = {}
        for spec in specs:
            if spec.producer is not None:
                instance = (spec.key[0], spec.producer[0])
                newest[instance] = max(newest.get(instance, 0), spec.producer[1])
        for spec in specs:
            if spec.producer is not None and spec.producer[1] < newest[spec.key[0], spec.producer[0]]:
                raise refusal.producer_restarted()
        own = {handoff.slot for spec in specs for handoff in self._outdated(spec)}
        if any(plan.kept is not None and plan.kept.slot in own for plan in plans):
            raise refusal.producer_restarted()  # the batch itself ends what another item would renew
        wanted = sum(plan.kept is None for plan in plans)
        own.update(plan.replaces.slot for plan in plans if plan.replaces is not None)
        kept = {plan.kept.slot for plan in plans if plan.kept is not None}
        supply = len(own)
        if barge:  # counted, not collected: there may be as many consumed ones as there are slots
            supply += self.available - sum(slot in self._consumed for slot in own | kept)
        if wanted > supply:
            raise self.full()
        if self.quotas.limits:
            self._check_quotas(plans)
        if any(spec.pages for spec in specs):
            self._check_pages(plans, barge=barge)
        # Whatever ends comes first: a slot freed by one item may serve another.
        for plan in plans:
            self._replace(plan)
        for spec in specs:
            self._accept_producer(spec)
        spare = (handoff for slot, handoff in self._consumed.items() if slot not in kept)
        for handoff in list(islice(spare, max(wanted - self.slots.free, 0))):
            self._end(handoff, Outcome.COMPLETED)
        self._reclaim_pages(sum(map(_further_pages, plans)), kept)
        return [self._carry_out(plan) for plan in plans]

    def _check_quotas(self, plans: Sequence[Plan]) -> None:
        exceeded = self.quotas.exceeded(plans, self._outdated)
        if exceeded is not None:
            raise self.full(exceeded)

    def _check_pages(self, plans: Sequence[Plan], *, barge: bool) -> None:
        """Raises Refusal ARENA_FULL when these together want more of the heap than they could have."""
        wanted = sum(map(_further_pages, plans))
        if not wanted:
            return
        own = {handoff.slot: handoff for plan in plans for handoff in self._outdated(plan.spec)}
        own.update((plan.replaces.slot, plan.replaces) for plan in plans if plan.replaces is not None)
        supply = sum(handoff.pages for handoff in own.values())
        if barge:
            kept = {plan.kept.slot for plan in plans if plan.kept is not None}
            supply += self.pages.available
            supply -= sum(one.pages for slot, one in self.pages.consumed.items() if slot in own or slot in kept)
        if wanted > supply:
            raise self.full(HEAP_LINE)

    def _reclaim_pages(self, wanted: int, spared: Collection[int] = ()) -> None:
        """Until so many pages are free, end consumed hand-offs that hold some, oldest first; not those in `spared`."""
        if wanted > self.pages.free:
            for slot, handoff in list(self.pages.consumed.items()):
                if slot not in spared:
                    self._end(handoff, Outcome.COMPLETED)
                    if wanted <= self.pages.free:
                        return

    def fit_pages(self, handoff: Handoff, wanted: int, *, barge: bool = True) -> None:
        """Let a RESERVED hand-off hold as many pages as its record needs.

        With `barge` False others wait for pages already. Raises Refusal ARENA_FULL, having changed nothing.
        """
        further = wanted - handoff.pages
        if further > 0:
            if not barge or further > self.pages.available:
                raise self.full(HEAP_LINE)
            self._reclaim_pages(further)
            self.pages.take(further)
        elif further:
            self.pages.give(-further)
        handoff.pages = wanted

    def full(self, namespace: str | None = None) -> Refusal:
        """ARENA_FULL, with a hint when a slot may come back; with a namespace, because of its quota, or of the heap."""
        due = self._deadlines.next()
        wait = 1.0 if due is None else (due - self._monotonic()) / _SECOND
        wait = min(max(wait, 0.05), 1.0)
        if namespace == HEAP_LINE:
            pages = self.pages
            heap = (pages.total * pages.page_bytes, pages.in_use * pages.page_bytes)
            return refusal.heap_full(*heap, self.slots.total, self.in_use, HEAP_LINE, wait)
        if namespace is not None:
            return refusal.namespace_full(namespace, self.quotas.limits[namespace], self.quotas.held[namespace], wait)
        return refusal.arena_full(self.slots.total, self.in_use, wait)

    def _carry_out(self, plan: Plan) -> Handoff:
        spec = plan.spec
        if spec.producer is not None:
            self._accept_producer(spec)
        if plan.kept is not None:
            if spec.pages and (further := _further_pages(plan)):
                self._reclaim_pages(further)
                self.pages.take(further)
                plan.kept.pages += further
            self._renew(plan.kept, spec)
            return plan.kept
        if plan.replaces is not None:
            self._replace(plan)
        key = spec.key
        if (
            self._tombstones.newest(key) is not None
            and (fenced := self._tombstones.fence(key, spec.attempt)) is not None
        ):
            for tell in self._on_forgotten:
                tell(fenced)
        slots = self.slots
        if not slots.free:
            self._end(next(iter(self._consumed.values())), Outcome.COMPLETED)
        if spec.pages:
            self._reclaim_pages(spec.pages)
            self.pages.take(spec.pages)
        slot = slots.take()
        generation = slots.generations[slot]
        lease = self.policy.lease_default if spec.lease is None else self.policy.grant(spec.lease)
        handoff = Handoff(spec, slot, generation, self._mint(slot, generation), lease, self._now, self._wall())
        self._live[key] = self._holders[slot] = handoff
        if self.quotas.limits:
            self.quotas.take(key[0])
        if spec.producer is not None:
            self._index_producer(handoff)
        self._watch(handoff)
        for tell in self._on_reserved:
            tell(handoff)
        if spec.request_digest:
            self.touched.append(key)  # readers of another request need not wait for the record
        return handoff

    def _renew(self, handoff: Handoff, spec: Spec) -> None:
        if handoff.state is not RESERVED:
            return  # a record already published: the same answer, and nothing changes
        handoff.lease = self.policy.grant(spec.lease)
        handoff.deadline = self._monotonic() + handoff.lease
        self._watch(handoff)
        for tell in self._on_renewed:
            tell(handoff)

    def _replace(self, plan: Plan) -> None:
        replaced, plan.replaces = plan.replaces, None
        if replaced is not None and self._live.get(replaced.key) is replaced:
            self._end(replaced, plan.replaced_outcome)

    # -- producers -----------------------------------------------------------------------------------------------------

    def _accept_producer(self, spec: Spec) -> None:
        if spec.producer is None:
            return
        instance_id, epoch = spec.producer
        outdated = self._outdated(spec)
        raised, gone = self._producers.accept((spec.key[0], instance_id), epoch, self._now)
        if gone is not None:
            for tell in self._on_producer_forgotten:
                tell(*gone)
        if raised:
            for tell in self._on_producer_epoch:
                tell(spec.key[0], instance_id, epoch)
        self.due = min(self.due, self._producers.due)
        for handoff in outdated:
            self._end(handoff, Outcome.RESTARTED)

    # -- Put -----------------------------------------------------------------------------------------------------------

    def holder(self, key: Key, token: bytes) -> Handoff | Tombstone:
        """Whatever this token names: a live hand-off, or the outcome of an ended one.

        Raises Refusal STALE_RESERVATION when it names nothing, something of another key, or a superseded attempt.
        """
        self.expire()
        live = self._live.get(key)
        if live is not None and live.token == token:
            return live
        ended = self._tombstones.of_token(token)
        if ended is not None and ended.key == key and ended.attempt >= self._newest_attempt(key):
            return ended
        epochs = self._foreign(token)
        raise refusal.stale(self.state_of(key)) if epochs is None else refusal.foreign(self.state_of(key), *epochs)

    def owned(self, spec: Spec) -> Handoff | Tombstone | None:
        """What a repeated one-shot Put meets: its own hand-off, live or ended with a record; else None.

        Raises Refusal HANDOFF_EXISTS when its own hand-off is of another request.
        """
        self.expire()
        live = self._live.get(spec.key)
        if live is not None and live.owner == spec.owner and live.attempt == spec.attempt:
            refuse_other_request(spec, live, self._now)
            return live if live.state is not RESERVED else None
        ended = self._tombstones.own(spec.key, spec.attempt, spec.owner)
        return ended if ended is not None and ended.digest is not None else None

    def publish(self, handoff: Handoff) -> None:
        """The row of a RESERVED hand-off is written: let readers see it."""
        handoff.published_mono = now = self._now
        handoff.state = PUBLISHED
        self.published += 1
        handoff.published_wall = self._wall()
        handoff.deadline = deadline = now + self.policy.retention
        if handoff.queued_at is None or deadline < handoff.queued_at:  # else it is looked at soon enough as it is
            self._watch(handoff)
        if handoff.producer is not None:
            self._unindex_producer(handoff)
        for tell in self._on_published:
            tell(handoff)
        if len(handoff.readers) >= handoff.expected_readers:
            self._complete(handoff)  # every reader had given up its claim before
        self.touched.append(handoff.key)

    # -- Get -----------------------------------------------------------------------------------------------------------

    def find(self, key: Key, attempt: int) -> Handoff | None:
        """The newest live attempt at or above this one, in any state; None when there is none yet.

        Raises Refusal: the outcome, when the newest attempt has ended.
        """
        self.expire()
        live = self._live.get(key)
        ended = self._tombstones.newest(key)
        if ended is not None and ended.attempt >= attempt and (live is None or ended.attempt > live.attempt):
            raise outcome_refusal(ended, reading=True)
        if live is None or live.attempt < attempt:
            return None
        return live

    def consume(self, handoff: Handoff, reader: bytes) -> None:
        """Count a reader of a PUBLISHED or CONSUMED hand-off; the last expected one completes it."""
        readers = handoff.readers
        again = handoff.state is CONSUMED or reader in readers
        if not again:
            readers.add(reader)
        for tell in self._on_consumed:
            tell(handoff, reader, again=again)
        if len(readers) >= handoff.expected_readers and handoff.state is PUBLISHED:
            self._complete(handoff)

    def _complete(self, handoff: Handoff) -> None:
        handoff.state = CONSUMED
        self.published -= 1
        if self.quotas.limits:
            self.quotas.give(handoff.key[0])
        if handoff.pages:
            self.pages.lend(handoff)
        # All have the same grace: the one that was consumed first is the one whose grace is over first.
        self._deadlines.forget(handoff)
        handoff.deadline = deadline = self._now + self.policy.consumed_grace
        if deadline < self.due:  # noqa: PLR1730 - `min` takes ten times as long
            self.due = deadline
        self._consumed[handoff.slot] = handoff

    # -- Release and Abort ---------------------------------------------------------------------------------------------

    def release_token(self, key: Key, token: bytes) -> None:
        """The producer gives its claim back. Raises Refusal STALE_RESERVATION."""
        holder = self.holder(key, token)
        if isinstance(holder, Tombstone):
            return
        if holder.state is RESERVED:
            failure = Failure(503, "RELEASED", "the producer released the reservation before it put a record")
            self._end(holder, Outcome.ABORTED, failure)
        elif holder.state is CONSUMED:
            self._end(holder, Outcome.COMPLETED)

    def release_reader(self, key: Key, reader: bytes) -> None:
        """A reader gives its claim up: counts as its consumption, also ahead of the Put."""
        self.expire()
        live = self._live.get(key)
        if live is None:
            return
        if live.state is not RESERVED:
            self.consume(live, reader)
        elif reader not in live.readers and len(live.readers) < live.expected_readers:
            live.readers.add(reader)
            for tell in self._on_consumed:
                tell(live, reader, again=False)

    def abort(self, key: Key, failure: Failure, *, token: bytes = b"", attempt: int | None = None) -> bool:
        """End an attempt for everyone; True when this call did. Raises Refusal STALE_RESERVATION: foreign token."""
        if token:
            holder = self.holder(key, token)
            if isinstance(holder, Tombstone):
                return False
            return self._abort_live(holder, failure)
        self.expire()
        live = self._live.get(key)
        ended = self._tombstones.newest(key)
        if attempt is None:
            if live is not None:
                return self._abort_live(live, failure)
            if ended is not None:
                return False
            attempt = 0
        if live is not None and live.attempt == attempt:
            return self._abort_live(live, failure)
        if attempt < self._newest_attempt(key) or (ended is not None and ended.attempt == attempt):
            return False
        if live is not None:
            self._end(live, None)  # a higher attempt is known, though it has ended: this one is superseded
        now = self._monotonic()
        early = Tombstone(key, attempt, Outcome.ABORTED, now + self.policy.tombstone_time, now, failure)
        self._bury(early)
        self.touched.append(key)
        return True

    def _abort_live(self, live: Handoff, failure: Failure) -> bool:
        if live.state is CONSUMED:
            return False  # it was complete first
        self._end(live, Outcome.ABORTED, failure)
        return True

    def quarantine(self, handoff: Handoff) -> Refusal:
        """The row no longer holds what was put: end the hand-off, never use its slot again; returns what to answer."""
        failure = Failure(500, "ROW_DAMAGED", "the stored record was damaged; prefill again")
        self.slots.quarantine(handoff.slot)
        self._end(handoff, Outcome.ABORTED, failure)
        return refusal.aborted(failure.http_status, failure.reason, failure.message)

    # -- time ----------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """End whatever is overdue."""
        now = self._now = self._monotonic()
        if self.due <= now:
            self._expire(now)

    def _expire(self, now: int) -> None:
        while (handoff := self._deadlines.pop_due(now)) is not None:
            self._end(handoff, Outcome.EXPIRED)
        while self._consumed:
            oldest = next(iter(self._consumed.values()))
            if oldest.deadline is not None and oldest.deadline > now:
                break
            self._end(oldest, Outcome.COMPLETED)
        for tombstone in self._tombstones.expire(now):
            for tell in self._on_forgotten:
                tell(tombstone)
        if self._producers.due <= now:
            for instance in self._producers.expire(now):
                for tell in self._on_producer_forgotten:
                    tell(*instance)
        self.due = self._earliest()

    def next_deadline(self) -> int | None:
        """The monotonic moment at or before which something ends by itself; None when nothing will."""
        return None if self.due == NEVER else self.due

    def _watch(self, handoff: Handoff) -> None:
        self._deadlines.watch(handoff)
        if self._deadlines.due < self.due:  # noqa: PLR1730
            self.due = self._deadlines.due

    # -- ending --------------------------------------------------------------------------------------------------------

    def _end(self, handoff: Handoff, outcome: Outcome | None, failure: Failure | None = None) -> None:
        """Give the slot back; without an outcome the hand-off was superseded, and its token becomes stale."""
        slot = handoff.slot
        tombstone = None
        if outcome is not None:
            now = self._monotonic()
            published = handoff.state is not RESERVED
            tombstone = Tombstone(
                handoff.key,
                handoff.attempt,
                outcome,
                now + self.policy.tombstone_time,
                now,
                failure,
                handoff.owner,
                handoff.token,
                handoff.producer,
                self._rows.digest(slot) if published and outcome is not Outcome.ABORTED else None,
                handoff.published_wall,
                handoff.reserved_wall,
            )
            self._bury(tombstone)
        del self._live[handoff.key]
        self._holders[slot] = None
        state = handoff.state
        if state is CONSUMED:
            del self._consumed[slot]
        else:
            if state is PUBLISHED:
                self.published -= 1
            if self.quotas.limits:
                self.quotas.give(handoff.key[0])
            self._deadlines.forget(handoff)
            if handoff.producer is not None:
                self._unindex_producer(handoff)
        if handoff.pages:
            self.pages.end(handoff)
        generation = self.slots.give_back(slot)
        for tell in self._on_ended:
            tell(handoff, tombstone)
        self._rows.scrub(slot, generation)
        self.touched.append(handoff.key)

    def _bury(self, tombstone: Tombstone) -> None:
        forgotten = self._tombstones.add(tombstone)
        if self._tombstones.due < self.due:  # noqa: PLR1730
            self.due = self._tombstones.due
        for old in forgotten:
            if old is not tombstone:
                for tell in self._on_forgotten:
                    tell(old)
        for tell in self._on_buried:
            tell(tombstone)
        if tombstone in forgotten:  # none are remembered
            for tell in self._on_forgotten:
                tell(tombstone)

    # -- going on from an earlier process ------------------------------------------------------------------------------

    def adopt(
        self,
        generations: list[int],
        handoffs: Sequence[Handoff],
        tombstones: Sequence[Tombstone],
        producers: Sequence[tuple[tuple[str, str], int]],
    ) -> None:
        """Take over the state of an earlier process of the same store, oldest first; observers are not told again."""
        self.slots.adopt(generations, {handoff.slot for handoff in handoffs})
        for handoff in handoffs:
            self._live[handoff.key] = self._holders[handoff.slot] = handoff
            self.published += handoff.state is State.PUBLISHED
            if self.quotas.limits and handoff.state is not State.CONSUMED:
                self.quotas.take(handoff.key[0])
            if handoff.state is not State.CONSUMED:
                self._deadlines.watch(handoff)
            if handoff.state is State.RESERVED:
                self._index_producer(handoff)
        latest = self._monotonic() + self.policy.consumed_grace  # the former process's grace may have been longer
        consumed = [handoff for handoff in handoffs if handoff.state is State.CONSUMED]
        for handoff in consumed:
            handoff.deadline = latest if handoff.deadline is None else min(handoff.deadline, latest)
        self._consumed.update(
            (handoff.slot, handoff) for handoff in sorted(consumed, key=lambda one: one.deadline or 0)
        )
        self._tombstones.resume(tombstones)
        for (namespace, instance_id), epoch in producers:
            # When it was last seen is not kept: it counts from here, so that nobody is forgotten too early.
            self._producers.accept((namespace, instance_id), epoch, self._monotonic())
        self.due = self._earliest()

    def _earliest(self) -> int:
        """What `due` says at best."""
        oldest = next(iter(self._consumed.values()), None)
        grace = NEVER if oldest is None or oldest.deadline is None else oldest.deadline
        return min(self._deadlines.due, self._tombstones.due, self._producers.due, grace)
