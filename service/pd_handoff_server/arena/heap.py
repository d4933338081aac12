"""Where attachments are kept: pages of one torch allocation, chained by slot."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass

import torch

from .layout import HeapShape
from .packed_record import Attachments


class DamagedPagesError(Exception):
    """A slot's pages do not hold what was written for the hand-off that asks."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """What a slot has on the heap: its pages in order, and what lies there."""

    generation: int
    pages: tuple[int, ...]
    size: int
    digest: bytes
    entries: tuple[tuple[str, int, int, int], ...]


class Heap:
    """Pages in one torch allocation of uint8, shape (pages, page_bytes), contiguous.

    Any free page serves any slot, so nothing is refused that fits by its size. Which pages a slot has is known here
    alone. How many it may have is the business of the rules (`lifecycle.pages`), which keep count and let nobody write
    more than there is. Not thread-safe: the store locks around it.

    Attributes:
        shape: how many pages, and how large.
        storage: the tensor.
    """

    def __init__(self, shape: HeapShape) -> None:
        self.shape = shape
        self.storage = torch.zeros((shape.pages, shape.page_bytes), dtype=torch.uint8)
        self._bytes = memoryview(self.storage.numpy().data).cast("B") if shape.pages else memoryview(b"")
        self._zeros = memoryview(bytes(shape.page_bytes))
        self._free = list(range(shape.pages - 1, -1, -1))
        self._taken = bytearray(shape.pages)
        self._chains: dict[int, _Chain] = {}

    @property
    def free(self) -> int:
        """Pages that no slot has."""
        return len(self._free)

    def write(self, slot: int, generation: int, attachments: Attachments) -> None:
        """Keep them for this slot. Raises RuntimeError when it has some already, or when there are too few pages."""
        size, page = len(attachments.data), self.shape.page_bytes
        wanted = self.shape.pages_for(size)
        if slot in self._chains or wanted > len(self._free):
            raise RuntimeError(f"slot {slot} needs {wanted} pages and {len(self._free)} are free, or it has some")
        pages = tuple(self._free.pop() for _ in range(wanted))
        for number in pages:
            self._taken[number] = 1
        self._chains[slot] = _Chain(generation, pages, size, attachments.digest, attachments.entries)
        source = memoryview(attachments.data)
        for index, number in enumerate(pages):
            part = source[index * page : (index + 1) * page]
            self._bytes[number * page : number * page + len(part)] = part

    def read(self, slot: int, generation: int, names: Collection[str] | None = None) -> list[bytes]:
        """The serialized attachments of these names, of all by default, in the order in which they were put.

        Raises:
            DamagedPagesError: the slot has none of this generation, or they are no longer what was written.
        """
        chain = self._chains.get(slot)
        if chain is None or chain.generation != generation:
            raise DamagedPagesError(slot)
        found = []
        for name, start, end, checksum in chain.entries:
            if names is None or name in names:
                data = self._piece(chain, start, end)
                if zlib.crc32(data) != checksum:
                    raise DamagedPagesError(slot)
                found.append(data)
        return found

    def _piece(self, chain: _Chain, start: int, end: int) -> bytes:
        page = self.shape.page_bytes
        parts = []
        while start < end:
            index, within = divmod(start, page)
            stop = min(end - start, page - within)
            at = chain.pages[index] * page + within
            parts.append(self._bytes[at : at + stop])
            start += stop
        return b"".join(parts)

    def size(self, slot: int, names: Collection[str] | None = None) -> int:
        """Bytes of the attachments of these names, of all by default; 0 where a slot has none."""
        chain = self._chains.get(slot)
        if chain is None:
            return 0
        if names is None:
            return chain.size
        return sum(end - start for name, start, end, _ in chain.entries if name in names)

    def digest(self, slot: int) -> bytes:
        """That of the attachments which the slot has; empty without any."""
        chain = self._chains.get(slot)
        return b"" if chain is None else chain.digest

    def scrub(self, slot: int) -> None:
        """Zero what the slot had and give its pages back. Raises RuntimeError for a page that nobody had."""
        chain = self._chains.pop(slot, None)
        if chain is None:
            return
        page, left = self.shape.page_bytes, chain.size
        for number in chain.pages:
            used = min(left, page)
            self._bytes[number * page : number * page + used] = self._zeros[:used]
            left -= used
            if not self._taken[number]:
                raise RuntimeError(f"page {number} freed twice")
            self._taken[number] = 0
            self._free.append(number)
