"""Contract section 4: readers, their number, redelivery, and the grace that ends when the slot is needed."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import admin_pb2

from tests.support import records
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

PUBLISHED = admin_pb2.HANDOFF_STATE_PUBLISHED
CONSUMED = admin_pb2.HANDOFF_STATE_CONSUMED


@pytest.mark.settings(slots=8)
def test_it_waits_for_all_expected_readers(steps: Steps, store: LocalStore) -> None:
    steps.publish(7, records.full(), readers=3)
    for rank in range(3):
        assert store.sight(7).state == PUBLISHED
        assert steps.record(7, reader=f"rank {rank}") == records.full()
        assert store.sight(7).readers_done == rank + 1
    assert store.sight(7).state == CONSUMED
    assert steps.free == 8


def test_distinct_readers_are_counted(steps: Steps, store: LocalStore) -> None:
    steps.publish(7, readers=2)
    for _ in range(3):
        steps.get(7, reader="rank 0")
    assert store.sight(7).state == PUBLISHED
    long = "rank 0" + "0" * 250
    steps.get(7, reader=long)
    assert store.sight(7).state == CONSUMED


def test_no_number_of_readers_is_one(steps: Steps, store: LocalStore) -> None:
    steps.publish(7, readers=0)
    steps.get(7, reader="decode")
    assert store.sight(7).state == CONSUMED


def test_reading_without_consuming_counts_for_nothing(steps: Steps, store: LocalStore) -> None:
    steps.publish(7)
    steps.get(7)
    steps.get(7, reader="decode", consume=False)
    assert (store.sight(7).state, store.sight(7).readers_done) == (PUBLISHED, 0)


@pytest.mark.clock
def test_a_consuming_get_is_repeated_by_its_reader_or_any_other_within_the_grace(
    steps: Steps, store: LocalStore
) -> None:
    steps.publish(7, records.full())
    first = steps.get(7, reader="decode")
    store.advance(29)
    assert steps.get(7, reader="decode") == first
    assert steps.get(7, reader="another") == first
    assert steps.get(7) == first
    store.advance(1)
    with refused("ALREADY_CONSUMED"):
        steps.get(7, reader="decode")
    with refused("ALREADY_CONSUMED"):
        steps.get(7, max_wait=300)


@pytest.mark.clock
def test_redelivery_does_not_prolong_the_grace(steps: Steps, store: LocalStore) -> None:
    steps.publish(7)
    for _ in range(3):
        steps.get(7, reader="decode")
        store.advance(10)
    with refused("ALREADY_CONSUMED"):
        steps.get(7, reader="decode")


@pytest.mark.clock
@pytest.mark.settings(slots=2)
def test_the_grace_ends_when_the_slot_is_needed_oldest_first(steps: Steps, store: LocalStore) -> None:
    for room in (1, 2):
        steps.publish(room, records.numbered(room))
    for room in (2, 1):
        steps.get(room, reader="decode")
        store.advance(1)
    steps.reserve(3)
    with refused("ALREADY_CONSUMED"):
        steps.get(2, reader="decode")
    assert steps.record(1, reader="decode") == records.numbered(1)
    assert steps.free == 1


@pytest.mark.clock
@pytest.mark.settings(slots=2)
def test_expired_slots_are_taken_back_before_consumed_ones(steps: Steps, store: LocalStore) -> None:
    steps.exchange(1, records.numbered(1))
    steps.reserve(2, lease=1)
    store.clock.advance(1)
    steps.reserve(3)  # the timer has not looked yet
    assert steps.record(1) == records.numbered(1)
    with refused("HANDOFF_EXPIRED"):
        steps.get(2)


@pytest.mark.settings(consumed_grace=0.0)
def test_no_grace_at_all(steps: Steps) -> None:
    steps.publish(7)
    steps.get(7, reader="decode")
    with refused("ALREADY_CONSUMED"):
        steps.get(7, reader="decode")


def test_release_by_reader_counts_as_consumption(steps: Steps, store: LocalStore) -> None:
    steps.publish(7, readers=2)
    steps.release(7, reader="rank 0")
    steps.release(7, reader="rank 0")
    assert store.sight(7).readers_done == 1
    assert steps.record(7, reader="rank 1") == records.record()
    assert store.sight(7).state == CONSUMED


@pytest.mark.settings(slots=8)
def test_release_by_all_readers_before_the_put(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, readers=2).token
    steps.release(7, reader="rank 0")
    steps.release(7, reader="rank 1")
    steps.put(7, token)
    assert store.sight(7).state == CONSUMED
    assert steps.free == 8


def test_readers_that_wait_all_get_it_and_are_counted(steps: Steps, store: LocalStore) -> None:
    ranks = [steps.start_get(7, reader=f"rank {rank}") for rank in range(4)]
    store.until_waiting(4)
    steps.publish(7, records.full(), readers=4)
    assert [rank.result().record for rank in ranks] == [records.full()] * 4
    assert store.sight(7).state == CONSUMED


@pytest.mark.clock
def test_a_get_that_gave_up_marks_nothing(steps: Steps, store: LocalStore) -> None:
    waiting = steps.start_get(7, max_wait=1, reader="decode")
    store.until_waiting(1)
    store.advance(1)
    with refused("RECORD_NOT_READY"):
        waiting.result()
    steps.publish(7)
    assert (store.sight(7).state, store.sight(7).readers_done) == (PUBLISHED, 0)


@pytest.mark.settings(slots=1)
def test_a_waiting_reserve_takes_a_slot_as_soon_as_the_last_reader_has_read(steps: Steps, store: LocalStore) -> None:
    steps.publish(1, readers=2)
    waiting = steps.start_reserve(2, max_wait=300)
    store.until_waiting(1)
    steps.get(1, reader="rank 0")
    assert not waiting.done()
    steps.get(1, reader="rank 1")
    assert waiting.result().token
    with refused("ALREADY_CONSUMED"):
        steps.get(1, reader="rank 1")
