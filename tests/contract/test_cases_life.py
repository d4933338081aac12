"""Inputs that broke systems of this kind in production: the life of hand-offs."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.caller import Caller, Pending, UnaryPending
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire


def sample(room: int, number: int) -> rp.HandoffKey:
    """One of n samples of a request."""
    return rp.HandoffKey(room=room, sample=number)


def batch(*reserves: pb.ReserveRequest) -> pb.BatchReserveRequest:
    """Reserves to be done all or none."""
    return pb.BatchReserveRequest(requests=reserves)


def give_up(caller: Caller, pending: Pending) -> None:
    """End a waiting call from the client's side: its own cancellation, or the end of its stream."""
    if isinstance(pending, UnaryPending) or hasattr(pending, "cancel"):
        pending.cancel()
    else:
        caller.close()


# -- 6: samples and batches --------------------------------------------------------------------------------------------


def test_case_06_three_samples_of_two_prompts_in_one_batch(unary: Steps, store: LocalStore) -> None:
    keys = [sample(room, number) for room in (5, 6) for number in range(3)]
    answer: pb.BatchReserveResponse = unary.caller.call("BatchReserve", batch(*map(requests.reserve, keys)))
    tokens = [response.token for response in answer.responses]
    assert len(set(tokens)) == 6
    assert len({handoff.slot for handoff in store.listing()}) == 6
    for number, (key, token) in enumerate(zip(keys, tokens, strict=True)):
        unary.put(key, token, records.numbered(number))
    for number, key in enumerate(keys):
        assert unary.record(key, reader="decode") == records.numbered(number)


def test_case_06_rooms_5_and_6_with_two_samples_do_not_overlap(steps: Steps) -> None:
    keys = [sample(room, number) for room in (5, 6) for number in range(2)]
    for number, key in enumerate(keys):
        steps.put_once(key, records.numbered(number), owner="the same")
    assert [steps.record(key) for key in keys] == [records.numbered(number) for number in range(4)]


def test_case_06_one_key_twice_is_refused_whole(unary: Steps, store: LocalStore) -> None:
    twice = batch(*(requests.reserve(room) for room in (1, 2, 3, 2)))
    with refused("INVALID_REQUEST") as caught:
        unary.caller.call("BatchReserve", twice)
    assert list(caught.error.violations) == ["requests[3].key"]
    assert store.listing() == []
    apart = batch(requests.reserve(rp.HandoffKey(room=1)), requests.reserve(rp.HandoffKey(namespace="n", room=1)))
    unary.caller.call("BatchReserve", apart)


def test_case_06_one_key_by_two_attempts_is_one_key_twice(unary: Steps, store: LocalStore) -> None:
    with refused("INVALID_REQUEST"):
        unary.caller.call("BatchReserve", batch(requests.reserve(1), requests.reserve(1, attempt=1)))
    assert store.listing() == []


@pytest.mark.settings(slots=4)
def test_case_06_larger_than_the_free_slots_is_refused_whole(unary: Steps, store: LocalStore) -> None:
    unary.reserve(9)
    with refused("ARENA_FULL", slots_total=4, in_use=1):
        unary.caller.call("BatchReserve", batch(*(requests.reserve(room) for room in range(4))))
    assert [handoff.key.room for handoff in store.listing()] == [9]
    unary.caller.call("BatchReserve", batch(*(requests.reserve(room) for room in range(3))))
    assert unary.free == 0


# -- 7: one room, twice ------------------------------------------------------------------------------------------------


def test_case_07_two_owners_the_first_completes(steps: Steps) -> None:
    token = steps.reserve(7, "first").token
    with refused("HANDOFF_EXISTS", state="RESERVED"):
        steps.reserve(7, "second")
    steps.put(7, token, records.numbered(1))
    with refused("HANDOFF_EXISTS", state="PUBLISHED"):
        steps.reserve(7, "second")
    assert steps.record(7, reader="decode") == records.numbered(1)


@pytest.mark.clock
def test_case_07_one_owner_twice_renews_the_lease(steps: Steps, store: LocalStore) -> None:
    first = steps.reserve(7, lease=10)
    store.advance(9)
    again = steps.reserve(7, lease=20)
    assert again.token == first.token
    assert again.lease.seconds == 20
    assert len(store.listing()) == 1
    store.advance(19)
    steps.put(7, first.token)


# -- 8: abort in each state, twice -------------------------------------------------------------------------------------


def _before_reserve(steps: Steps, store: LocalStore) -> bytes:
    del steps, store
    return b""


def _reserved(steps: Steps, store: LocalStore) -> bytes:
    del store
    return steps.reserve(7).token


def _published(steps: Steps, store: LocalStore) -> bytes:
    del store
    return steps.publish(7)


def _consumed(steps: Steps, store: LocalStore) -> bytes:
    del store
    token = steps.publish(7)
    steps.get(7, reader="decode")
    return token


def _freed(steps: Steps, store: LocalStore) -> bytes:
    token = _consumed(steps, store)
    store.advance(30)
    return token


def _aborted(steps: Steps, store: LocalStore) -> bytes:
    del store
    token = steps.reserve(7).token
    steps.abort(7, why=requests.failure(499, "CANCELLED", "the user left"))
    return token


def _expired(steps: Steps, store: LocalStore) -> bytes:
    token = steps.reserve(7, lease=1).token
    store.advance(1)
    return token


STATES = {
    "before Reserve": (_before_reserve, True, "HANDOFF_ABORTED"),
    "reserved": (_reserved, True, "HANDOFF_ABORTED"),
    "published": (_published, True, "HANDOFF_ABORTED"),
    "consumed": (_consumed, False, None),
    "freed": (_freed, False, "ALREADY_CONSUMED"),
    "aborted": (_aborted, False, "HANDOFF_ABORTED"),
    "expired": (_expired, False, "HANDOFF_EXPIRED"),
}


@pytest.mark.clock
@pytest.mark.parametrize("by", ["key", "token", "attempt"])
@pytest.mark.parametrize("state", STATES)
def test_case_08_abort_is_answered_and_the_first_end_wins(steps: Steps, store: LocalStore, state: str, by: str) -> None:
    reach, ends, outcome = STATES[state]
    token = reach(steps, store)
    if by == "token" and not token:
        return  # before Reserve there is none
    hows: dict[str, dict[str, Any]] = {"key": {}, "token": {"token": token}, "attempt": {"attempt": 0}}
    how = hows[by]
    assert steps.abort(7, why=requests.failure(400, "FIRST", "first"), **how) is ends
    assert steps.free == 8
    assert steps.abort(7, why=requests.failure(500, "SECOND", "second"), **how) is False
    assert steps.free == 8
    if outcome is None:
        assert steps.record(7) == records.record()
        return
    with refused(outcome) as caught:
        steps.get(7)
    if ends:
        assert caught.error.message == "first"
        assert caught.error.metadata == {"http_status": "400", "failure_reason": "FIRST"}
    elif state == "aborted":
        assert caught.error.metadata == {"http_status": "499", "failure_reason": "CANCELLED"}


@pytest.mark.clock
@pytest.mark.parametrize("state", STATES)
def test_case_08_after_any_end_a_higher_attempt_starts_clean(steps: Steps, store: LocalStore, state: str) -> None:
    STATES[state][0](steps, store)
    steps.abort(7)
    token = steps.reserve(7, "second prefill", attempt=1).token
    steps.put(7, token, records.numbered(1))
    assert steps.record(7, attempt=1) == records.numbered(1)


# -- 9, 10: a reader that waits ----------------------------------------------------------------------------------------


@pytest.mark.internals
@pytest.mark.parametrize("reserved", [True, False], ids=["reserved", "before Reserve"])
def test_case_09_prefill_aborts_and_each_of_four_ranks_learns_it(
    steps: Steps, store: LocalStore, reserved: bool
) -> None:
    token = steps.reserve(7, readers=4).token if reserved else b""
    ranks = [steps.start_get(7, 300, reader=f"rank {rank}") for rank in range(4)]
    store.until_waiting(4)
    assert steps.abort(7, token=token, why=requests.failure(400, "INPUT_TOO_LONG", "input too long"))
    for rank in ranks:  # without a tick of the store's clock
        with refused("HANDOFF_ABORTED", http_status=400, failure_reason="INPUT_TOO_LONG") as caught:
            rank.result()
        assert caught.error.message == "input too long"
    assert store.waiting == 0
    with refused("HANDOFF_ABORTED", http_status=400):
        steps.get(7, max_wait=300, reader="rank 4")


@pytest.mark.internals
def test_case_10_get_before_reserve_waits_and_gets_the_record(steps: Steps, store: LocalStore) -> None:
    early = [steps.start_get(7, reader="decode"), steps.start_get(7)]
    store.until_waiting(2)
    token = steps.reserve(7).token
    store.until_waiting(2)
    steps.put(7, token, records.full())
    assert [waiting.result().record for waiting in early] == [records.full()] * 2
    assert store.waiting == 0


def test_case_10_one_shot_put_wakes_it_too(steps: Steps, store: LocalStore) -> None:
    early = steps.start_get(7, reader="decode")
    store.until_waiting(1)
    steps.put_once(7, records.full())
    assert early.result().record == records.full()


# -- 11: the queue for slots -------------------------------------------------------------------------------------------


@pytest.mark.internals
@pytest.mark.settings(slots=1)
def test_case_11_first_come_first_served_and_the_cancelled_one_takes_nothing(store: LocalStore, kind: str) -> None:
    steps = store.steps(kind)
    held = steps.reserve(1).token
    callers = [store.caller(kind) for _ in range(3)]
    queue = []
    for number, caller in enumerate(callers):
        queue.append(caller.start("Reserve", requests.reserve(10 + number, max_wait=300)))
        store.until_waiting(number + 1)
    give_up(callers[1], queue[1])
    store.until_waiting(2)
    with refused("ARENA_FULL", slots_total=1, in_use=1) as caught:
        steps.reserve(2)
    assert caught.error.retry_after
    steps.release(1, token=held)
    first = queue[0].result()
    assert not queue[2].done()
    assert [handoff.key.room for handoff in store.listing()] == [10]
    steps.release(10, token=first.token)
    assert queue[2].result().token
    assert [handoff.key.room for handoff in store.listing()] == [12]
    assert store.waiting == 0


@pytest.mark.settings(slots=1)
def test_case_11_one_shot_puts_queue_too(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1)
    queue = [
        steps.caller.start("Put", requests.put_once(room, records.numbered(room), requests.reserve(None, max_wait=300)))
        for room in (2, 3)
    ]
    store.until_waiting(2)
    steps.abort(1)
    queue[0].result()
    assert not queue[1].done()
    assert steps.record(2, reader="decode") == records.numbered(2)
    queue[1].result()
    assert steps.record(3) == records.numbered(3)


# -- 12: leases --------------------------------------------------------------------------------------------------------


@pytest.mark.clock
@pytest.mark.settings(lease_min=0.1)
def test_case_12_a_lease_of_200_ms_renewed_twice(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=0.2).token
    for _ in range(2):
        store.advance(0.15)
        renewed = steps.reserve(7, lease=0.2)
        assert renewed.token == token
        assert renewed.lease.nanos == 200_000_000
    store.advance(0.19)
    steps.put(7, token)


@pytest.mark.internals
@pytest.mark.settings(lease_min=0.1, real_time=True)
def test_case_12_not_renewed_it_expires_with_no_other_traffic(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=0.2).token
    readers = [steps.start_get(7, reader=f"rank {rank}") for rank in range(2)]
    for reader in readers:
        with refused("HANDOFF_EXPIRED"):
            reader.result()
    assert steps.free == 8
    with refused("RESERVATION_EXPIRED"):
        steps.put(7, token)
    assert store.waiting == 0
