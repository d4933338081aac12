"""What lies where in an arena file, computed from settings alone, before anything is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pd_handoff_server.arena.layout import Layout

from . import codec

PAGE = 4096
REDO_HEADER = 64

_REDO_LEAST, _REDO_MOST = 64 << 10, 1 << 20
_REDO_A_SLOT = 4096
_PRODUCERS_MOST = 2 << 20


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the file, in bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.size


class Geometry:
    """The regions of a file, in order.

    Attributes:
        superblock: who made the file, and how; written when it is made.
        redo: the change that is under way, whole, until it is carried out.
        control: which half holds the producers.
        slots: one entry a slot (`codec.SLOT_STRIDE` bytes): state, claim, and the first readers.
        tombstones: one entry a place (`codec.TOMBSTONE_STRIDE` bytes).
        long_tombstones: what does not fit there, by place; holes until it is used.
        producers: two halves, of which one is in use.
        readers: the further readers of each slot; holes until a hand-off expects so many.
        rows: the arena itself.
        settings: what the geometry follows from, by name; a file made with others cannot be used.
    """

    def __init__(self, layout: Layout, slots: int, tombstones: int, producers: int) -> None:
        limits = {f"max_{name}": value for name, value in asdict(layout.limits).items()}
        self.settings = {
            "slots": slots,
            **limits,
            "tombstones": tombstones,
            "producers": producers,
            "row_bytes": layout.row_bytes,
        }
        self.slot_count = slots
        redo = min(max(slots * _REDO_A_SLOT, _REDO_LEAST), _REDO_MOST)
        half = min(producers * codec.PRODUCER_MOST, _PRODUCERS_MOST)
        self.superblock = Region(0, PAGE)
        self.redo = self._after(self.superblock, redo)
        self.control = self._after(self.redo, codec.CONTROL_SIZE)
        self.slots = self._after(self.control, slots * codec.SLOT_STRIDE)
        self.tombstones = self._after(self.slots, max(tombstones * codec.TOMBSTONE_STRIDE, PAGE))
        self.producers = self._after(self.tombstones, 2 * max(half, PAGE))
        self.long_tombstones = self._after(self.producers, tombstones * codec.LONG_STRIDE)
        self.readers = self._after(self.long_tombstones, slots * codec.READERS_STRIDE)
        self.rows = Region(self.readers.end, slots * layout.row_bytes)
        self.size = _pages(self.rows.end)

    @staticmethod
    def _after(region: Region, size: int) -> Region:
        return Region(region.end, _pages(size))

    @property
    def allocated(self) -> int:
        """Bytes that the file takes from the start."""
        return self.size - self.readers.size - self.long_tombstones.size
