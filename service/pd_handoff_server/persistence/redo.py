"""One change of the file at a time: whole, or not at all.

A change is first written as a whole to the redo region, then its header, which makes it valid; then it is carried out.
Killed before the header is whole, the process has changed nothing; killed later, the next one carries the change out
(again). Stores to a shared mapping outlive the process in the order of the program, so nothing else is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

from .codec import SLOT_STRIDE
from .errors import DamageError
from .layout import REDO_HEADER, Geometry

Write = tuple[int, bytes]
"""(offset in the file, what is to be there)."""
Scrub = tuple[int, int]
"""(slot, generation of its next owner)."""

_HEADER = struct.Struct("<QI")
_ENTRY = struct.Struct("<QI")
_SCRUB = struct.Struct("<QIQ")  # an entry at an offset that no file has; its "size" is the slot
_SCRUB_OFFSET = (1 << 64) - 1
_IDLE = bytes(_HEADER.size)


class Redo:
    """The redo region of a file."""

    def __init__(self, memory: memoryview, geometry: Geometry) -> None:
        self._memory = memory
        self._header_at = geometry.redo.offset
        self._at = geometry.redo.offset + REDO_HEADER
        self._room = geometry.redo.size - REDO_HEADER
        self._writable = range(geometry.control.offset, geometry.rows.offset + 1)
        self._slots = geometry.slot_count
        self._entries_at = geometry.slots.offset

    def carry_out(self, writes: Sequence[Write], scrubs: Sequence[Scrub], scrub: Callable[[int, int], None]) -> None:
        """Do all of this: at once, or in order in several steps, when the region is too small for it.

        A row is scrubbed in the step that says that its slot is free: else death between two would leave it dirty.
        """
        parts = []
        for offset, data in writes:
            parts.append(_ENTRY.pack(offset, len(data)))
            parts.append(data)
        for slot, generation in scrubs:
            parts.append(_SCRUB.pack(_SCRUB_OFFSET, slot, generation))
        payload = b"".join(parts)
        if len(payload) > self._room:
            first, rest = self._halves(writes, scrubs)
            self.carry_out(*first, scrub)
            self.carry_out(*rest, scrub)
            return
        memory, at, header_at = self._memory, self._at, self._header_at
        memory[at : at + len(payload)] = payload
        memory[header_at : header_at + _HEADER.size] = _HEADER.pack(len(payload), crc32(payload))
        for offset, data in writes:
            memory[offset : offset + len(data)] = data
        for slot, generation in scrubs:
            scrub(slot, generation)
        memory[header_at : header_at + _HEADER.size] = _IDLE

    def _halves(
        self, writes: Sequence[Write], scrubs: Sequence[Scrub]
    ) -> tuple[tuple[Sequence[Write], Sequence[Scrub]], tuple[Sequence[Write], Sequence[Scrub]]]:
        """A change cut in two; one write alone always fits, and so does what frees a slot with its scrub."""
        half = len(writes) // 2
        if not half:
            raise ValueError("the redo region is too small for a single change")
        later = {offset for offset, _ in writes[half:]}
        rest = [scrub for scrub in scrubs if self._entries_at + scrub[0] * SLOT_STRIDE in later]
        first = [scrub for scrub in scrubs if self._entries_at + scrub[0] * SLOT_STRIDE not in later]
        return (writes[:half], first), (writes[half:], rest)

    def pending(self) -> tuple[list[Write], list[Scrub]] | None:
        """The change that a killed process had under way, if it was valid already. Raises DamageError."""
        size, crc = _HEADER.unpack_from(self._memory, self._header_at)
        if not 0 < size <= self._room:
            return None
        payload = bytes(self._memory[self._at : self._at + size])
        if crc32(payload) != crc:
            return None
        writes: list[Write] = []
        scrubs: list[Scrub] = []
        for offset, number, data in _entries(payload):
            if offset == _SCRUB_OFFSET:
                if number >= self._slots:
                    raise DamageError("the change under way")
                scrubs.append((number, int.from_bytes(data, "little")))
            elif offset not in self._writable or offset + len(data) not in self._writable:
                raise DamageError("the change under way")
            else:
                writes.append((offset, data))
        return writes, scrubs

    def apply(self, writes: Sequence[Write]) -> list[Write]:
        """Write, and return what was there."""
        former = []
        for offset, data in writes:
            former.append((offset, bytes(self._memory[offset : offset + len(data)])))
            self._memory[offset : offset + len(data)] = data
        return former

    def done(self) -> None:
        """Nothing is under way any more."""
        self._memory[self._header_at : self._header_at + _HEADER.size] = _IDLE


def _entries(payload: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(payload):
        if len(payload) - at < _ENTRY.size:
            raise DamageError("the change under way")
        offset, number = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        size = 8 if offset == _SCRUB_OFFSET else number
        if len(payload) - at < size:
            raise DamageError("the change under way")
        yield offset, number, payload[at : at + size]
        at += size
