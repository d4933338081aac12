"""What happens in a store, written to its arena file before anybody learns of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from zlib import crc32

from pd_handoff_server.lifecycle.model import Handoff, Observer, Tombstone
from pd_handoff_server.lifecycle.slots import Slots

from . import codec
from .file import ArenaFile
from .layout import Geometry
from .outcomes import Outcomes
from .producers import ProducerLog
from .redo import Redo, Scrub, Write


class Journal(Observer):
    """Collects what a call changes; `commit` writes it, whole or not at all. Not thread-safe: the store locks it.

    `complain` is told, in a sentence, of what could not be kept.
    """

    def __init__(self, file: ArenaFile, tombstones: int, producers: int, complain: Callable[[str], None]) -> None:
        geometry = file.geometry
        self._file = file
        self._geometry = geometry
        self._complain = complain
        self._remembers = tombstones > 0
        self.redo = Redo(file.memory, geometry)
        self.outcomes = Outcomes(geometry.tombstones, geometry.long_tombstones, tombstones, file.allocate)
        self.producers = ProducerLog(file.memory, geometry.producers, producers)
        self.serial = 0
        self._marks = array("I", bytes(4 * geometry.slot_count))  # readers kept of each slot, and their checksum
        self._marks_crc = array("I", bytes(4 * geometry.slot_count))
        self._spacious = bytearray(geometry.slot_count)  # slots whose further readers have memory
        self._slots: Slots | None = None
        self._scrub: Callable[[int, int], None] = lambda slot, generation: None
        self._changed: dict[int, Handoff | None] = {}  # by slot; None: it is free
        self._claimed: dict[int, int] = {}  # slot and serial of reservations among them
        self._writes: list[Write] = []
        self._scrubs: list[Scrub] = []
        self._control_moved = False

    def attach(self, slots: Slots, scrub: Callable[[int, int], None]) -> None:
        """Before the first commit: who knows the slots' generations, and who scrubs rows."""
        self._slots = slots
        self._scrub = scrub

    def resume(self, slot: int, marks: int, marks_crc: int) -> None:
        """The readers that a former process kept of this slot."""
        self._marks[slot] = marks
        self._marks_crc[slot] = marks_crc

    # -- what happened -------------------------------------------------------------------------------------------------

    def reserved(self, handoff: Handoff) -> None:
        """See `Observer`."""
        slot = handoff.slot
        self._changed[slot] = handoff
        self.serial += 1
        self._claimed[slot] = self.serial
        self._marks[slot] = self._marks_crc[slot] = 0

    def renewed(self, handoff: Handoff) -> None:
        """See `Observer`."""
        self._changed[handoff.slot] = handoff

    def published(self, handoff: Handoff) -> None:
        """See `Observer`."""
        self._changed[handoff.slot] = handoff

    def consumed(self, handoff: Handoff, reader: bytes, *, again: bool) -> None:
        """See `Observer`."""
        if again:
            return
        slot = handoff.slot
        self._changed[slot] = handoff
        index = self._marks[slot]
        if index + 1 != len(handoff.readers) or (index >= codec.INLINE_MARKS and not self._make_space(slot)):
            return  # one before it could not be kept either
        data = codec.pack_mark(reader)
        self._writes.append((mark_offset(self._geometry, slot, index), data))
        self._marks[slot] = index + 1
        self._marks_crc[slot] = crc32(data, self._marks_crc[slot])

    def _make_space(self, slot: int) -> bool:
        """Give a slot's further readers their memory; False when there is none."""
        if not self._spacious[slot]:
            start = mark_offset(self._geometry, slot, codec.INLINE_MARKS)
            try:
                self._file.allocate(start, codec.READERS_STRIDE)
            except OSError as error:
                self._complain(
                    f"no memory for more than {codec.INLINE_MARKS} readers of a hand-off in {self._file.path} "
                    f"({error.strerror}): a restart now would count the others again"
                )
                return False
            self._spacious[slot] = 1
        return True

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """See `Observer`."""
        self._changed[handoff.slot] = None
        self._claimed.pop(handoff.slot, None)

    def buried(self, tombstone: Tombstone) -> None:
        """See `Observer`."""
        if not self._remembers:
            return
        try:
            self._writes.extend(self.outcomes.add(tombstone))
        except OSError as error:
            self._writes.extend(self.outcomes.empty(tombstone.place))
            self._complain(
                f"no memory for a tombstone with long texts in {self._file.path} ({error.strerror}): a restart now "
                "would forget it"
            )

    def forgotten(self, tombstone: Tombstone) -> None:
        """See `Observer`."""
        self._writes.extend(self.outcomes.forget(tombstone))

    def producer_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """See `Observer`."""
        self.producers.raise_epoch(namespace, instance_id, epoch)
        self._control_moved = True

    def producer_forgotten(self, namespace: str, instance_id: str) -> None:
        """See `Observer`."""
        self.producers.forget(namespace, instance_id)
        self._control_moved = True

    def freed(self, slot: int, generation: int) -> None:
        """A slot turned out to be free; its row is scrubbed with the next commit."""
        self._changed[slot] = None
        self.scrub_later(slot, generation)

    def scrub_later(self, slot: int, generation: int) -> None:
        """A row is to be scrubbed, but not before the file says that nobody reads it any more."""
        self._scrubs.append((slot, generation))

    def awaits(self, slot: int) -> bool:
        """Whether something has happened to a slot that is not written yet."""
        return slot in self._changed

    # -- writing it ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what has happened since the last commit."""
        changed, writes = self._changed, self._writes
        if not (changed or writes or self._control_moved):
            return
        if self._control_moved:
            producers = self.producers
            writes.extend(producers.commit())
            control = codec.pack_control(producers.half, producers.used)
            writes.append((self._geometry.control.offset, control))
        freed = []
        for slot, handoff in changed.items():
            if handoff is None:
                freed.append(slot)
            else:
                writes.append((self._offset(slot), self._entry(handoff)))
        # Freed ones last: should this take several steps, a hand-off is never without a trace.
        writes.extend((self._offset(slot), self._empty(slot)) for slot in freed)
        scrubs = self._scrubs
        self._changed, self._claimed, self._writes, self._scrubs, self._control_moved = {}, {}, [], [], False
        self.redo.carry_out(writes, scrubs, self._scrub)

    def _offset(self, slot: int) -> int:
        return self._geometry.slots.offset + slot * codec.SLOT_STRIDE

    def _entry(self, handoff: Handoff) -> bytes:
        slot = handoff.slot
        head = codec.pack_head(handoff, self._marks[slot], self._marks_crc[slot])
        serial = self._claimed.get(slot)
        if serial is None:
            return head
        return head.ljust(codec.CLAIM_AT, b"\0") + codec.pack_claim(handoff, serial)

    def _empty(self, slot: int) -> bytes:
        if self._slots is None:
            raise RuntimeError("the journal is not attached")
        state = codec.QUARANTINED if slot in self._slots.quarantined else codec.FREE
        return codec.pack_empty(slot, self._slots.generations[slot], state)


def mark_offset(geometry: Geometry, slot: int, index: int) -> int:
    """Where the mark of a hand-off's reader number `index` stands."""
    if index < codec.INLINE_MARKS:
        return geometry.slots.offset + slot * codec.SLOT_STRIDE + codec.MARKS_AT + index * codec.MARK
    return geometry.readers.offset + slot * codec.READERS_STRIDE + (index - codec.INLINE_MARKS) * codec.MARK
