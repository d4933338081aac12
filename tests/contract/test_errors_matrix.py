"""The corners of the table of reasons and calls that no other test reaches (`tests/support/matrix.py` has it all)."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import error_reason_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import matrix, records, requests
from tests.support.caller import Request
from tests.support.failures import TABLE, check, of_status, refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

MORE = [*requests.BATCHES, *requests.LOOKS]


def test_every_reason_has_a_row_and_calls() -> None:
    reasons = {
        name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name
    } - {"UNSPECIFIED"}
    assert {reason for reason, _ in matrix.DOCUMENTED} == TABLE.keys() - {"ENGINE_UNREACHABLE"}  # which no store raises
    assert TABLE.keys() == reasons


# -- BatchReserve of several -------------------------------------------------------------------------------------------


def batch(unary: Steps, *each: pb.ReserveRequest) -> None:
    """BatchReserve, refused by its last item: the first, which is legal, must have had no effect."""
    free = unary.free
    try:
        unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(99), *each]))
    finally:
        assert unary.free == free
        with refused("HANDOFF_NOT_FOUND"):
            unary.get(99)


def test_a_batch_with_a_width_over_its_limit(unary: Steps) -> None:
    limit = unary.capabilities().limits.tokens
    with refused("FIELD_OVERFLOW", field="tokens", requested=limit + 1, limit=limit):
        batch(unary, requests.reserve(1, widths=pb.Widths(tokens=limit + 1)))


@pytest.mark.settings(slots=2, max_waiters=1)
def test_a_batch_that_may_not_wait(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1)
    waiting = unary.start_get(2)
    store.until_waiting(1)
    each = [requests.reserve(room, max_wait=5) for room in (3, 4)]
    with refused("TOO_MANY_WAITERS", limit=1):
        unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=each))
    assert unary.free == 1
    assert not waiting.done()


@pytest.mark.clock
def test_a_batch_with_a_key_whose_lease_ran_out(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1, lease=2)
    store.advance(2)
    with refused("RESERVATION_EXPIRED"):
        batch(unary, requests.reserve(1))


@pytest.mark.clock
def test_a_batch_with_a_key_whose_record_expired(unary: Steps, store: LocalStore) -> None:
    unary.publish(1)
    store.advance(300)
    with refused("HANDOFF_EXPIRED"):
        batch(unary, requests.reserve(1))


@pytest.mark.clock
def test_a_batch_with_a_key_that_was_consumed(unary: Steps, store: LocalStore) -> None:
    unary.publish(1)
    unary.get(1, reader="decode")
    store.advance(30)
    with refused("ALREADY_CONSUMED"):
        batch(unary, requests.reserve(1))


# -- one-shot Put ------------------------------------------------------------------------------------------------------


@pytest.mark.clock
def test_a_late_one_shot_put(steps: Steps, store: LocalStore) -> None:
    steps.publish(1)
    steps.publish(2)
    steps.get(2, reader="decode")
    store.advance(30)
    with refused("RECORD_IMMUTABLE"):
        steps.put_once(2, records.numbered(2))
    store.advance(270)
    with refused("HANDOFF_EXPIRED"):
        steps.put_once(1, records.numbered(2))
    assert steps.free == 8


# -- BatchGet ----------------------------------------------------------------------------------------------------------


def test_each_get_of_a_producer_that_came_back(unary: Steps) -> None:
    unary.reserve(1, producer=("p", 1))
    unary.publish(2, records.full(), producer=("q", 1))
    unary.reserve(3, producer=("p", 2))
    each = [requests.get(1), requests.get(2)]
    answer: pb.BatchGetResponse = unary.caller.call("BatchGet", pb.BatchGetRequest(requests=each))
    check(of_status(answer.results[0].error, "BatchGet"), "PRODUCER_RESTARTED")
    assert answer.results[1].response.record == records.full()


# -- widths ------------------------------------------------------------------------------------------------------------


def test_each_put_of_a_batch_with_a_width_over_its_limit(unary: Steps) -> None:
    token = unary.reserve(1).token
    wide = records.record(customized_info=bytes(unary.capabilities().limits.customized_info_bytes + 1))
    each = [requests.put(1, token, wide), requests.put_once(2)]
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=each))
    check(of_status(answer.results[0].error, "BatchPut"), "FIELD_OVERFLOW", field="customized_info_bytes")
    assert answer.results[1].HasField("response")


# -- while it drains ---------------------------------------------------------------------------------------------------


@pytest.mark.internals
def test_each_put_of_a_batch_while_it_drains(unary: Steps, store: LocalStore) -> None:
    """What needs a slot is refused; what has one is done."""
    token = unary.reserve(1).token
    store.give_notice()
    each = [requests.put_once(2), requests.put(1, token, records.full())]
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=each))
    check(of_status(answer.results[0].error, "BatchPut"), "DRAINING")
    assert answer.results[1].HasField("response")
    assert unary.record(1) == records.full()


# -- what nobody foresaw -----------------------------------------------------------------------------------------------


@pytest.mark.internals
@pytest.mark.parametrize(("method", "request_"), MORE, ids=[method for method, _ in MORE])
def test_unforeseen_errors_of_batches_and_looks(
    unary: Steps,
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[str],
    method: str,
    request_: Request,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the house")

    with monkeypatch.context() as broken:
        for name in ("reserve_all", "put", "put_reserving", "get", "look", "look_at"):
            broken.setattr(store.core, name, fail)
        with refused("INTERNAL") as caught:
            unary.caller.call(method, request_)
        assert caught.error.status is not None
        assert b"secret" not in caught.error.status.SerializeToString()
    assert "RuntimeError" in failures.pop()
    unary.put_once(9)
    unary.get(9, reader="decode")
    assert store.waiting == 0
