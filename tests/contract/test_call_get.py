"""Contract section 5, Get: it waits, is woken by what happens, answers before the deadline, and leaves nothing."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.failures import check, of_status, refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.internals


def test_without_wait_it_answers_at_once(steps: Steps, store: LocalStore) -> None:
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7, max_wait=0)
    assert store.waiting == 0


def test_it_is_woken_by_publication_abort_expiry_and_drain(steps: Steps, store: LocalStore) -> None:
    waiting = {room: steps.start_get(room, reader="decode") for room in range(4)}
    store.until_waiting(4)
    steps.publish(0, records.full())
    assert waiting[0].result().record == records.full()
    steps.abort(1)
    with refused("HANDOFF_ABORTED"):
        waiting[1].result()
    steps.reserve(2, lease=1)
    store.advance(1)
    with refused("HANDOFF_EXPIRED"):
        waiting[2].result()
    store.core.drain()
    with refused("DRAINING"):
        waiting[3].result()
    assert store.waiting == 0


@pytest.mark.clock
@pytest.mark.settings(max_wait=86400.0)
@pytest.mark.parametrize("deadline", [12.34, 60.0, 123.4, 999.9, 1234.0])
def test_it_answers_sooner_than_grpc_rounds_the_deadline_up(unary: Steps, store: LocalStore, deadline: float) -> None:
    call = unary.caller.start("Get", requests.get(7, max_wait=5000), deadline)
    store.until_waiting(1)
    store.advance(deadline - 0.05)
    with refused("RECORD_NOT_READY"):
        call.result(10)


DEADLINE = 60.0
"""Of a caller, in seconds. The store's clock is the test's: nearly all of it passes in an instant."""


def test_it_answers_a_little_before_the_callers_deadline(unary: Steps, store: LocalStore) -> None:
    unary.reserve(7, lease=600)
    waiting = {
        state: unary.caller.start("Get", requests.get(room, max_wait=300), DEADLINE)
        for room, state in ((7, "RESERVED"), (8, "NONE"))
    }
    store.until_waiting(2)
    store.advance(DEADLINE - 20)
    assert store.waiting == 2
    store.advance(20 - 0.05)
    for state, call in waiting.items():  # and not the bare deadline of gRPC, which has no reason
        with refused("RECORD_NOT_READY", state=state):
            call.result()
    assert store.waiting == 0


@pytest.mark.settings(slots=1)
def test_so_do_calls_that_wait_for_a_slot(unary: Steps, store: LocalStore) -> None:
    unary.reserve(7, lease=600)
    put = requests.put_once(9, None, requests.reserve(None, max_wait=300))
    waiting = [
        unary.caller.start("Reserve", requests.reserve(8, max_wait=300), DEADLINE),
        unary.caller.start("Put", put, DEADLINE),
        unary.caller.start("BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(10, max_wait=300)])),
    ]
    store.until_waiting(3)
    store.advance(DEADLINE - 0.05)
    for call in waiting:
        with refused("ARENA_FULL"):
            call.result()
    assert store.waiting == 0


def test_so_does_a_batch_of_gets(unary: Steps, store: LocalStore) -> None:
    unary.publish(1, records.numbered(1))
    batch = pb.BatchGetRequest(requests=[requests.get(room, max_wait=300) for room in (1, 2)])
    call = unary.caller.start("BatchGet", batch, DEADLINE)
    store.until_waiting(1)
    store.advance(DEADLINE - 0.05)
    answer: pb.BatchGetResponse = call.result()
    assert answer.results[0].response.record == records.numbered(1)
    check(of_status(answer.results[1].error), "RECORD_NOT_READY", state="NONE")
    assert store.waiting == 0


@pytest.mark.settings(real_time=True)
def test_a_real_wait_runs_out_by_itself(steps: Steps, store: LocalStore) -> None:
    with refused("RECORD_NOT_READY", state="NONE"):
        steps.get(7, max_wait=0.1)
    assert store.waiting == 0


@pytest.mark.settings(slots=8)
@pytest.mark.wire
def test_a_waiting_get_takes_no_slot_and_knows_no_key(steps: Steps, store: LocalStore) -> None:
    waiting = [steps.start_get(room) for room in range(20)]
    store.until_waiting(20)
    assert steps.free == 8
    assert store.listing() == []
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(0)
    for room in range(20):
        steps.abort(room)
    for each in waiting:
        with refused("HANDOFF_ABORTED"):
            each.result()


def test_keys_that_nobody_reserves_leave_nothing(steps: Steps, store: LocalStore) -> None:
    for room in range(200):
        with refused("HANDOFF_NOT_FOUND"):
            steps.get(room)
    every = [state for state in admin_pb2.HandoffState.values() if state]
    assert store.listing(states=every) == []
    assert store.core.waiting == 0


def test_each_of_many_readers_of_one_key_is_woken_once(steps: Steps, store: LocalStore) -> None:
    waiting = [steps.start_get(7) for _ in range(30)]
    store.until_waiting(30)
    token = steps.reserve(7).token
    assert store.sight(7).waiting == 30
    steps.put(7, token, records.full())
    assert all(each.result().record == records.full() for each in waiting)
    assert store.sight(7).waiting == 0


@pytest.mark.wire
@pytest.mark.settings(max_waiters=0)
def test_a_store_that_lets_nobody_wait(steps: Steps) -> None:
    with refused("TOO_MANY_WAITERS", limit=0):
        steps.get(7, max_wait=1)
    assert steps.exchange(7)


def test_waiters_are_bounded_over_all_calls_and_callers(start: Start, kind: str) -> None:
    store = start(max_waiters=5)
    callers = [store.steps(kind) for _ in range(5)]
    waiting = [caller.start_get(room) for room, caller in enumerate(callers)]
    store.until_waiting(5)
    for caller in callers:
        with refused("TOO_MANY_WAITERS", limit=5):
            caller.get(99, max_wait=1)
    assert not any(each.done() for each in waiting)
    callers[0].publish(3)
    waiting[3].result()
