"""Which start of which prefill process is the current one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

Instance = tuple[str, str]
"""(namespace, instance id)."""


class Producers:
    """The highest epoch accepted of each instance; the least recently seen is forgotten first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._epochs: OrderedDict[Instance, int] = OrderedDict()

    def epoch(self, instance: Instance) -> int | None:
        """The highest epoch accepted so far; None for an unknown instance."""
        return self._epochs.get(instance)

    def accept(self, instance: Instance, epoch: int) -> bool:
        """Note an accepted Reserve; True when it raised the epoch of a known or unknown instance."""
        raised = epoch > self._epochs.get(instance, -1)
        if raised:
            self._epochs[instance] = epoch
        self._epochs.move_to_end(instance)
        while len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)
        return raised

    def __iter__(self) -> Iterator[tuple[Instance, int]]:
        """All of them, least recently seen first."""
        return iter(self._epochs.items())

    def __len__(self) -> int:
        """How many instances are known."""
        return len(self._epochs)
