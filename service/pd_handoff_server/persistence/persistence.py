"""A store's memory in a file, joined from its parts: opened before the store is built, adopted by its rules after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from pd_handoff_server.arena.arena import DamagedRowError
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.lifecycle import Clock, Handoff, Lifecycle, Policy, State

from .arena import FileArena
from .file import ArenaFile
from .journal import Journal
from .layout import Geometry
from .recovery import Recovered
from .superblock import boot_id


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a file, for the log. With `former_boot` it was of an earlier boot, and was emptied."""

    fresh: bool
    former_boot: bool
    reserved: int
    published: int
    consumed: int
    tombstones: int
    producers: int
    damaged: int
    quarantined: int

    def counts(self) -> dict[str, int]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.type == "int"}


class Persistence:
    """The arena file of one store.

    Attributes:
        epoch: for the store and its tokens: the former one, unless the store starts empty.
        former_mode: permissions of the file that let others read it and were taken away; else 0.
        arena: for the store and its rules.
        journal: one of the observers of its rules; `commit` it before the store's lock is given back.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        slots: int,
        policy: Policy,
        *,
        boot: str | None = None,
        complain: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """Open or make the file. Raises ArenaFileError."""
        geometry = Geometry(layout, slots, policy.tombstones, policy.producers)
        self._file = ArenaFile(path, geometry, boot_id() if boot is None else boot)
        self.epoch = self._file.epoch
        self.former_mode = self._file.former_mode
        self.journal = Journal(self._file, policy.tombstones, policy.producers, complain)
        self.arena = FileArena(slots, layout, self._file, self.journal)

    def adopt(self, lifecycle: Lifecycle, clock: Clock) -> Report:
        """Let the rules go on where those of the former process were killed. Raises ArenaFileError."""
        self.journal.attach(lifecycle.slots, self.arena.scrub_now)
        if self._file.fresh:
            return Report(True, self._file.former_boot, *(0,) * 7)
        found = Recovered(self._file, self.journal, clock.monotonic())
        for slot, generation in found.scrubs:
            self.arena.wipe(slot, generation)
        lifecycle.slots.quarantined.update(found.quarantined)
        lifecycle.adopt(found.generations, found.handoffs, found.tombstones, found.producers)
        self.journal.redo.done()
        for slot, generation in found.ended:
            self.journal.freed(slot, generation)
        self.journal.commit()
        damaged = [handoff for handoff in found.handoffs if not self._whole(handoff)]
        for handoff in damaged:
            lifecycle.quarantine(handoff)
        self.journal.commit()
        count = [handoff.state for handoff in lifecycle.handoffs()].count
        return Report(
            False,
            False,
            count(State.RESERVED),
            count(State.PUBLISHED),
            count(State.CONSUMED),
            len(found.tombstones),
            len(found.producers),
            len(damaged),
            len(lifecycle.slots.quarantined),
        )

    def _whole(self, handoff: Handoff) -> bool:
        """Whether the row is as it should be; one that was being written is wiped for its Put to come again."""
        if handoff.state is State.RESERVED:
            self.arena.wipe(handoff.slot, handoff.generation)
            return True
        try:
            self.arena.read(handoff.slot, handoff.generation)
        except DamagedRowError:
            return False
        return True

    def close(self) -> None:
        """Let others have the file."""
        self._file.close()
