"""Contract section 4: attempts, rooms that are used again, and producers that restart."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

# -- attempts ----------------------------------------------------------------------------------------------------------


def test_a_higher_attempt_starts_clean_and_fences_the_old_one(steps: Steps) -> None:
    old = steps.publish(7, records.full())
    token = steps.reserve(7, attempt=1).token
    with refused("RECORD_NOT_READY", state="RESERVED"):
        steps.get(7)  # nothing of the old one shows
    for _ in range(2):
        with refused("STALE_RESERVATION"):
            steps.put(7, old, records.full())
    steps.put(7, token, records.numbered(1))
    answer = steps.get(7, reader="decode")
    assert (answer.attempt, answer.record) == (1, records.numbered(1))


@pytest.mark.settings(slots=8)
def test_attempts_may_skip(steps: Steps) -> None:
    steps.reserve(7, attempt=5)
    steps.reserve(7, attempt=(1 << 64) - 1)
    with refused("STALE_RESERVATION"):
        steps.reserve(7, attempt=6)
    assert steps.free == 7


def test_the_same_attempt_by_another_owner_is_refused(steps: Steps) -> None:
    steps.reserve(7, "first", attempt=1)
    with refused("HANDOFF_EXISTS", state="RESERVED"):
        steps.reserve(7, "second", attempt=1)


@pytest.mark.clock
def test_a_lower_attempt_is_stale_after_every_end(steps: Steps, store: LocalStore) -> None:
    steps.abort(1, attempt=2)
    steps.reserve(2, attempt=2, lease=1)
    steps.publish(3, attempt=2)
    steps.get(3, reader="decode")
    store.advance(31)
    for room, state in ((1, "ABORTED"), (2, "EXPIRED"), (3, "CONSUMED")):
        with refused("STALE_RESERVATION", state=state):
            steps.reserve(room, attempt=1)
        with refused("STALE_RESERVATION", state=state):
            steps.put_once(room, attempt=1, owner="another")


@pytest.mark.settings(slots=8)
def test_an_abort_of_a_higher_attempt_supersedes_the_live_one(steps: Steps) -> None:
    reserved, published = steps.reserve(1).token, steps.publish(2)
    for room, token in ((1, reserved), (2, published)):
        assert steps.abort(room, attempt=1)
        with refused("STALE_RESERVATION", state="ABORTED"):
            steps.reserve(room)
        with refused("STALE_RESERVATION", state="ABORTED"):
            steps.put(room, token)
        with refused("STALE_RESERVATION", state="ABORTED"):
            steps.release(room, token=token)
        with refused("HANDOFF_ABORTED"):
            steps.get(room)
        steps.publish(room, records.numbered(2), attempt=2)
        assert steps.record(room) == records.numbered(2)
    assert steps.free == 6


def test_get_takes_the_newest_at_or_above_the_one_it_names(steps: Steps) -> None:
    steps.publish(7, records.numbered(3), attempt=3)
    for lowest in (0, 2, 3):
        answer = steps.get(7, attempt=lowest)
        assert (answer.attempt, answer.record) == (3, records.numbered(3))
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7, attempt=4)


def test_get_sees_no_tombstone_of_a_lower_attempt(steps: Steps, store: LocalStore) -> None:
    steps.abort(7, attempt=1)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7, attempt=2)
    waiting = steps.start_get(7, attempt=2)
    store.until_waiting(1)
    steps.publish(7, records.numbered(2), attempt=2)
    assert waiting.result().attempt == 2


@pytest.mark.internals
def test_get_keeps_waiting_across_a_supersede(steps: Steps, store: LocalStore) -> None:
    waiting = steps.start_get(7, reader="decode")
    steps.reserve(7)
    store.until_waiting(1)
    steps.reserve(7, attempt=1)
    token = steps.reserve(7, attempt=2).token
    assert store.waiting == 1
    steps.put(7, token, records.numbered(2))
    answer = waiting.result()
    assert (answer.attempt, answer.record) == (2, records.numbered(2))


@pytest.mark.internals
def test_get_that_names_a_higher_attempt_waits_past_the_lower_ones_record(steps: Steps, store: LocalStore) -> None:
    waiting = steps.start_get(7, attempt=1)
    store.until_waiting(1)
    steps.publish(7, records.numbered(0))
    steps.abort(7, attempt=0)
    assert store.waiting == 1
    steps.publish(7, records.numbered(1), attempt=1)
    assert waiting.result().record == records.numbered(1)


# -- rooms are used again and again ------------------------------------------------------------------------------------


@pytest.mark.clock
@pytest.mark.parametrize("room", [0, (1 << 64) - 1])
def test_a_completed_room_is_used_again_by_other_owners(steps: Steps, store: LocalStore, room: int) -> None:
    for number in range(5):
        owner = f"request {number}"
        token = steps.reserve(room, owner).token
        with refused("RECORD_NOT_READY"):
            steps.get(room)
        steps.put(room, token, records.numbered(number))
        assert steps.record(room, reader="decode") == records.numbered(number)
        if number % 2:
            store.advance(31)  # consumed and freed, or within its grace
    assert steps.free == 8


def test_one_shot_puts_use_a_completed_room_again(steps: Steps) -> None:
    for number in range(3):
        steps.put_once(7, records.numbered(number), owner=f"request {number}")
        assert steps.record(7, reader="decode") == records.numbered(number)


@pytest.mark.clock
def test_the_same_owner_after_completion_gets_its_reservation_then_the_outcome(steps: Steps, store: LocalStore) -> None:
    token = steps.publish(7)
    steps.get(7, reader="decode")
    assert steps.reserve(7).token == token
    store.advance(30)
    with refused("ALREADY_CONSUMED"):
        steps.reserve(7)
    steps.reserve(7, attempt=1)


def test_a_former_owner_of_a_reused_room_still_gets_its_ok(steps: Steps) -> None:
    token = steps.reserve(7, "first").token
    first = steps.put(7, token, records.numbered(1))
    steps.get(7, reader="decode")
    steps.publish(7, records.numbered(2), owner="second")
    assert steps.put(7, token, records.numbered(1)) == first
    with refused("RECORD_IMMUTABLE"):
        steps.put(7, token, records.numbered(2))
    assert steps.record(7) == records.numbered(2)


@pytest.mark.clock
def test_a_repeated_one_shot_put_is_not_published_again_into_a_reused_room(steps: Steps, store: LocalStore) -> None:
    first = steps.put_once(7, records.numbered(1), owner="first")
    steps.get(7, reader="decode")
    steps.put_once(7, records.numbered(2), owner="second")
    for seconds in (0, 31):  # within the grace of the second, and when that is freed, too
        assert steps.put_once(7, records.numbered(1), owner="first") == first
        with refused("RECORD_IMMUTABLE"):
            steps.put_once(7, records.numbered(3), owner="first")
        with refused("ALREADY_CONSUMED"):
            steps.reserve(7, "first")
        if not seconds:
            assert steps.record(7, reader="decode") == records.numbered(2)
        store.advance(seconds)
    with refused("ALREADY_CONSUMED"):
        steps.get(7)


def test_owners_are_compared_within_one_key_only(steps: Steps) -> None:
    tokens = {steps.reserve(room, "the same").token for room in range(4)}
    tokens.add(steps.reserve(rp.HandoffKey(room=0, sample=1), "the same").token)
    assert len(tokens) == 5


# -- producers ---------------------------------------------------------------------------------------------------------


def test_a_higher_epoch_ends_older_reservations_at_once_published_ones_stay(steps: Steps) -> None:
    steps.reserve(1, producer=("p", 1))
    steps.publish(2, producer=("p", 1))
    steps.reserve(3, producer=("p", 2))
    with refused("PRODUCER_RESTARTED"):
        steps.get(1)
    assert steps.record(2, reader="decode") == records.record()


def test_older_epochs_are_refused_also_to_renew(steps: Steps) -> None:
    steps.reserve(1, producer=("p", 5))
    for epoch in (0, 4):
        with refused("PRODUCER_RESTARTED"):
            steps.reserve(2, producer=("p", epoch))
        with refused("PRODUCER_RESTARTED"):
            steps.reserve(1, producer=("p", epoch))
    steps.reserve(2, producer=("p", 5))


def test_scope_is_namespace_and_instance(steps: Steps) -> None:
    other = rp.HandoffKey(namespace="n", room=1)
    tokens = {
        1: steps.reserve(1, producer=("p", 1)).token,
        2: steps.reserve(2, producer=("q", 1)).token,
        3: steps.reserve(3).token,
    }
    apart = steps.reserve(other, producer=("p", 1)).token
    steps.reserve(9, producer=("p", 2))
    with refused("PRODUCER_RESTARTED"):
        steps.put(1, tokens[1])
    steps.put(2, tokens[2])
    steps.put(3, tokens[3])
    steps.put(other, apart)
    steps.reserve(rp.HandoffKey(namespace="n", room=2), producer=("p", 1))


@pytest.mark.settings(slots=2)
def test_only_an_accepted_reserve_raises_the_epoch(steps: Steps) -> None:
    token = steps.reserve(1, producer=("p", 1)).token
    steps.reserve(2, "other")
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.reserve(3, producer=("p", 2), widths=pb.Widths(top_logprobs=129))
    with refused("HANDOFF_EXISTS"):
        steps.reserve(2, "mine", producer=("p", 2))
    with refused("INVALID_REQUEST"):
        steps.reserve(3, "", producer=("p", 2))
    with refused("INVALID_RECORD"):
        steps.put_once(3, rp.HandoffRecord(), producer=("p", 2))
    assert steps.reserve(1, producer=("p", 1)).token == token
    steps.put(1, token)
    with refused("ARENA_FULL"):
        steps.reserve(3, producer=("p", 2))
    steps.get(1, reader="decode")
    steps.reserve(4, producer=("p", 1))


@pytest.mark.settings(slots=1)
def test_a_restarted_producer_gets_the_slots_of_its_former_life(steps: Steps) -> None:
    steps.reserve(1, producer=("p", 1))
    with refused("ARENA_FULL"):
        steps.reserve(2, producer=("q", 1))
    steps.reserve(2, producer=("p", 2))
    with refused("PRODUCER_RESTARTED"):
        steps.get(1)


def test_its_tombstone_does_not_stop_the_new_epoch_but_everybody_else(steps: Steps) -> None:
    steps.reserve(1, producer=("p", 1))
    steps.reserve(2, producer=("p", 2))
    for producer in (None, ("q", 9)):
        with refused("PRODUCER_RESTARTED"):
            steps.reserve(1, "another", producer=producer)
    token = steps.reserve(1, producer=("p", 2)).token
    steps.put(1, token, records.numbered(1))
    assert steps.record(1, reader="decode") == records.numbered(1)


def test_the_same_owner_and_room_in_a_new_epoch_is_a_new_reservation(steps: Steps) -> None:
    old = steps.reserve(1, producer=("p", 1)).token
    token = steps.reserve(1, producer=("p", 2)).token
    assert token != old
    with refused("PRODUCER_RESTARTED"):
        steps.put(1, old)
    steps.put(1, token)


def test_one_shot_puts_restart_a_producer_too(steps: Steps) -> None:
    steps.reserve(1, producer=("p", 1))
    steps.put_once(2, producer=("p", 2))
    with refused("PRODUCER_RESTARTED"):
        steps.get(1)


def test_a_restart_wakes_readers(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1, producer=("p", 1))
    waiting = steps.start_get(1, reader="decode")
    store.until_waiting(1)
    unary = store.steps()
    unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(2, producer=("p", 2))]))
    with refused("PRODUCER_RESTARTED"):
        waiting.result()
