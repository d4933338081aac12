"""The rows themselves: written, read and scrubbed through views of one torch allocation."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from typing import Final

import torch

from .heap import DamagedPagesError, Heap
from .layout import HEADER, HEADER_START, Layout
from .packed_record import Draft, image_digest

_EMPTY: Final = struct.Struct(f"<Q{HEADER.size - 8}x")  # the header of a row that holds nothing: its generation, zeros


class DamagedRowError(Exception):
    """A row does not hold what was written for the hand-off that asks: its generation or checksum differs.

    The checksum covers the record and the slot.
    """


class Arena:
    """`slots` rows in one torch allocation of uint8, shape (slots, row_bytes), contiguous, rows 64-byte aligned.

    Torch owns the memory; the hot path goes through views of it, since a torch call costs more than the copy it makes.
    Not thread-safe: the store locks around it.

    Attributes:
        storage: the tensor.
        heap: where attachments are kept; None: there are none.
    """

    def __init__(
        self, slots: int, layout: Layout, storage: torch.Tensor | None = None, heap: Heap | None = None
    ) -> None:
        """Allocate zeroed rows, or take over `storage` of the right size. Raises ValueError when it does not fit."""
        self.layout = layout
        self.heap = heap
        self.slots = slots
        if storage is None:
            storage = torch.zeros((slots, layout.row_bytes), dtype=torch.uint8)
        if storage.shape != (slots, layout.row_bytes) or storage.dtype != torch.uint8 or not storage.is_contiguous():
            raise ValueError(f"the arena needs contiguous uint8 of shape ({slots}, {layout.row_bytes})")
        self.storage = storage
        view = storage.numpy()
        self._rows = memoryview(view.data).cast("B")
        self._zeros = memoryview(bytes(layout.image_bytes))

    def write(self, slot: int, generation: int, draft: Draft) -> None:
        """Write a measured record. The header comes last: until then the row's checksum does not match.

        Raises RuntimeError when its attachments do not fit the heap, having written nothing.
        """
        if draft.attachments is not None:
            if self.heap is None:
                raise RuntimeError("there is no heap for attachments")
            self.heap.write(slot, generation, draft.attachments)
        start = slot * self.layout.row_bytes
        body = start + HEADER.size
        image = draft.image
        self._rows[body : body + len(image)] = image
        # The checksum begins with the slot: a row that is whole, but in another's place, is damage.
        checksum = zlib.crc32(image, slot)
        HEADER.pack_into(self._rows, start, generation, len(image), checksum, draft.presence, *draft.widths)

    def read(self, slot: int, generation: int) -> bytes:
        """The packed record of this generation, without its attachments.

        Raises:
            DamagedRowError: the row is of another generation or slot, or no longer what was written.
        """
        start = slot * self.layout.row_bytes
        written, size, checksum = HEADER_START.unpack_from(self._rows, start)
        if written != generation or not 0 < size <= self.layout.image_bytes:  # no record is empty, zeroed memory is
            raise DamagedRowError(slot)
        body = start + HEADER.size
        image = self._rows[body : body + size].tobytes()
        if zlib.crc32(image, slot) != checksum:
            raise DamagedRowError(slot)
        return image

    def size(self, slot: int) -> int:
        """Bytes of the packed record in this row, without its attachments."""
        size: int = HEADER_START.unpack_from(self._rows, slot * self.layout.row_bytes)[1]
        return min(size, self.layout.image_bytes)

    def attached(self, slot: int, generation: int, names: Collection[str] | None = None) -> list[bytes]:
        """The packed attachments of this generation, of these names or all, which go behind the packed record.

        Raises:
            DamagedRowError: they are no longer what was written.
        """
        if self.heap is None or not HEADER.unpack_from(self._rows, slot * self.layout.row_bytes)[-1]:
            return []
        try:
            return self.heap.read(slot, generation, names)
        except DamagedPagesError:
            raise DamagedRowError(slot) from None

    def widths(self, slot: int) -> tuple[int, ...]:
        """What the record in this row uses, in the order of `Limits`."""
        return HEADER.unpack_from(self._rows, slot * self.layout.row_bytes)[4:]

    def digest(self, slot: int) -> bytes:
        """A collision-resistant digest of the record in this row."""
        start = slot * self.layout.row_bytes
        size = HEADER_START.unpack_from(self._rows, start)[1]
        body = start + HEADER.size
        image = self._rows[body : body + size]
        attached = b"" if self.heap is None else self.heap.digest(slot)
        return image_digest(image) if not attached else image_digest(b"".join((image, attached)))

    def scrub(self, slot: int, generation: int) -> None:
        """Zero what the former owner used, header first, and note the generation of the next."""
        rows, start = self._rows, slot * self.layout.row_bytes
        size = min(HEADER_START.unpack_from(rows, start)[1], self.layout.image_bytes)
        _EMPTY.pack_into(rows, start, generation)
        body = start + HEADER.size
        rows[body : body + size] = self._zeros[:size]
        if self.heap is not None:
            self.heap.scrub(slot)
