"""Contract section 5, Reserve and the one-shot Put: leases, renewal, waiting for a slot, all or nothing."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire


@pytest.mark.clock
@pytest.mark.parametrize(
    ("asked", "granted"),
    [(None, 60), (0, 1), (0.5, 1), (1, 1), (17.25, 17.25), (3600, 3600), (3600.001, 3600), (1e9, 3600)],
)
def test_a_lease_out_of_bounds_is_granted_at_the_bound(
    steps: Steps, store: LocalStore, asked: float | None, granted: float
) -> None:
    answer = steps.reserve(7, lease=asked)
    assert answer.lease.ToTimedelta().total_seconds() == granted
    store.advance(granted - 0.001)
    assert steps.reserve(7, lease=asked).lease == answer.lease
    store.advance(granted)
    with refused("RESERVATION_EXPIRED"):
        steps.put(7, answer.token)


def test_the_longest_lease_that_a_duration_can_say(steps: Steps) -> None:
    request = requests.reserve(7)
    request.lease.CopyFrom(Duration(seconds=315_576_000_000))
    assert steps.caller.call("Reserve", request).lease.seconds == 3600
    request.max_wait.CopyFrom(Duration(seconds=(1 << 63) - 1, nanos=999_999_999))
    assert steps.caller.call("Reserve", request).lease.seconds == 3600


@pytest.mark.clock
def test_renewing_may_shorten_the_lease_too(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=100).token
    steps.reserve(7, lease=1)
    store.advance(1)
    with refused("RESERVATION_EXPIRED"):
        steps.put(7, token)


@pytest.mark.clock  # ages are compared
def test_a_repeated_reserve_of_what_is_published_gets_the_same_answer_and_changes_nothing(
    steps: Steps, store: LocalStore
) -> None:
    first = steps.reserve(7, lease=20)
    steps.put(7, first.token, records.full())
    before = store.sight(7)
    again = steps.reserve(7, lease=99, readers=5)
    assert again == first
    after = store.sight(7)
    assert after == before
    assert steps.record(7) == records.full()


@pytest.mark.settings(slots=8)
def test_a_repeated_reserve_takes_no_second_slot(steps: Steps, store: LocalStore) -> None:
    for _ in range(20):
        steps.reserve(7)
    assert steps.free == 7
    assert len(store.listing()) == 1


@pytest.mark.clock
@pytest.mark.settings(slots=1)
def test_a_waiting_reserve_is_served_by_each_way_a_slot_comes_back(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(0).token
    waiting = steps.start_reserve(1, lease=1, max_wait=300)
    store.until_waiting(1)
    steps.release(0, token=token)
    waiting.result()
    waiting = steps.start_reserve(2, max_wait=300)
    store.until_waiting(1)
    store.advance(1)  # the lease of 1 runs out
    waiting.result()
    waiting = steps.start_reserve(3, max_wait=300)
    store.until_waiting(1)
    steps.abort(2)
    steps.put(3, waiting.result().token)
    waiting = steps.start_reserve(4, max_wait=301)
    store.until_waiting(1)
    store.advance(300)  # the retention of 3 runs out
    assert waiting.result().token
    assert [handoff.key.room for handoff in store.listing()] == [4]


@pytest.mark.internals
@pytest.mark.settings(slots=1)
def test_a_wait_for_a_slot_that_ran_out(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1, lease=60)
    waiting = [
        steps.start_reserve(2, max_wait=10),
        steps.caller.start("Put", requests.put_once(3, None, requests.reserve(None, max_wait=10))),
    ]
    store.until_waiting(2)
    store.advance(10)
    for each in waiting:
        with refused("ARENA_FULL", slots_total=1, in_use=1):
            each.result()
    assert store.waiting == 0
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(2)


@pytest.mark.internals
@pytest.mark.settings(slots=1, max_wait=5.0)
def test_a_wait_longer_than_the_bound_is_granted_at_the_bound(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1, lease=60)
    waiting = [steps.start_reserve(2, max_wait=100), steps.start_get(3, max_wait=100)]
    store.until_waiting(2)
    store.advance(4.9)
    assert store.waiting == 2
    store.advance(0.1)
    with refused("ARENA_FULL"):
        waiting[0].result()
    with refused("RECORD_NOT_READY", state="NONE"):
        waiting[1].result()


@pytest.mark.settings(slots=1)
def test_nobody_passes_those_who_wait(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(1).token
    waiting = steps.start_reserve(2, max_wait=300)
    store.until_waiting(1)
    assert steps.reserve(1).token == token  # a renewal needs no slot
    with refused("ARENA_FULL"):
        steps.reserve(3)
    steps.abort(1)
    waiting.result()
    with refused("ARENA_FULL"):
        steps.reserve(3)


@pytest.mark.internals
@pytest.mark.settings(slots=1)
def test_while_it_waits_its_key_may_be_aborted(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1)
    waiting = steps.start_reserve(2, max_wait=300)
    store.until_waiting(1)
    assert steps.abort(2)
    with refused("HANDOFF_ABORTED", http_status=400):
        waiting.result()
    assert store.waiting == 0


# -- the one-shot Put --------------------------------------------------------------------------------------------------


@pytest.mark.clock
def test_one_shot_put_is_idempotent_by_its_owner(steps: Steps, store: LocalStore) -> None:
    first = steps.put_once(7, records.full())
    assert steps.put_once(7, records.full()) == first
    with refused("RECORD_IMMUTABLE"):
        steps.put_once(7, records.full(2))
    steps.get(7, reader="decode")
    assert steps.put_once(7, records.full()) == first
    store.advance(30)
    assert steps.put_once(7, records.full()) == first  # from the tombstone
    with refused("RECORD_IMMUTABLE"):
        steps.put_once(7, records.full(2))
    assert steps.free == 8


@pytest.mark.clock
def test_one_shot_put_takes_what_reserve_takes(steps: Steps, store: LocalStore) -> None:
    steps.put_once(7, records.full(), readers=2, attempt=3, producer=("p", 9), lease=5)
    sight = store.sight(7)
    assert (sight.attempt, sight.expected_readers, sight.producer.epoch) == (3, 2, 9)
    assert sight.state == admin_pb2.HANDOFF_STATE_PUBLISHED
    store.advance(299)  # of retention, not of a lease
    assert steps.record(7) == records.full()


@pytest.mark.settings(slots=1)
def test_one_shot_put_refused_leaves_no_reservation(steps: Steps, store: LocalStore) -> None:
    wrong = {
        "TOP_LOGPROBS_OVERFLOW": records.with_top(129),
        "INVALID_RECORD": records.record(records.Token(token_id=-1)),
        "FIELD_OVERFLOW": records.record(customized_info=bytes(9999)),
    }
    for reason, record in wrong.items():
        with refused(reason):
            steps.put_once(7, record)
        assert store.listing() == []
        assert steps.free == 1
    steps.reserve(1)
    with refused("ARENA_FULL"):
        steps.put_once(7)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7)


@pytest.mark.settings(slots=8)
def test_one_shot_put_under_its_owners_reservation(steps: Steps) -> None:
    token = steps.reserve(7).token
    first = steps.put_once(7, records.full())
    assert steps.put(7, token, records.full()) == first
    assert steps.free == 7


@pytest.mark.clock
def test_one_shot_put_refused_leaves_its_owners_reservation_as_it_was(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=10).token
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.put_once(7, records.with_top(129), lease=3600)
    store.advance(9)
    steps.put(7, token)
    with refused("RECORD_IMMUTABLE"):
        steps.put_once(7, records.full())


@pytest.mark.settings(slots=1)
def test_one_shot_put_that_waits_is_idempotent_too(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1)
    request = requests.put_once(7, records.full(), requests.reserve(None, max_wait=300))
    twice = [steps.caller.start("Put", request) for _ in range(2)]
    store.until_waiting(2)
    steps.abort(1)
    assert twice[0].result() == twice[1].result()
    assert steps.record(7) == records.full()


@pytest.mark.clock
def test_published_at_is_the_stores_wall_clock(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7).token
    store.advance(1.5)
    answer = steps.put(7, token)
    assert answer.published_at.ToNanoseconds() == store.clock.wall()
    got = steps.get(7)
    assert got.published_at == answer.published_at
    assert got.published_at.ToNanoseconds() - got.reserved_at.ToNanoseconds() == 1_500_000_000
    assert answer.store_epoch == got.store_epoch == steps.capabilities().store_epoch


def test_widths_declared_at_reserve_are_shown_until_the_record_is_there(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, widths=pb.Widths(top_logprobs=20, hidden_state_bytes=100)).token
    assert store.sight(7).widths == pb.Widths(top_logprobs=20, hidden_state_bytes=100)
    steps.put(7, token, records.with_top(3))
    assert store.sight(7).widths == pb.Widths(tokens=1, top_logprobs=3)
