"""The state that a former process left in a file, read and checked whole before anything is changed."""

from __future__ import annotations

from zlib import crc32

from pd_handoff_server.lifecycle.model import Handoff, State, Tombstone

from . import codec
from .codec import Head, Producer
from .errors import ArenaFileError, DamageError
from .file import ArenaFile
from .journal import Journal, mark_offset
from .redo import Scrub, Write


class Recovered:
    """What `Lifecycle.adopt` takes, and what is to be done to rows and slots before.

    Attributes:
        generations: of each slot.
        quarantined: slots that are never to be used again.
        handoffs, tombstones: live and ended ones, oldest first.
        producers: their epochs, raised longest ago first.
        ended: (slot, new generation) of hand-offs whose end was under way.
        scrubs: rows that were to be scrubbed.
    """

    def __init__(self, file: ArenaFile, journal: Journal, now: int) -> None:
        """Read it into `journal` and here; `now` is monotonic. Raises ArenaFileError; the file is then as it was."""
        self.generations: list[int] = []
        self.quarantined: set[int] = set()
        self.handoffs: list[Handoff] = []
        self.tombstones: list[Tombstone] = []
        self.producers: list[Producer] = []
        self.ended: list[Scrub] = []
        self.scrubs: list[Scrub] = []
        self._file = file
        self._journal = journal
        former: list[Write] = []
        try:
            pending = journal.redo.pending()
            if pending is not None:
                former = journal.redo.apply(pending[0])
            self._read()
            if pending is not None:
                held = {handoff.slot for handoff in self.handoffs if handoff.state is not State.RESERVED}
                self.scrubs = [scrub for scrub in pending[1] if scrub[0] not in held]
            self._check_clock(now)
        except (ArenaFileError, DamageError) as error:
            journal.redo.apply(former[::-1])
            raise file.damaged(error) if isinstance(error, DamageError) else error from None

    def _read(self) -> None:
        memory, geometry = self._file.memory, self._file.geometry
        half, used = codec.unpack_control(memory[geometry.control.offset : geometry.control.end])
        self.tombstones = self._journal.outcomes.load(memory)
        self.producers = self._journal.producers.load(half, used)
        found = [entry for slot in range(geometry.slot_count) if (entry := self._read_slot(slot)) is not None]
        found.sort(key=lambda entry: entry[0])
        self._journal.serial = found[-1][0] if found else 0
        self._settle([handoff for _, handoff in found])

    def _read_slot(self, slot: int) -> tuple[int, Handoff] | None:
        at = self._file.geometry.slots.offset + slot * codec.SLOT_STRIDE
        entry = self._file.memory[at : at + codec.SLOT_STRIDE]
        head = Head(entry[: codec.CLAIM_AT], slot)
        self.generations.append(head.generation)
        if head.state is None:
            if head.quarantined:
                self.quarantined.add(slot)
            return None
        serial, handoff = codec.unpack_claim(entry[codec.CLAIM_AT :], slot, head)
        crc = 0
        for index in range(head.readers):
            start = mark_offset(self._file.geometry, slot, index)
            mark = self._file.memory[start : start + codec.MARK]
            handoff.readers.add(codec.unpack_mark(mark))
            crc = crc32(mark, crc)
        if crc != head.marks_crc or len(handoff.readers) != head.readers:
            raise DamageError(f"the readers of slot {slot}")
        self._journal.resume(slot, head.readers, crc)
        return serial, handoff

    def _settle(self, found: list[Handoff]) -> None:
        """A change too large for one step may be half done: what has a tombstone or a successor has ended."""
        tokens = {tombstone.token for tombstone in self.tombstones}
        latest = {handoff.key: handoff for handoff in found}
        for handoff in found:
            if handoff.token in tokens or latest[handoff.key] is not handoff:
                self.generations[handoff.slot] += 1
                self.ended.append((handoff.slot, self.generations[handoff.slot]))
            else:
                self.handoffs.append(handoff)

    def _check_clock(self, now: int) -> None:
        latest = max(
            max((max(handoff.reserved_mono, handoff.published_mono) for handoff in self.handoffs), default=now),
            max((tombstone.ended_mono for tombstone in self.tombstones), default=now),
        )
        if latest > now:
            raise ArenaFileError(
                f"{self._file.path} holds times ahead of this machine's monotonic clock (was it written in another "
                "time namespace?), so leases cannot be judged; start where it was written, or remove the file (the "
                "records in it are then lost)"
            )
