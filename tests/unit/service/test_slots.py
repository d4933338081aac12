"""Slots: one owner at a time, longest unused first, generations that grow."""

from __future__ import annotations

import pytest
from pd_handoff_server.lifecycle.slots import Slots


def test_all_are_handed_out_once_and_then_none() -> None:
    slots = Slots(3)
    assert sorted(slots.take() for _ in range(3)) == [0, 1, 2]
    assert slots.free == 0
    with pytest.raises(IndexError):
        slots.take()


def test_the_longest_unused_is_used_first() -> None:
    slots = Slots(3)
    taken = [slots.take() for _ in range(3)]
    for slot in (taken[1], taken[2], taken[0]):
        slots.give_back(slot)
    assert [slots.take() for _ in range(3)] == [taken[1], taken[2], taken[0]]


def test_a_slot_that_comes_back_waits_behind_those_never_used() -> None:
    slots = Slots(2)
    first = slots.take()
    slots.give_back(first)
    assert slots.take() != first


@pytest.mark.parametrize("taken_before", [True, False])
def test_freeing_twice_raises_and_changes_nothing(taken_before: bool) -> None:
    slots = Slots(2)
    if taken_before:
        slots.take()
        slots.give_back(0)
    with pytest.raises(RuntimeError, match="slot 0 freed twice"):
        slots.give_back(0)
    assert slots.free == 2
    assert slots.generations[0] == int(taken_before)
    assert len({slots.take(), slots.take()}) == 2


def test_the_generation_grows_with_every_return() -> None:
    slots = Slots(1)
    for generation in range(1, 5):
        assert slots.give_back(slots.take()) == generation
    assert slots.generations == [4]


def test_a_quarantined_slot_is_withheld_when_it_comes_back() -> None:
    slots = Slots(2)
    slot = slots.take()
    slots.quarantine(slot)
    assert slots.give_back(slot) == 1
    assert slots.free == 1
    assert slots.take() != slot
    assert slots.free == 0


def test_a_free_slot_can_be_quarantined_once_or_twice() -> None:
    slots = Slots(2)
    slots.quarantine(1)
    slots.quarantine(1)
    assert slots.free == 1
    assert slots.take() == 0


def test_it_goes_on_from_an_earlier_process() -> None:
    slots = Slots(4)
    slots.adopt([5, 6, 7, 8], {1, 2})
    assert slots.free == 2
    assert slots.give_back(2) == 8
    with pytest.raises(RuntimeError):
        slots.give_back(3)
    assert [slots.take() for _ in range(3)] == [0, 3, 2]
