"""Rows of the metadata buffers, handed out so that none has two owners."""

from __future__ import annotations

import logging
import operator
from collections import deque

log = logging.getLogger(__name__)


class Slot(int):
    """A row's index that remembers which of its owners it was given to. Everything that takes an index takes it."""

    generation: int

    def __new__(cls, index: int, generation: int) -> Slot:
        slot = super().__new__(cls, index)
        slot.generation = generation
        return slot

    def __reduce__(self) -> tuple[type[Slot], tuple[int, int]]:
        return Slot, (int(self), self.generation)


class SlotAllocator:
    """In the place of SGLang's `ReqToMetadataIdxAllocator`, with its methods.

    That class appends whatever it is given to its free list, so an index freed twice is handed to two requests, and
    -1 becomes an index. This one refuses, logs and counts: an index freed by a former owner leaves the present one
    alone.

    Attributes:
        size: rows in all.
        refused: frees refused so far; more than 0 is a bug of the engine.
    """

    def __init__(self, size: int) -> None:
        """Raises ValueError for fewer rows than one."""
        if size < 1:
            raise ValueError(f"a SlotAllocator needs at least one row, not {size}")
        self.size = size
        self.refused = 0
        self._free = deque(range(size))
        self._generations = [0] * size
        self._taken: set[int] = set()

    def available_size(self) -> int:
        """Rows that are free."""
        return len(self._free)

    def alloc(self) -> Slot | None:
        """The row that has been free for longest, or None."""
        if not self._free:
            return None
        index = self._free.popleft()
        self._taken.add(index)
        self._generations[index] += 1
        return Slot(index, self._generations[index])

    def holds(self, index: int) -> bool:
        """True while `index` is out, with the owner that it was given to."""
        current = index.generation == self._generations[index] if isinstance(index, Slot) else True
        return int(index) in self._taken and current

    def free(self, free_index: int) -> bool:
        """Takes a row back. False, and nothing has changed, for one that is free already or went to another owner
        since.

        A plain int (not the Slot that alloc gave) is taken at its word: it can be refused only while the row is free.
        What is no row of this allocator (-1, 1.5, None) is refused in the same way: a bug, but not one to stop a
        scheduler by.
        """
        try:
            index = operator.index(free_index)
        except TypeError:
            index = -1
        if not 0 <= index < self.size:
            self.refused += 1
            log.error("%r is none of the %d rows that can be freed; refused", free_index, self.size)
            return False
        if not self.holds(free_index):
            self.refused += 1
            log.warning("row %d was freed by one that does not own it; refused", index)
            return False
        self._taken.remove(index)
        self._free.append(index)
        return True
