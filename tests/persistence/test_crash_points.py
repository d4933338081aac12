"""Every call of a store, killed between any two instructions: done whole or not at all, whatever the moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.packed_record import Draft
from pd_handoff_server.lifecycle import Failure, Observer, Spec
from pd_handoff_server.persistence.arena import FileArena
from pd_handoff_server.persistence.journal import Journal
from pd_handoff_server.persistence.redo import Redo
from pd_handoff_server.store.interface import Query, Reserved

from tests.support.records import full, numbered
from tests.support.waits import at_once

from .crash import Findings, die_in
from .kept import SECOND, Kept, ignore, policy

Call = Callable[[], object]
FAILURE = Failure(400, "INPUT_TOO_LONG", "input too long " * 20)


class Scenario:
    """A store of three slots that is taken through everything that can happen to a hand-off."""

    def __init__(self, path: Path) -> None:
        self.kept = Kept(path, rules=policy(tombstones=6, producers=4))
        self.tokens: dict[int, bytes] = {}

    def reserve(self, room: int, owner: str = "a", **more: object) -> object:
        """Claim, or renew."""
        spec = Spec(("", room, 0), owner, **more)  # type: ignore[arg-type]
        handoff = self.kept.store.reserve(spec, 0, ignore)
        assert isinstance(handoff, Reserved)
        self.tokens[room] = handoff.token
        return handoff

    def batch(self, *specs: Spec) -> None:
        """Claim several."""
        granted = self.kept.store.reserve_all(specs, 0, ignore)
        assert isinstance(granted, list)
        for spec, reserved in zip(specs, granted, strict=True):
            self.tokens[spec.key[1]] = reserved.token

    def put(self, room: int) -> object:
        """Publish."""
        return self.kept.store.put(("", room, 0), self.tokens[room], full(room), at_once)

    def put_once(self, room: int, **more: object) -> None:
        """Reserve and publish."""
        spec = Spec(("", room, 0), "one-shot", **more)  # type: ignore[arg-type]
        self.kept.store.put_reserving(spec, numbered(room), 0, ignore)

    def get(self, room: int, reader: str) -> object:
        """Consume."""
        return self.kept.store.get(Query(("", room, 0), 0, reader, True), 0, ignore)

    def together(self, *calls: Call) -> None:
        """As the items of a batch."""
        with self.kept.store.together():
            for call in calls:
                call()

    def later(self, seconds: float) -> None:
        """Let time pass, and the timer look."""
        self.kept.clock.advance(seconds)
        self.kept.store.tick()

    def damage(self, room: int) -> None:
        """A stray write; the reader learns of it, and the slot is withdrawn."""
        slot = self.kept.lifecycle._live["", room, 0].slot
        self.kept.arena.storage[slot, 70] ^= 1
        with pytest.raises(Exception, match="damaged"):
            self.get(room, "r")

    def steps(self) -> dict[str, Call]:
        """What happens, in order."""
        store = self.kept.store
        return {
            "reserve": lambda: self.reserve(1, expected_readers=10, widths=(1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
            "renew": lambda: self.reserve(1, lease=90 * SECOND),
            "put": lambda: self.put(1),
            "consume": lambda: self.get(1, "rank 0"),
            "consume many": lambda: [self.get(1, f"rank {number}") for number in range(1, 9)],
            "release by a reader": lambda: store.release(("", 1, 0), b"", "rank 0" * 40, at_once),
            "abort ahead": lambda: store.abort(("", 2, 0), FAILURE, b"", 3, at_once),
            "one-shot put": lambda: self.put_once(3),
            "reserve of a producer": lambda: self.reserve(4, producer=("p", 1)),
            "one-shot put that evicts": lambda: self.put_once(5),
            "supersede in a full arena": lambda: self.reserve(3, attempt=1),
            "producer restarts": lambda: self.reserve(4, "b", producer=("p", 2)),
            "put before it supersedes": lambda: self.put(4),
            "one-shot put that supersedes": lambda: self.put_once(4, attempt=1),
            "abort": lambda: store.abort(("", 4, 0), FAILURE, b"", None, at_once),
            "release": lambda: store.release(("", 3, 0), self.tokens[3], "", at_once),
            "abort a published one": lambda: store.abort(("", 5, 0), FAILURE, b"", None, at_once),
            "batch": lambda: self.batch(*(Spec(("", room, 0), "batch") for room in (6, 7, 8))),
            "batch put": lambda: self.together(lambda: self.put(6), lambda: self.put(7)),
            "batch that supersedes": lambda: self.batch(*(Spec(("", room, 0), "again", 1) for room in (8, 6, 7))),
            "expire": lambda: self.later(61),
            "producers": lambda: [self.reserve(9, f"o{n}", attempt=n, producer=(f"p{n}", n)) for n in range(1, 7)],
            "forget": lambda: self.later(125),
            "forget producers": lambda: self.later(3601),
            "one slot after the other, together": lambda: self.together(
                *(partial(self.put_once, room) for room in (12, 13, 14)),
                *(partial(self.get, room, "r") for room in (12, 13)),
                *(partial(self.put_once, room) for room in (15, 16)),
                lambda: store.abort(("", 14, 0), FAILURE, b"", None, at_once),
                lambda: self.put_once(17),
            ),
            "forget them": lambda: self.later(1000),
            "put and damage": lambda: [self.reserve(10), self.put(10)],
            "damage": lambda: self.damage(10),
            "after damage": lambda: [self.reserve(11), self.put(11), self.get(11, "r"), self.reserve(11, "next")],
        }

    def die(self, copy: Path, **how: Any) -> Findings:
        """Die in every step, up to the first in which it breaks something."""
        findings = Findings()
        for name, call in self.steps().items():
            die_in(self.kept, call, copy, findings, damages=name == "damage", **how)
            if findings.fault:
                findings.fault = f"{name}: {findings.fault}"
                break
        self.kept.close()
        return findings


def test_death_at_any_moment_leaves_a_call_done_or_not_done(path: Path, directory: Path) -> None:
    found = Scenario(path).die(directory / "copy")
    assert not found.fault
    assert found.deaths > 1000


def test_a_successor_may_die_at_any_moment_of_its_recovery(path: Path, directory: Path) -> None:
    found = Scenario(path).die(directory / "copy", mixtures=0, twice=17)
    assert not found.fault
    assert found.deaths > 300


def test_a_change_too_large_for_the_redo_region_is_made_in_steps(path: Path, directory: Path) -> None:
    """Then a batch may be half done, but no record is lost or torn."""
    scenario = Scenario(path)
    scenario.kept.persistence.journal.redo._room = 700  # just enough for the largest single write
    found = scenario.die(directory / "copy", whole=False)
    assert not found.fault
    assert found.deaths > 1000


# -- the harness sees what each guard is for ---------------------------------------------------------------------------


def _without_redo(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(self: Redo, writes: list[tuple[int, bytes]], scrubs: list[tuple[int, int]], scrub: Call) -> None:
        for offset, data in writes:
            self._memory[offset : offset + len(data)] = data
        for slot, generation in scrubs:
            scrub(slot, generation)  # type: ignore[call-arg]

    monkeypatch.setattr(Redo, "carry_out", in_place)


def _flag_before_row(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[tuple[FileArena, int, int, Draft]] = []
    commit = Journal.commit

    def write(self: FileArena, slot: int, generation: int, draft: Draft) -> None:
        self._journal.commit()
        late.append((self, slot, generation, draft))

    def commit_and_write(self: Journal) -> None:
        commit(self)
        while late:
            Arena.write(*late.pop())

    monkeypatch.setattr(FileArena, "write", write)
    monkeypatch.setattr(Journal, "commit", commit_and_write)


def _row_before_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileArena, "write", Arena.write)


def _scrub_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileArena, "scrub", Arena.scrub)


def _no_scrub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileArena, "scrub", lambda self, slot, generation: None)


def _no_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "buried", Observer.buried)


def _no_wipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileArena, "wipe", lambda self, slot, generation: None)


@pytest.mark.parametrize(
    ("remove", "missed_as"),
    [
        (_without_redo, "damaged"),
        (_flag_before_row, "put: .*torn"),
        (_row_before_claim, "residue|torn"),
        (_scrub_at_once, "torn"),
        (_no_scrub, "residue"),
        (_no_tombstones, "neither before nor after: tombstones"),
        (_no_wipe, "residue"),
    ],
)
def test_a_guard_that_is_removed_is_missed(
    remove: Callable[[pytest.MonkeyPatch], None],
    missed_as: str,
    path: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch)
    assert re.search(missed_as, Scenario(path).die(directory / "copy").fault)
