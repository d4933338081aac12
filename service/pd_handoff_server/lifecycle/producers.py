"""Which start of which prefill process is the current one."""

from __future__ import annotations

from collections.abc import Iterator

from .deadlines import NEVER
from .fair_order import FairOrder

Instance = tuple[str, str]
"""(namespace, instance id)."""


def _namespace(instance: Instance) -> str:
    return instance[0]


class Producers:
    """The highest epoch accepted of each instance, for a bounded time and number.

    When there are too many, the namespace that has most loses the one that it has not seen for longest.

    Attributes:
        due: a moment at or before that at which the least recently seen is forgotten; NEVER when there is none.
    """

    def __init__(self, capacity: int, time: int) -> None:
        """`time` is in nanoseconds, from the last accepted Reserve on."""
        self.due = NEVER
        self._capacity = capacity
        self._time = time
        self._known: dict[Instance, tuple[int, int]] = {}  # epoch, and when it was last seen
        self._order: FairOrder[Instance] = FairOrder(_namespace)  # least recently seen first

    def epoch(self, instance: Instance) -> int | None:
        """The highest epoch accepted so far; None for an unknown instance."""
        known = self._known.get(instance)
        return None if known is None else known[0]

    def accept(self, instance: Instance, epoch: int, now: int) -> tuple[bool, Instance | None]:
        """Note an accepted Reserve.

        Returns whether it raised the epoch of a known or unknown instance, and which one is no longer known for it.
        """
        known = self._known.get(instance)
        raised = known is None or epoch > known[0]
        gone = None
        if known is not None:
            self._order.remove(instance)
        elif len(self._known) >= self._capacity:
            gone = self._order.surplus()
            self._drop(gone)
        self._known[instance] = (epoch if known is None or raised else known[0], now)
        self._order.add(instance)
        if self.due == NEVER:
            self.due = now + self._time
        return raised, gone

    def _drop(self, instance: Instance) -> None:
        self._order.remove(instance)
        del self._known[instance]

    def expire(self, now: int) -> list[Instance]:
        """Forget those that were not seen for so long; returns them."""
        forgotten = []
        self.due = NEVER
        while (instance := self._order.first()) is not None:
            seen = self._known[instance][1]
            if seen + self._time > now:
                self.due = seen + self._time
                break
            self._drop(instance)
            forgotten.append(instance)
        return forgotten

    def __iter__(self) -> Iterator[tuple[Instance, int]]:
        """All of them with their epochs, least recently seen first."""
        return ((instance, self._known[instance][0]) for instance in self._order)

    def __len__(self) -> int:
        """How many instances are known."""
        return len(self._known)
