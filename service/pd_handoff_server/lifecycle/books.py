"""What is known of every hand-off: the state that the rules change, and a look at it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from .clock import Clock
from .deadlines import NEVER, Deadlines
from .model import Handoff, Key, Observer, Policy, Rows, Spec, State, Tombstone, watchers
from .producers import Producers
from .quotas import Quotas
from .slots import Slots
from .tokens import TokenMint
from .tombstones import Tombstones


class Books:
    """Who holds which slot, what has ended, and what is due.

    `touched` collects the keys whose readers may have an answer now; the store takes and clears it. `published` counts
    the hand-offs in that state. `due` is a moment at or before that at which something ends or is forgotten by itself.
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
    ) -> None:
        self.policy = policy
        self.published = 0
        self.slots = Slots(slots)
        self.touched: list[Key] = []
        self._monotonic = clock.monotonic
        self._wall = clock.wall
        self._mint = mint.mint
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
        self._live: dict[Key, Handoff] = {}
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
            self._live[handoff.key] = handoff
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
        for tombstone in tombstones:
            self._tombstones.add(tombstone)
        for (namespace, instance_id), epoch in producers:
            # When it was last seen is not kept: it counts from here, so that nobody is forgotten too early.
            self._producers.accept((namespace, instance_id), epoch, self._monotonic())
        self.due = self._earliest()

    def _earliest(self) -> int:
        """What `due` says at best."""
        oldest = next(iter(self._consumed.values()), None)
        grace = NEVER if oldest is None or oldest.deadline is None else oldest.deadline
        return min(self._deadlines.due, self._tombstones.due, self._producers.due, grace)
