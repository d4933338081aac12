"""Sequences that random ones rarely meet: the same comparison with the reference, step by step."""

from __future__ import annotations

from pd_handoff_server.lifecycle import Handoff
from pd_handoff_server.refusal import Refusal

from .catalogue import LEGAL
from .pair import Pair
from .terms import SECOND, Ask, Key

ROOMS: list[Key] = [("", room, 0) for room in range(6)]
WAIT = 10 * SECOND


def test_a_batch_that_ends_what_it_renews_is_refused_whole() -> None:
    """One item renews a reservation of epoch 1, another brings epoch 2, which ends it."""
    pair = Pair(3)
    pair.reserve([Ask(ROOMS[0], "a", producer=("p", 1))])
    for batch in (
        [Ask(ROOMS[0], "a"), Ask(ROOMS[1], "b", producer=("p", 2))],
        [Ask(ROOMS[1], "b", producer=("p", 2)), Ask(ROOMS[0], "a")],
    ):
        answer = pair.reserve(batch, batch=True)
        assert isinstance(answer, Refusal)
        assert answer.reason == "PRODUCER_RESTARTED"
        pair.check()
    pair.clock.advance(200)
    pair.tick()
    pair.check()
    assert pair.store.facts().slots_free == 3


def test_a_batch_uses_slots_that_a_later_item_frees() -> None:
    """The first item needs the slot that the second frees by its producer's new epoch."""
    pair = Pair(3)
    pair.reserve([Ask(ROOMS[0], "a", producer=("p", 1))])
    pair.reserve([Ask(ROOMS[1], "b")])
    pair.reserve([Ask(ROOMS[2], "b")])
    answer = pair.reserve([Ask(ROOMS[3], "c"), Ask(ROOMS[1], "b", producer=("p", 2))], batch=True)
    assert [handoff.key for handoff in answer] == [ROOMS[3], ROOMS[1]]
    pair.check()


def test_a_waiting_reserve_that_comes_to_need_no_slot_of_others_is_answered() -> None:
    """A higher attempt waits behind a batch; a lower one comes by a slot, which the higher one may have at once."""
    pair = Pair(2)
    pair.reserve([Ask(ROOMS[0], "x")])
    pair.reserve([Ask(ROOMS[1], "y", producer=("p", 1))])
    pair.reserve([Ask(ROOMS[2], "head"), Ask(ROOMS[3], "head")], WAIT, batch=True)
    pair.reserve([Ask(ROOMS[4], "higher", attempt=1)], WAIT)
    pair.reserve([Ask(ROOMS[4], "lower", producer=("p", 2))])
    pair.check()
    (granted,) = pair.completed.values()
    assert isinstance(granted, Handoff)
    assert granted.owner == "higher"


def test_an_outcome_outlives_an_abort_ahead_of_a_later_attempt() -> None:
    """Attempt 1 is aborted before its Reserve, attempt 0 expires after it and is remembered for longer."""
    pair = Pair(2)
    pair.reserve([Ask(ROOMS[0], "a")])
    pair.abort(ROOMS[0], (400, "INPUT_TOO_LONG", "input too long"), attempt=1)
    pair.clock.advance(61)
    pair.tick()
    pair.clock.advance(100)
    pair.tick()
    answer = pair.get(ROOMS[0])
    assert answer.reason == "HANDOFF_EXPIRED"
    pair.check()


def test_a_higher_attempt_leaves_no_memory_of_those_below() -> None:
    """Its Reserve passes their outcomes: nothing is listed of them any more."""
    pair = Pair(2)
    for attempt in range(3):
        pair.reserve([Ask(ROOMS[0], "a", attempt)])
        pair.abort(ROOMS[0], (500, "ABORTED", ""))
    assert [stone.attempt for stone in pair.lifecycle.tombstones()] == [2]
    pair.reserve([Ask(ROOMS[0], "a", 3)])
    assert not list(pair.lifecycle.tombstones())
    pair.check()


def test_the_longest_consumed_gives_its_slot_first() -> None:
    """By when they were consumed, not by when they were reserved or published."""
    pair = Pair(3)
    for room in ROOMS[:3]:
        pair.put_once(Ask(room, "a"), LEGAL[0])
    for room in (ROOMS[1], ROOMS[2], ROOMS[0]):
        pair.get(room)
    for number, taken in enumerate((ROOMS[1], ROOMS[2]), 3):
        pair.reserve([Ask(ROOMS[number], "b")])
        assert pair.get(taken).reason == "ALREADY_CONSUMED"
        pair.check()
    assert pair.get(ROOMS[0]).image == LEGAL[0].image


def test_a_queue_is_served_first_come_first_served_and_a_cancelled_one_takes_nothing() -> None:
    """Handed case 11."""
    pair = Pair(1)
    pair.reserve([Ask(ROOMS[0], "holder")])
    for number, owner in enumerate(("first", "second", "third"), 1):
        pair.reserve([Ask(ROOMS[number], owner)], 100 * SECOND)
    numbers = list(pair.handles)
    pair.cancel(numbers[1])
    assert pair.reserve([Ask(ROOMS[4], "impatient")]).reason == "ARENA_FULL"
    pair.abort(ROOMS[0], (500, "ABORTED", ""))
    assert [pair.completed[number].owner for number in pair.completed] == ["first"]
    pair.abort(ROOMS[1], (500, "ABORTED", ""))
    assert [pair.completed[number].owner for number in pair.completed] == ["first", "third"]
    pair.check()


def test_a_newcomer_does_not_overtake_a_batch_that_waits_for_more() -> None:
    """A slot is free, but the batch at the head of the queue needs two."""
    pair = Pair(2)
    pair.reserve([Ask(ROOMS[0], "a")])
    pair.reserve([Ask(ROOMS[1], "b"), Ask(ROOMS[2], "b")], WAIT, batch=True)
    assert pair.reserve([Ask(ROOMS[3], "newcomer")]).reason == "ARENA_FULL"
    pair.check()
    pair.abort(ROOMS[0], (500, "ABORTED", ""))
    assert list(pair.completed) == list(pair.handles)
    pair.check()


def test_a_waiting_one_shot_put_is_served_by_the_reserve_of_its_own_owner() -> None:
    """The Put waits; the same owner's Reserve comes by a slot; the record goes there."""
    pair = Pair(1)
    pair.reserve([Ask(ROOMS[0], "x", producer=("p", 1))])
    pair.put_once(Ask(ROOMS[1], "a"), LEGAL[1], WAIT)
    pair.reserve([Ask(ROOMS[1], "a", producer=("p", 2))])
    pair.check()
    assert pair.get(ROOMS[1]).image == LEGAL[1].image


def test_a_rival_behind_a_waiting_put_whose_record_is_consumed_at_once() -> None:
    """Put, reader and rival all wait for one key; the reader has its record in any case."""
    pair = Pair(1)
    pair.put_once(Ask(ROOMS[0], "x"), LEGAL[0])
    pair.get(ROOMS[1], wait=WAIT)
    pair.put_once(Ask(ROOMS[1], "a"), LEGAL[1], WAIT)
    pair.put_once(Ask(ROOMS[1], "b"), LEGAL[3], WAIT)
    pair.get(ROOMS[0])
    pair.check()
    assert len(pair.completed) == 3
