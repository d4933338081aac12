"""Which of many things is due next, when most of them end before they are due."""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar

NEVER: Final = 1 << 63
"""Later than any deadline, in nanoseconds."""


class Timed(Protocol):
    """Something with a deadline that may move; None means that it no longer has one."""

    deadline: int | None
    queued_at: int | None


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """A min-heap that follows its items lazily: moving a deadline back is free, ending an item leaves a dead entry.

    Dead entries are swept out once they outnumber the living, so the heap stays within twice the items plus a constant,
    whatever callers do.

    Attributes:
        due: a moment at or before the earliest deadline; NEVER when nothing is followed. Kept up to date, since it is
            looked at with each call.
    """

    def __init__(self) -> None:
        self.due = NEVER
        self._heap: list[tuple[int, int, T]] = []
        self._serial = 0
        self._live = 0

    def watch(self, item: T) -> None:
        """Follow an item from now on, or follow it to an earlier deadline than before."""
        deadline = item.deadline
        if deadline is None:
            raise ValueError("an item without a deadline cannot be watched")
        if item.queued_at is None:
            self._live += 1
        elif deadline >= item.queued_at:
            return
        item.queued_at = deadline
        self._serial += 1
        heapq.heappush(self._heap, (deadline, self._serial, item))
        if deadline < self.due:  # noqa: PLR1730 - `min` takes ten times as long
            self.due = deadline
        if len(self._heap) > 2 * self._live + 1024:
            self._sweep()

    def forget(self, item: T) -> None:
        """Stop following an item that has ended."""
        if item.queued_at is not None:
            item.queued_at = None
            item.deadline = None
            self._live -= 1

    def pop_due(self, now: int) -> T | None:
        """The next item whose deadline has come, no longer followed; None when nothing is due."""
        item = self._pop_due(now)
        self.due = self._heap[0][0] if self._heap else NEVER
        return item

    def _pop_due(self, now: int) -> T | None:
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, item = heapq.heappop(heap)
            if item.queued_at != at:
                continue  # ended, or queued again for an earlier moment
            deadline = item.deadline
            if deadline is not None and deadline > at:
                item.queued_at = deadline  # it moved back since
                self._serial += 1
                heapq.heappush(heap, (deadline, self._serial, item))
                continue
            item.queued_at = None
            self._live -= 1
            return item
        return None

    def next(self) -> int | None:
        """A moment at or before the earliest deadline; None when nothing is followed."""
        return None if self.due == NEVER else self.due

    def _sweep(self) -> None:
        kept: dict[int, tuple[int, int, T]] = {}
        for entry in self._heap:
            if entry[2].queued_at == entry[0]:
                kept[id(entry[2])] = entry
        self._heap = list(kept.values())
        heapq.heapify(self._heap)
        self.due = self._heap[0][0] if self._heap else NEVER

    def __len__(self) -> int:
        """Entries held, dead ones included."""
        return len(self._heap)
