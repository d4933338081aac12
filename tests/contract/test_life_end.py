"""Contract section 4: how hand-offs end, what latecomers are told, and for how long."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps
from tests.support.waits import eventually

pytestmark = pytest.mark.wire

RELEASED = {"http_status": "503", "failure_reason": "RELEASED"}


@pytest.mark.clock
def test_first_terminal_state_wins(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=5).token
    store.advance(5)
    assert steps.abort(7) is False
    with refused("HANDOFF_EXPIRED"):
        steps.get(7)
    with refused("RESERVATION_EXPIRED"):
        steps.put(7, token)


def test_an_aborted_one_takes_no_put_not_even_what_was_published(steps: Steps) -> None:
    token = steps.publish(7, records.numbered(1))
    assert steps.abort(7)
    with refused("HANDOFF_ABORTED"):
        steps.put(7, token, records.numbered(1))


def test_abort_after_publication_ends_it_for_those_who_read_and_ask_again(steps: Steps) -> None:
    steps.publish(7, readers=2)
    steps.get(7, reader="rank 0")
    assert steps.abort(7)
    for rank in ("rank 0", "rank 1"):
        with refused("HANDOFF_ABORTED", http_status=400):
            steps.get(7, reader=rank)


@pytest.mark.settings(slots=8)
def test_abort_before_reserve_refuses_the_late_reserve_of_that_attempt(steps: Steps) -> None:
    assert steps.abort(7, attempt=3)
    for late in (2, 3):
        with refused("STALE_RESERVATION" if late < 3 else "HANDOFF_ABORTED"):
            steps.reserve(7, attempt=late)
    with refused("HANDOFF_ABORTED"):
        steps.put_once(7, attempt=3)
    assert steps.free == 8
    steps.publish(7, attempt=4)
    assert steps.get(7).attempt == 4


def test_abort_with_neither_ends_whatever_is_live(steps: Steps) -> None:
    steps.reserve(7, attempt=5)
    assert steps.abort(7)
    with refused("HANDOFF_ABORTED"):
        steps.get(7, attempt=5)


def test_abort_of_a_lower_attempt_leaves_the_live_one(steps: Steps) -> None:
    token = steps.reserve(7, attempt=2).token
    for lower in (0, 1):
        assert steps.abort(7, attempt=lower) is False
    steps.put(7, token)


@pytest.mark.clock
def test_abort_by_token_of_an_ended_attempt(steps: Steps, store: LocalStore) -> None:
    consumed, expired = steps.publish(1), steps.reserve(2, lease=1).token
    steps.get(1, reader="decode")
    store.advance(31)
    for room, token in ((1, consumed), (2, expired)):
        assert steps.abort(room, token=token) is False


def test_abort_without_a_failure(steps: Steps) -> None:
    steps.caller.call("Abort", pb.AbortRequest(key=requests.key(7)))
    with refused("HANDOFF_ABORTED", http_status=500, failure_reason="ABORTED"):
        steps.get(7)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * 1024, "a" * 1024),
        ("a" * 1025, "a" * 1024),
        ("\u20ac" * 342, "\u20ac" * 341),  # 3 bytes each: 1,024 falls inside the last
        ("a" + "\U0001f600" * 256, "a" + "\U0001f600" * 255),
        ("a" * 1023 + "\u00f6", "a" * 1023),
        ("\u00f6" * 512, "\u00f6" * 512),
    ],
)
def test_failure_message_is_cut_at_1024_bytes_between_characters(steps: Steps, text: str, kept: str) -> None:
    steps.abort(7, why=requests.failure(message=text))
    with refused("HANDOFF_ABORTED") as caught:
        steps.get(7)
    assert caught.error.message == kept


@pytest.mark.parametrize("status", [100, 400, 599])
def test_every_http_status(steps: Steps, status: int) -> None:
    steps.abort(7, why=requests.failure(status))
    with refused("HANDOFF_ABORTED", http_status=status):
        steps.get(7)


# -- Release -----------------------------------------------------------------------------------------------------------


@pytest.mark.settings(slots=8)
def test_release_of_a_reserved_one_ends_it(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7).token
    waiting = steps.start_get(7)
    store.until_waiting(1)
    for _ in range(2):
        steps.release(7, token=token)
        assert steps.free == 8
    with refused("HANDOFF_ABORTED", **RELEASED):
        waiting.result()
    with refused("HANDOFF_ABORTED", **RELEASED):
        steps.put(7, token)
    with refused("HANDOFF_ABORTED", **RELEASED):
        steps.reserve(7, "another")


def test_release_of_a_published_one_leaves_it_to_its_readers(steps: Steps) -> None:
    token = steps.publish(7, records.numbered(1))
    for _ in range(2):
        steps.release(7, token=token)
    assert steps.record(7, reader="decode") == records.numbered(1)


def test_release_of_a_consumed_one_frees_it_at_once(steps: Steps) -> None:
    token = steps.publish(7)
    steps.get(7, reader="decode")
    for _ in range(2):
        steps.release(7, token=token)
    with refused("ALREADY_CONSUMED"):
        steps.get(7, reader="decode")


@pytest.mark.clock
def test_release_of_ended_ones_is_ok(steps: Steps, store: LocalStore) -> None:
    aborted, expired = steps.reserve(1).token, steps.reserve(2, lease=1).token
    steps.abort(1)
    store.advance(1)
    steps.release(1, token=aborted)
    steps.release(2, token=expired)
    with refused("HANDOFF_ABORTED", http_status=400):
        steps.get(1)
    with refused("HANDOFF_EXPIRED"):
        steps.get(2)


@pytest.mark.settings(slots=8)
def test_release_by_reader_in_each_state_is_ok(steps: Steps, store: LocalStore) -> None:
    steps.release(1, reader="decode")  # nobody knows it
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(1)
    token = steps.reserve(2).token
    steps.release(2, reader="decode")
    steps.put(2, token)
    steps.publish(3)
    steps.release(3, reader="decode")
    steps.release(3, reader="decode")
    assert [store.sight(room).state for room in (2, 3)] == [admin_pb2.HANDOFF_STATE_CONSUMED] * 2
    steps.abort(4)
    steps.release(4, reader="decode")
    assert steps.free == 8


# -- tombstones --------------------------------------------------------------------------------------------------------


@pytest.mark.clock
@pytest.mark.settings(tombstone_time=10.0)
def test_outcomes_are_forgotten_after_their_time(steps: Steps, store: LocalStore) -> None:
    steps.reserve(7)
    steps.abort(7)
    store.advance(9)
    with refused("HANDOFF_ABORTED"):
        steps.get(7)
    store.advance(1)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7)
    steps.publish(7)


@pytest.mark.settings(tombstones=3)
def test_outcomes_are_bounded_in_number_oldest_first(steps: Steps, store: LocalStore) -> None:
    for room in range(5):
        steps.abort(room)
    for room in (0, 1):
        with refused("HANDOFF_NOT_FOUND"):
            steps.get(room)
    for room in (2, 3, 4):
        with refused("HANDOFF_ABORTED"):
            steps.get(room)
    assert len(store.listing(states=[admin_pb2.HANDOFF_STATE_ABORTED])) == 3


@pytest.mark.clock
def test_a_repeated_put_of_what_was_published_still_gets_its_ok(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7).token
    first = steps.put(7, token, records.full())
    steps.get(7, reader="decode")
    assert steps.put(7, token, records.full()) == first
    store.advance(30)  # freed
    assert steps.put(7, token, records.full()) == first
    with refused("RECORD_IMMUTABLE"):
        steps.put(7, token, records.full(2))
    store.advance(119)
    assert steps.put(7, token, records.full()) == first


@pytest.mark.clock
def test_so_does_one_whose_retention_ran_out(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7).token
    first = steps.put(7, token, records.full())
    store.advance(300)
    assert steps.put(7, token, records.full()) == first
    with refused("HANDOFF_EXPIRED"):
        steps.get(7)


# -- expiry ------------------------------------------------------------------------------------------------------------


@pytest.mark.settings(lease_min=0.05, lease_default=0.05, retention=0.2, real_time=True)
def test_expiry_needs_no_traffic(steps: Steps, store: LocalStore) -> None:
    never_put = steps.start_get(1, reader="decode")
    steps.reserve(1)
    steps.put_once(2)
    with refused("HANDOFF_EXPIRED"):
        never_put.result()
    expired = [admin_pb2.HANDOFF_STATE_EXPIRED]
    eventually(lambda: len(store.listing(states=expired)) == 2, "both have expired")
    assert store.listing() == []


@pytest.mark.clock
def test_retention_counts_from_publication(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=60).token
    store.advance(59)
    steps.put(7, token)
    store.advance(299)
    steps.get(7)
    steps.reserve(7)  # the same owner: changes nothing, renews nothing
    store.advance(1)
    with refused("HANDOFF_EXPIRED"):
        steps.get(7)


@pytest.mark.internals
def test_a_changed_wall_clock_ends_nothing(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=60).token
    store.clock.shift_wall(-86_400)
    store.core.tick()
    store.clock.shift_wall(2 * 86_400)
    store.core.tick()
    steps.put(7, token)
    assert steps.record(7) == records.record()
