"""Sequences that random ones rarely meet: the same comparison with the reference, step by step."""

from __future__ import annotations

import pytest
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Reserved

from tests.support.lives import live

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
    assert [live(pair.lifecycle, one).key for one in answer] == [ROOMS[3], ROOMS[1]]
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
    assert live(pair.lifecycle, granted).owner == "higher"


FAILURE = (400, "INPUT_TOO_LONG", "input too long")


@pytest.mark.parametrize("state", ["RESERVED", "PUBLISHED", "CONSUMED"])
def test_an_abort_of_a_later_attempt_supersedes_the_one_that_is_live(state: str) -> None:
    """Put, renewal, Release, Abort and Get agree on it, and the slot is free."""
    pair = Pair(2)
    handoff = pair.reserve([Ask(ROOMS[0], "a")])
    if state != "RESERVED":
        pair.put(ROOMS[0], handoff.token, LEGAL[0])
    if state == "CONSUMED":
        pair.get(ROOMS[0])
    assert pair.abort(ROOMS[0], FAILURE, attempt=1)
    pair.check()
    assert pair.store.facts().slots_free == pair.lifecycle.slots.free == 2
    for answer in (
        pair.put(ROOMS[0], handoff.token, LEGAL[0]),
        pair.reserve([Ask(ROOMS[0], "a")]),
        pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0]),
        pair.release(ROOMS[0], handoff.token),
        pair.abort(ROOMS[0], FAILURE, handoff.token),
    ):
        assert answer.reason == "STALE_RESERVATION"
        assert answer.metadata["state"] == "ABORTED"
    assert pair.get(ROOMS[0]).reason == "HANDOFF_ABORTED"
    pair.clock.advance(121)
    assert pair.get(ROOMS[0]).reason == "HANDOFF_NOT_FOUND"
    pair.check()


@pytest.mark.parametrize("freed", [True, False], ids=["completed and freed", "live"])
def test_a_late_one_shot_put_meets_its_own_outcome_in_a_room_that_others_have_used_since(freed: bool) -> None:
    """The repetition of a Put whose answer was lost must not publish the record again, into another's room."""
    pair = Pair(2)
    first = pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0])
    pair.get(ROOMS[0])
    for owner in ("b", "c"):
        pair.put_once(Ask(ROOMS[0], owner), LEGAL[1])
        pair.get(ROOMS[0])
    if freed:
        pair.clock.advance(31)
    assert pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0]) == first
    assert pair.put_once(Ask(ROOMS[0], "a"), LEGAL[3]).reason == "RECORD_IMMUTABLE"
    assert pair.reserve([Ask(ROOMS[0], "a")]).reason == "ALREADY_CONSUMED"
    assert pair.reserve([Ask(ROOMS[1], "x"), Ask(ROOMS[0], "b")], batch=True).reason == "ALREADY_CONSUMED"
    pair.check()
    pair.reserve([Ask(ROOMS[0], "a", attempt=1)])
    assert pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0]).reason == "STALE_RESERVATION"
    pair.clock.advance(200)
    pair.tick()
    pair.check()


def test_a_late_one_shot_put_beside_the_next_owners_reservation_gets_its_ok() -> None:
    """As a Put by token does; the reservation is left alone."""
    pair = Pair(2)
    first = pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0])
    pair.get(ROOMS[0])
    handoff = pair.reserve([Ask(ROOMS[0], "b")])
    assert pair.put_once(Ask(ROOMS[0], "a"), LEGAL[0]) == first
    assert pair.reserve([Ask(ROOMS[0], "a")]).reason == "ALREADY_CONSUMED"
    pair.put(ROOMS[0], handoff.token, LEGAL[1])
    assert pair.get(ROOMS[0]).image == LEGAL[1].image
    pair.check()


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_takes_no_slot_of_a_consumed_hand_off_that_it_answers_with(order: int) -> None:
    """The oldest consumed one is renewed by the batch that needs a slot: the next oldest gives its up."""
    pair = Pair(2)
    for room in ROOMS[:2]:
        pair.put_once(Ask(room, "a"), LEGAL[0])
        pair.get(room)
    answer = pair.reserve([Ask(ROOMS[0], "a"), Ask(ROOMS[2], "b")][::order], batch=True)
    pair.check()
    assert {live(pair.lifecycle, one).key for one in answer} == {ROOMS[0], ROOMS[2]}
    assert pair.get(ROOMS[0]).image == LEGAL[0].image
    assert pair.get(ROOMS[1]).reason == "ALREADY_CONSUMED"
    both = [Ask(ROOMS[0], "a"), Ask(ROOMS[3], "b")][::order]
    assert pair.reserve(both, batch=True).reason == "ARENA_FULL"
    assert pair.get(ROOMS[0]).image == LEGAL[0].image
    pair.check()


def test_a_slot_that_comes_free_before_a_late_timer_has_refused_goes_to_the_first_in_line() -> None:
    """A wait that is over ends when the timer looks: until then nobody is refused for others behind to be served."""
    pair = Pair(1)
    pair.reserve([Ask(ROOMS[0], "holder")])
    pair.reserve([Ask(ROOMS[1], "first")], 5 * SECOND)
    pair.reserve([Ask(ROOMS[2], "second")], 50 * SECOND)
    pair.clock.advance(6)
    pair.abort(ROOMS[0], FAILURE)
    (granted,) = pair.completed.values()
    assert live(pair.lifecycle, granted).owner == "first"
    pair.check()
    pair.clock.advance(50)
    pair.tick()
    assert [getattr(result, "reason", "OK") for result in pair.completed.values()] == ["OK", "ARENA_FULL"]
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
    assert [pair.ledger.granted[one.token].owner for one in pair.completed.values()] == ["first"]
    pair.abort(ROOMS[1], (500, "ABORTED", ""))
    assert [pair.ledger.granted[one.token].owner for one in pair.completed.values()] == ["first", "third"]
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


def test_a_rival_for_a_consumed_room_does_not_overtake_the_first_in_line() -> None:
    """Both could have the slot of a record that is consumed at once; the one for another room was there before."""
    pair = Pair(2)
    pair.put_once(Ask(ROOMS[0], "x"), LEGAL[0])
    pair.reserve([Ask(ROOMS[1], "y")])
    pair.put_once(Ask(ROOMS[2], "q"), LEGAL[0], WAIT)
    pair.get(ROOMS[2], wait=WAIT)
    pair.put_once(Ask(ROOMS[3], "first"), LEGAL[0], WAIT)
    pair.put_once(Ask(ROOMS[2], "rival"), LEGAL[0], WAIT)
    pair.get(ROOMS[0])
    pair.check()
    assert {handoff.owner for handoff in pair.lifecycle.handoffs()} == {"y", "first"}
    assert pair.store.waiting == 1


@pytest.mark.parametrize("tick", [True, False], ids=["the timer looks", "by traffic alone"])
def test_a_producers_former_process_is_fenced_as_long_as_it_could_hold_anything(tick: bool) -> None:
    """100 s are the longest lease here, and 120 s the tombstones' time: after those an epoch is forgotten."""
    pair = Pair(2)
    longest = Ask(ROOMS[0], "a", lease=100 * SECOND, producer=("p", 2))
    pair.reserve([longest])
    pair.clock.advance(99)
    pair.reserve([longest])  # renewing is seeing it
    for seconds in (101, 18):
        pair.clock.advance(seconds)
        if tick:
            pair.tick()
        assert pair.reserve([Ask(ROOMS[1], "b", producer=("p", 1))]).reason == "PRODUCER_RESTARTED"
    pair.clock.advance(2)
    if tick:
        pair.tick()
        assert pair.store.census().producers == 0
    assert isinstance(pair.reserve([Ask(ROOMS[1], "b", producer=("p", 1))]), Reserved)
    pair.reserve([Ask(ROOMS[2], "c", producer=("p", 2))])  # and the newer one still ends what that one reserved
    assert pair.get(ROOMS[1]).reason == "PRODUCER_RESTARTED"
    pair.check()
