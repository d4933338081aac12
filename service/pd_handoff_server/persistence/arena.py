"""The arena over the rows of a file."""

from __future__ import annotations

import torch

from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.layout import HEADER, Layout
from pd_handoff_server.arena.packed_record import Draft

from .file import ArenaFile
from .journal import Journal


class FileArena(Arena):
    """Rows that outlive the process. A torch tensor lies over the mapping, as the plain arena's over its own memory."""

    def __init__(self, slots: int, layout: Layout, file: ArenaFile, journal: Journal) -> None:
        rows = file.geometry.rows
        storage = torch.frombuffer(file.memory, dtype=torch.uint8, count=rows.size, offset=rows.offset)
        super().__init__(slots, layout, storage.view(slots, layout.row_bytes))
        self._journal = journal

    def write(self, slot: int, generation: int, draft: Draft) -> None:
        """See `Arena`. Who held the slot before must have ended in the file, too, before its row changes."""
        if self._journal.awaits(slot):
            self._journal.commit()
        super().write(slot, generation, draft)

    def scrub(self, slot: int, generation: int) -> None:
        """See `Arena`. Put off until the file says that the former owner has ended."""
        self._journal.scrub_later(slot, generation)

    def scrub_now(self, slot: int, generation: int) -> None:
        """Carry out what was put off."""
        super().scrub(slot, generation)

    def wipe(self, slot: int, generation: int) -> None:
        """Zero a whole row, of which it is not known what it holds."""
        self.storage[slot].zero_()
        HEADER.pack_into(self._rows, slot * self.layout.row_bytes, generation, *(0,) * 14)
