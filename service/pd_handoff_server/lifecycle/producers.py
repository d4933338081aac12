"""Which start of which prefill process is the current one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .deadlines import NEVER

Instance = tuple[str, str]
"""(namespace, instance id)."""


class Producers:
    """The highest epoch accepted of each instance, for a bounded time and number: the least recently seen goes first.

    Attributes:
        due: a moment at or before that at which the least recently seen is forgotten; NEVER when there is none.
    """

    def __init__(self, capacity: int, time: int) -> None:
        """`time` is in nanoseconds, from the last accepted Reserve on."""
        self.due = NEVER
        self._capacity = capacity
        self._time = time
        self._known: OrderedDict[Instance, tuple[int, int]] = OrderedDict()  # epoch, and when it was last seen

    def epoch(self, instance: Instance) -> int | None:
        """The highest epoch accepted so far; None for an unknown instance."""
        known = self._known.get(instance)
        return None if known is None else known[0]

    def accept(self, instance: Instance, epoch: int, now: int) -> bool:
        """Note an accepted Reserve; True when it raised the epoch of a known or unknown instance."""
        known = self._known.pop(instance, None)
        raised = known is None or epoch > known[0]
        self._known[instance] = (epoch if known is None or raised else known[0], now)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)
        if self.due == NEVER:
            self.due = now + self._time
        return raised

    def expire(self, now: int) -> list[Instance]:
        """Forget those that were not seen for so long; returns them."""
        forgotten = []
        self.due = NEVER
        for instance, (_, seen) in self._known.items():
            if seen + self._time > now:
                self.due = seen + self._time
                break
            forgotten.append(instance)
        for instance in forgotten:
            del self._known[instance]
        return forgotten

    def __iter__(self) -> Iterator[tuple[Instance, int]]:
        """All of them with their epochs, least recently seen first."""
        return ((instance, epoch) for instance, (epoch, _) in self._known.items())

    def __len__(self) -> int:
        """How many instances are known."""
        return len(self._known)
