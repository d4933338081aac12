"""Things in the order in which they came, shared out by namespace when there are too many."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_SLACK: Final = 1024  # entries of the heap beyond one per namespace, before it is made anew


class FairOrder(Generic[T]):
    """An ordered set. Its `surplus` is the oldest one of the namespace that has most.

    What is needed for that is built when it is first asked for, and dropped when the set has shrunk: while a single
    namespace is in use, it costs nothing.
    """

    def __init__(self, namespace: Callable[[T], str]) -> None:
        """`namespace` tells whose a thing is."""
        self._namespace = namespace
        self._order: OrderedDict[T, None] = OrderedDict()
        self._held: dict[str, int] = {}
        self._lines: dict[str, OrderedDict[T, None]] | None = None
        self._heap: list[tuple[int, str]] = []  # (-held, namespace); outdated ones among them
        self._built = 0  # how many there were when the lines were made

    def add(self, thing: T) -> None:
        """Put a new one at the end."""
        namespace = self._namespace(thing)
        self._order[thing] = None
        held = self._held[namespace] = self._held.get(namespace, 0) + 1
        if self._lines is not None:
            self._lines.setdefault(namespace, OrderedDict())[thing] = None
            heapq.heappush(self._heap, (-held, namespace))
            if len(self._heap) > 2 * len(self._held) + _SLACK:
                self._make_heap()

    def remove(self, thing: T) -> None:
        """Take one out. Raises KeyError when it is not there."""
        del self._order[thing]
        namespace = self._namespace(thing)
        held = self._held[namespace] - 1
        if held:
            self._held[namespace] = held
        else:
            del self._held[namespace]
        if self._lines is None:
            return
        if held:
            del self._lines[namespace][thing]
        else:
            del self._lines[namespace]
        if len(self._order) < self._built // 2:
            self._lines, self._heap = None, []

    def surplus(self) -> T:
        """Who is to go first when there are too many. Raises StopIteration when there are none."""
        if len(self._held) == 1:
            return next(iter(self._order))
        if self._lines is None:
            self._lines = {}
            for thing in self._order:
                self._lines.setdefault(self._namespace(thing), OrderedDict())[thing] = None
            self._built = len(self._order)
            self._make_heap()
        while True:
            recorded, namespace = self._heap[0]
            held = self._held.get(namespace, 0)
            if held == -recorded:
                return next(iter(self._lines[namespace]))
            if held:
                heapq.heapreplace(self._heap, (-held, namespace))
            else:
                heapq.heappop(self._heap)

    def _make_heap(self) -> None:
        self._heap = [(-held, namespace) for namespace, held in self._held.items()]
        heapq.heapify(self._heap)

    def first(self) -> T | None:
        """The oldest of all; None when there are none."""
        return next(iter(self._order), None)

    def __iter__(self) -> Iterator[T]:
        """All of them, oldest first."""
        return iter(self._order)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._order)
