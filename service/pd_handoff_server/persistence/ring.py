"""Tombstones in the file: a ring, where the oldest make room for the latest."""

from __future__ import annotations

from collections import deque

from pd_handoff_server.lifecycle.model import Tombstone

from . import codec
from .codec import TOMBSTONE_FRAME
from .errors import DamageError
from .geometry import Region
from .redo import Write


class Ring:
    """Where each remembered tombstone stands. Positions only grow; the offset in the region is what remains of them.

    Attributes:
        head, tail: positions of the oldest entry and of the next.
    """

    def __init__(self, region: Region) -> None:
        self._offset = region.offset
        self._size = region.size
        self.head = self.tail = 0
        self._entries: deque[tuple[Tombstone, int]] = deque()  # with their end, oldest first; forgotten ones too
        self._where: dict[int, int] = {}  # position of a remembered one, by its identity

    def add(self, tombstone: Tombstone) -> list[Write]:
        """Remember one. What it overwrites is forgotten by a restart, though not yet by this process."""
        data = codec.pack_tombstone(tombstone, self.tail)
        position, self.tail = self.tail, self.tail + len(data)
        while self.tail - self.head > self._size:
            oldest, self.head = self._entries.popleft()
            self._where.pop(id(oldest), None)
        self._entries.append((tombstone, self.tail))
        self._where[id(tombstone)] = position
        return self._writes(position, data)

    def forget(self, tombstone: Tombstone) -> list[Write]:
        """Remember one no longer. The oldest just drop out at the head; one amid others is marked."""
        position = self._where.pop(id(tombstone), None)
        if position is None:
            return []  # its place in the ring was needed before
        if position != self.head:
            return self._writes(position + TOMBSTONE_FRAME.size - 1, bytes((codec.FORGOTTEN,)))
        while self._entries and id(self._entries[0][0]) not in self._where:
            self.head = self._entries.popleft()[1]
        return []

    def _writes(self, position: int, data: bytes) -> list[Write]:
        at = position % self._size
        room = self._size - at
        if len(data) <= room:
            return [(self._offset + at, data)]
        return [(self._offset + at, data[:room]), (self._offset, data[room:])]

    def load(self, memory: memoryview, head: int, tail: int) -> list[Tombstone]:
        """Read what a former process left; returns those remembered, oldest first. Raises DamageError."""
        if not 0 <= tail - head <= self._size:
            raise DamageError("the tombstones")
        self.head, self.tail = head, tail
        found = []
        position = head
        while position < tail:
            size, crc, flag = TOMBSTONE_FRAME.unpack(self._read(memory, position, TOMBSTONE_FRAME.size))
            end = position + TOMBSTONE_FRAME.size + size
            if end > tail or flag not in (codec.REMEMBERED, codec.FORGOTTEN):
                raise DamageError("a tombstone")
            tombstone = codec.unpack_tombstone(self._read(memory, position + TOMBSTONE_FRAME.size, size), crc, position)
            self._entries.append((tombstone, end))
            if flag == codec.REMEMBERED:
                self._where[id(tombstone)] = position
                found.append(tombstone)
            position = end
        return found

    def _read(self, memory: memoryview, position: int, size: int) -> bytes:
        at = position % self._size
        room = self._size - at
        start = self._offset + at
        if size <= room:
            return bytes(memory[start : start + size])
        return bytes(memory[start : start + room]) + bytes(memory[self._offset : self._offset + size - room])
