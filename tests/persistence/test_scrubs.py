"""Rows are scrubbed in the step that frees them, and again by the next process if death came between."""

from __future__ import annotations

from pathlib import Path

import pytest
from pd_handoff_server.lifecycle import Spec
from pd_handoff_server.persistence.arena import FileArena
from pd_handoff_server.persistence.codec import SLOT_STRIDE

from tests.support.records import full

from .kept import Kept, ignore

ROWS = 40


class Death(Exception):  # noqa: N818 - it is no error
    """The process ends here."""


def die(*_: object) -> None:
    raise Death


def spec(room: int, attempt: int = 0) -> Spec:
    """A reservation."""
    return Spec(("", room, 0), "owner", attempt)


def test_each_row_of_a_change_in_many_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty hand-offs expire at once, and the redo region is too small for all of it."""
    kept = Kept(path, slots=ROWS)
    for room in range(ROWS):
        kept.store.put_reserving(spec(room), full(room + 1), 0, ignore)
    assert all(kept.arena.storage[slot, 8:].any() for slot in range(ROWS))
    redo = kept.persistence.journal.redo
    redo._room = 500
    slots_at = kept.persistence._file.geometry.slots.offset
    original = FileArena.scrub_now
    scrubbed: list[int] = []

    def scrub(arena: FileArena, slot: int, generation: int) -> None:
        pending = redo.pending()
        assert pending is not None
        writes, scrubs = pending
        assert (slot, generation) in scrubs, "a successor would not scrub it"
        assert slots_at + slot * SLOT_STRIDE in [offset for offset, _ in writes], "it is freed in another step"
        original(arena, slot, generation)
        scrubbed.append(slot)

    monkeypatch.setattr(FileArena, "scrub_now", scrub)
    monkeypatch.setattr(kept.persistence.journal, "_scrub", kept.arena.scrub_now)
    kept.clock.advance(301)
    kept.store.tick()
    assert sorted(scrubbed) == list(range(ROWS))
    assert not kept.residue()
    kept.close()


def test_a_row_that_changed_hands_as_its_store_died(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next owner has put nothing: what the former one put must not stay."""
    kept = Kept(path, slots=1)
    kept.store.put_reserving(spec(7), full(), 0, ignore)
    monkeypatch.setattr(kept.persistence.journal, "_scrub", die)
    with pytest.raises(Death):
        kept.store.reserve(spec(7, attempt=1), 0, ignore)
    assert kept.arena.storage[0, 8:].any()
    after = kept.restart()
    assert [one["attempt"] for one in after.state()["live"]] == [1]
    assert not after.residue()
    after.close()


def test_a_row_with_a_record_is_not_scrubbed_by_an_old_change(path: Path) -> None:
    """A change may be carried out again after its slot was given away and filled."""
    kept = Kept(path, slots=2)
    kept.store.put_reserving(spec(7), full(), 0, ignore)
    (live,) = kept.state()["live"]
    journal = kept.persistence.journal
    entry_at = kept.persistence._file.geometry.slots.offset + live["slot"] * SLOT_STRIDE
    entry = bytes(kept.persistence._file.memory[entry_at : entry_at + 8])
    with pytest.raises(Death):
        journal.redo.carry_out([(entry_at, entry)], [(live["slot"], live["generation"])], die)
    after = kept.restart()
    assert [one["image"] for one in after.state()["live"]] == [full().SerializeToString()]
    after.close()
