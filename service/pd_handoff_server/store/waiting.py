"""Calls that wait: readers by key, and a queue for slots, first come first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from pd_handoff_server.arena.packed_record import Draft
from pd_handoff_server.lifecycle.deadlines import Deadlines
from pd_handoff_server.lifecycle.model import Key, Spec
from pd_handoff_server.lifecycle.pages import HEAP_LINE

from .interface import Done, Query


def _nobody(result: Any) -> None:
    """Who is told when the caller has been, or has gone."""


class Waiter:
    """A parked call. `deadline` is the monotonic moment in nanoseconds at which it gives up.

    Attributes:
        sharer: whom its place is counted for.
        weight: bytes that it keeps in memory.
    """

    __slots__ = ("_cancel", "deadline", "done", "keys", "queued_at", "sharer", "weight")

    def __init__(self, keys: Sequence[Key], deadline: int, done: Done, cancel: Callable[[Waiter], bool]) -> None:
        self.keys = keys
        self.deadline: int | None = deadline
        self.queued_at: int | None = None
        self.done = done
        self.sharer = ""
        self.weight = 0
        self._cancel = cancel

    def cancel(self) -> bool:
        """Give up; True when it had not been answered."""
        return self._cancel(self)

    def let_go(self) -> None:
        """Hold nothing of the call any more, which may be large: the deadlines drop what has ended only by and by."""
        self.done = _nobody


class Reader(Waiter):
    """A Get for a record that is not there yet.

    Attributes:
        glance: it takes no record, and waits only until there is one.
    """

    __slots__ = ("glance", "query")

    def __init__(
        self, query: Query, deadline: int, done: Done, cancel: Callable[[Waiter], bool], *, glance: bool = False
    ) -> None:
        super().__init__((query.key,), deadline, done, cancel)
        self.query = query
        self.glance = glance


class Claimant(Waiter):
    """A Reserve, a batch of them, or a one-shot Put (with `draft`) that needs slots.

    Attributes:
        lines: where it stands: in the lines of all its namespaces with a quota, or in that for the heap; empty while it
            stands in the queue.
        paged: it needs pages of the heap.
        serial: grows in order of arrival.
    """

    __slots__ = ("batch", "draft", "lines", "paged", "serial", "specs")

    def __init__(
        self,
        specs: Sequence[Spec],
        deadline: int,
        done: Done,
        cancel: Callable[[Waiter], bool],
        *,
        batch: bool = False,
        draft: Draft | None = None,
    ) -> None:
        super().__init__([spec.key for spec in specs], deadline, done, cancel)
        self.specs = specs
        self.paged = any(spec.pages for spec in specs)
        self.batch = batch
        self.draft = draft
        self.lines: Sequence[str] = ()
        self.serial = 0
        self.weight = 0 if draft is None else draft.size

    def let_go(self) -> None:
        """See `Waiter`."""
        super().let_go()
        self.draft = None


class Waiting:
    """All parked calls, found by key, by order of arrival (claimants), by deadline, and by whom they count for.

    Claimants stand in `queue`, for the next free slot. Those that a quota holds up stand in the lines of their
    namespaces instead, so that they hold up no other namespace. A batch stands in several lines, and has its turn when
    it is first in all of them. Those that the heap holds up stand in a line for it, `HEAP_LINE`, and hold up nobody who
    needs no page. Every line is in order of arrival, and whoever goes from one to another keeps its turn.

    Attributes:
        count: how many wait.
        claimants: how many wait for slots, in lines too.
        weight: bytes that all of them keep in memory.
        deadlines: when they give up.
    """

    def __init__(self) -> None:
        self.count = 0
        self.claimants = 0
        self.weight = 0
        self._queue: OrderedDict[Claimant, None] = OrderedDict()
        self._lines: dict[str, OrderedDict[Claimant, None]] = {}
        self._by_key: dict[Key, dict[Waiter, None]] = {}
        self._by_sharer: dict[str, dict[Waiter, None]] = {}
        self._burdens: dict[str, int] = {}
        self.deadlines: Deadlines[Waiter] = Deadlines()
        self._serial = 0

    def __len__(self) -> int:
        """How many wait."""
        return self.count

    def add(self, waiter: Waiter) -> None:
        """Park a call."""
        self.count += 1
        self.weight += waiter.weight
        for key in waiter.keys:
            self._by_key.setdefault(key, {})[waiter] = None
        self._by_sharer.setdefault(waiter.sharer, {})[waiter] = None
        self._burdens[waiter.sharer] = self._burdens.get(waiter.sharer, 0) + waiter.weight
        if isinstance(waiter, Claimant):
            self.claimants += 1
            self._serial += 1
            waiter.serial = self._serial
            self._queue[waiter] = None
        self.deadlines.watch(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Take a call out, which lets go of all that it held; False when it was out already."""
        held = self._by_key.get(waiter.keys[0])
        if held is None or waiter not in held:
            return False
        self.count -= 1
        self.weight -= waiter.weight
        for key in waiter.keys:
            _drop(self._by_key, key, waiter)
        _drop(self._by_sharer, waiter.sharer, waiter)
        self._burdens[waiter.sharer] -= waiter.weight
        if waiter.sharer not in self._by_sharer:
            del self._burdens[waiter.sharer]
        if isinstance(waiter, Claimant):
            self.claimants -= 1
            self._take_out(waiter)
        self.deadlines.forget(waiter)
        waiter.let_go()
        return True

    # -- the queue for slots -------------------------------------------------------------------------------------------

    def _take_out(self, claimant: Claimant) -> None:
        if not claimant.lines:
            del self._queue[claimant]
        for namespace in claimant.lines:
            _drop(self._lines, namespace, claimant)

    def line_up(self, claimant: Claimant, namespaces: Sequence[str]) -> None:
        """Let a claimant wait in the lines of these namespaces; without any, in the queue. It keeps its turn."""
        self._take_out(claimant)
        claimant.lines = namespaces
        if not namespaces:
            _enter(self._queue, claimant)
        for namespace in namespaces:
            _enter(self._lines.setdefault(namespace, OrderedDict()), claimant)

    def next_claimant(self, has_room: Callable[[str], bool], passed: Collection[str]) -> Claimant | None:
        """Who is to be looked at next, leaving out the lines in `passed` and of namespaces without room."""
        heads = [next(iter(self._queue))] if self._queue else []
        for namespace, line in self._lines.items():
            if namespace not in passed and has_room(namespace):
                heads.append(next(iter(line)))
        return min(heads, key=lambda claimant: claimant.serial, default=None)

    def is_behind(self, claimant: Claimant, namespaces: Sequence[str]) -> bool:
        """Whether somebody came before this claimant in a line of these namespaces."""
        lines = (self._lines.get(namespace) for namespace in namespaces)
        return any(line is not None and next(iter(line)).serial < claimant.serial for line in lines)

    def anyone_before(self, specs: Sequence[Spec]) -> bool:
        """Whether a newcomer who asks for these would overtake somebody."""
        return bool(self._queue) or self.line_before(specs) is not None

    def line_before(self, specs: Sequence[Spec]) -> str | None:
        """A line, of a namespace of these or for the heap, in which others wait already."""
        if not self._lines:
            return None
        namespace = next((spec.key[0] for spec in specs if spec.key[0] in self._lines), None)
        if namespace is None and HEAP_LINE in self._lines and any(spec.pages for spec in specs):
            return HEAP_LINE
        return namespace

    @property
    def anyone_for_pages(self) -> bool:
        """Whether somebody waits for pages of the heap."""
        return HEAP_LINE in self._lines

    # -- looking -------------------------------------------------------------------------------------------------------

    def of(self, key: Key) -> list[Waiter]:
        """Those that wait on this key, in order of arrival."""
        held = self._by_key.get(key)
        return list(held) if held else []

    def share(self, sharer: str) -> int:
        """How many wait for this sharer."""
        return len(self._by_sharer.get(sharer, ()))

    def burden(self, sharer: str) -> int:
        """How many bytes are kept for this sharer."""
        return self._burdens.get(sharer, 0)

    def newest_of_greediest(self, measure: Callable[[str], int]) -> Waiter | None:
        """The last one parked for whoever has most by this measure."""
        greediest = max(self._by_sharer, key=measure, default=None)
        return None if greediest is None else next(reversed(self._by_sharer[greediest]))

    def due(self, now: int) -> Iterator[Waiter]:
        """Those whose wait has run out; each must be removed."""
        while (waiter := self.deadlines.pop_due(now)) is not None:
            yield waiter

    def next(self) -> int | None:
        """A moment at or before the earliest deadline."""
        return self.deadlines.next()

    def everyone(self) -> list[Waiter]:
        """All of them, each once."""
        return list(dict.fromkeys(waiter for held in self._by_key.values() for waiter in held))


def _enter(line: OrderedDict[Claimant, None], claimant: Claimant) -> None:
    """Put a claimant where it belongs by its time of arrival."""
    last = next(reversed(line), None)
    line[claimant] = None
    if last is not None and claimant.serial < last.serial:
        for younger in [one for one in line if one.serial > claimant.serial]:
            line.move_to_end(younger)


def _drop(groups: dict[Any, Any], name: Any, waiter: Waiter) -> None:
    """Take a waiter out of its group, and the group away with its last one."""
    group = groups[name]
    del group[waiter]
    if not group:
        del groups[name]
