"""Tombstones in the file: each at the place that it has among those remembered, however long its texts are."""

from __future__ import annotations

from collections.abc import Callable

from pd_handoff_server.lifecycle.model import Tombstone

from . import codec
from .codec import TOMBSTONE_FRAME
from .errors import DamageError
from .layout import Region
from .redo import Write

_CHUNK = 64 << 10  # bytes of the long region that get their memory together


class Outcomes:
    """Entries of `codec.TOMBSTONE_STRIDE` bytes by place.

    What is longer goes on in a second region, which has `codec.LONG_STRIDE` bytes for each place. It takes memory only
    where it is used.

    Attributes:
        serial: of the latest entry. It tells their order.
        kept: how many entries the file has room for.
    """

    def __init__(self, home: Region, long: Region, kept: int, allocate: Callable[[int, int], None]) -> None:
        """`allocate` gives a piece of the file (offset, size) its memory, and raises OSError when there is none."""
        self._home = home.offset
        self._long = long.offset
        self._long_end = long.end
        self._allocate = allocate
        self._allocated: set[int] = set()  # chunks of the long region
        self._held: dict[int, Tombstone] = {}  # by place, those that the file remembers
        self.serial = 0
        self.kept = kept

    def add(self, tombstone: Tombstone) -> list[Write]:
        """Remember one, in the place of whatever was there. Raises OSError when a long one finds no memory."""
        place = tombstone.place
        self.serial += 1
        data = codec.pack_tombstone(tombstone, place, self.serial)
        at = self._home + place * codec.TOMBSTONE_STRIDE
        self._held.pop(place, None)
        if len(data) <= codec.TOMBSTONE_STRIDE:
            self._held[place] = tombstone
            return [(at, data)]
        rest = self._long + place * codec.LONG_STRIDE
        self._make_space(rest)
        self._held[place] = tombstone
        # The rest first: should the change take several steps, no entry is there without it.
        return [(rest, data[codec.TOMBSTONE_STRIDE :]), (at, data[: codec.TOMBSTONE_STRIDE])]

    def _make_space(self, offset: int) -> None:
        first = (offset - self._long) // _CHUNK
        last = (offset + codec.LONG_STRIDE - 1 - self._long) // _CHUNK
        for chunk in range(first, last + 1):
            if chunk not in self._allocated:
                start = self._long + chunk * _CHUNK
                self._allocate(start, min(_CHUNK, self._long_end - start))
                self._allocated.add(chunk)

    def forget(self, tombstone: Tombstone) -> list[Write]:
        """Remember one no longer."""
        place = tombstone.place
        if self._held.get(place) is not tombstone:
            return []  # another one has its place, or it never got one
        del self._held[place]
        return self.empty(place)

    def empty(self, place: int) -> list[Write]:
        """What says that nothing is remembered in a place."""
        at = self._home + place * codec.TOMBSTONE_STRIDE
        return [(at + TOMBSTONE_FRAME.size - 1, bytes((codec.FORGOTTEN,)))]

    def load(self, memory: memoryview) -> list[Tombstone]:
        """Read what a former process left; returns those remembered, oldest first. Raises DamageError."""
        found: list[tuple[int, Tombstone]] = []
        size = TOMBSTONE_FRAME.size
        for place in range(self.kept):
            at = self._home + place * codec.TOMBSTONE_STRIDE
            serial, length, crc, flag = TOMBSTONE_FRAME.unpack_from(memory, at)
            if flag == codec.FORGOTTEN or not (flag or length or serial or crc):
                continue
            if flag != codec.REMEMBERED or size + length > codec.TOMBSTONE_MOST:
                raise DamageError("a tombstone")
            body = bytes(memory[at + size : at + min(size + length, codec.TOMBSTONE_STRIDE)])
            more = length - len(body)
            if more:
                rest = self._long + place * codec.LONG_STRIDE
                body += memory[rest : rest + more]
            tombstone = codec.unpack_tombstone(body, crc, place, serial)
            tombstone.place = place
            self._held[place] = tombstone
            found.append((serial, tombstone))
        found.sort(key=lambda entry: entry[0])
        self.serial = found[-1][0] if found else 0
        return [tombstone for _, tombstone in found]
