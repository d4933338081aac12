"""Contract section 5, batches: the semantics of their items; BatchReserve is atomic, BatchGet waits for all of its."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.caller import Pending
from tests.support.failures import HOPELESS, CallFailed, check, of_status, refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire


def reserve(unary: Steps, *each: pb.ReserveRequest) -> list[pb.ReserveResponse]:
    """BatchReserve."""
    answer: pb.BatchReserveResponse = unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=each))
    return list(answer.responses)


def outcomes(answer: Any, call: str) -> list[Any]:
    """The results of a batch, errors in place."""
    return [item.response if item.HasField("response") else of_status(item.error, call) for item in answer.results]


def put(unary: Steps, each: Iterable[pb.PutRequest]) -> list[pb.PutResponse | CallFailed]:
    """BatchPut, errors in place."""
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=each))
    return outcomes(answer, "BatchPut")


def start_get(unary: Steps, each: Iterable[pb.GetRequest]) -> Pending:
    """BatchGet, begun."""
    return unary.caller.start("BatchGet", pb.BatchGetRequest(requests=each), None)


def got(answer: pb.BatchGetResponse) -> list[pb.GetResponse | CallFailed]:
    """Its items, errors in place."""
    return outcomes(answer, "BatchGet")


def get(unary: Steps, each: Iterable[pb.GetRequest]) -> list[pb.GetResponse | CallFailed]:
    """BatchGet, errors in place."""
    return got(start_get(unary, each).result())


def error(item: object) -> CallFailed:
    """An item that failed."""
    assert isinstance(item, CallFailed)
    return item


# -- BatchReserve ------------------------------------------------------------------------------------------------------


def test_reserve_answers_in_order(unary: Steps) -> None:
    answers = reserve(unary, *(requests.reserve(room, lease=room + 10) for room in (4, 2, 3)))
    assert [answer.lease.seconds for answer in answers] == [14, 12, 13]
    for room, answer in zip((4, 2, 3), answers, strict=True):
        unary.put(room, answer.token)


@pytest.mark.clock
@pytest.mark.parametrize(
    ("reason", "wrong"),
    [
        ("HANDOFF_EXISTS", requests.reserve(100, "another")),
        ("STALE_RESERVATION", requests.reserve(101)),
        ("HANDOFF_ABORTED", requests.reserve(102)),
        ("PRODUCER_RESTARTED", requests.reserve(103, producer=("p", 1))),
        ("TOP_LOGPROBS_OVERFLOW", requests.reserve(104, widths=pb.Widths(top_logprobs=129))),
        ("INVALID_REQUEST", requests.reserve(105, "")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("at", [0, 2])
def test_reserve_refuses_all_for_one_and_changes_nothing(
    unary: Steps, store: LocalStore, reason: str, wrong: pb.ReserveRequest, at: int
) -> None:
    unary.reserve(100, "first")
    unary.reserve(101, attempt=1)
    unary.abort(102)
    held = unary.reserve(106, producer=("p", 2), lease=20).token
    renewal = requests.reserve(106, producer=("p", 2), lease=3600)
    restart = requests.reserve(1, producer=("p", 3))
    supersede = requests.reserve(101, attempt=9)
    before = store.listing()
    batch = [renewal, restart, supersede]
    if reason in {"STALE_RESERVATION"}:
        batch = [renewal, restart]
    batch.insert(min(at, len(batch)), wrong)
    with refused(reason):
        reserve(unary, *batch)
    assert store.listing() == before
    store.advance(19)
    unary.put(106, held)


@pytest.mark.clock
def test_reserve_again_by_the_same_owners_renews_all(unary: Steps, store: LocalStore) -> None:
    first = reserve(unary, *(requests.reserve(room, lease=10) for room in range(3)))
    store.advance(9)
    again = reserve(unary, *(requests.reserve(room, lease=10) for room in range(4)))
    assert [answer.token for answer in again[:3]] == [answer.token for answer in first]
    store.advance(9)
    for room, answer in enumerate(again):
        unary.put(room, answer.token)


@pytest.mark.settings(slots=3)
def test_reserve_waits_as_one_for_all_its_slots(unary: Steps, store: LocalStore) -> None:
    for room in range(2):
        unary.reserve(room)
    batch = pb.BatchReserveRequest(requests=[requests.reserve(10 + number, max_wait=300) for number in range(3)])
    waiting = unary.caller.start("BatchReserve", batch, None)
    store.until_waiting(1)
    with refused("ARENA_FULL"):
        unary.reserve(5)  # a slot is free, and there is a queue for it
    unary.abort(0)
    assert not waiting.done()
    assert [handoff.key.room for handoff in store.listing()] == [1]
    unary.abort(1)
    assert len(waiting.result().responses) == 3
    assert unary.free == 0


@pytest.mark.clock
@pytest.mark.settings(slots=2)
def test_reserve_waits_no_longer_than_its_least_patient(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1, lease=600)
    with refused("ARENA_FULL"):
        reserve(unary, requests.reserve(2, max_wait=300), requests.reserve(3))
    batch = pb.BatchReserveRequest(requests=[requests.reserve(2, max_wait=300), requests.reserve(3, max_wait=5)])
    waiting = unary.caller.start("BatchReserve", batch, None)
    store.until_waiting(1)
    store.advance(5)
    with refused("ARENA_FULL", slots_total=2, in_use=1):
        waiting.result()
    assert unary.free == 1


@pytest.mark.internals
@pytest.mark.settings(slots=2)
def test_reserve_of_more_than_all_slots_does_not_wait(unary: Steps, store: LocalStore) -> None:
    for wait in (300, None):
        with refused("ARENA_FULL", slots_total=2, in_use=0) as caught:
            reserve(unary, *(requests.reserve(room, max_wait=wait) for room in range(3)))
        assert HOPELESS in caught.error.message
        assert "2 slots and this asks for 3" in caught.error.message
        assert "--slots" in caught.error.message
    assert store.waiting == 0
    with refused("ARENA_FULL") as caught:
        reserve(unary, requests.reserve(1), requests.reserve(2))
        unary.reserve(3)
    assert HOPELESS not in caught.error.message


# -- BatchPut ----------------------------------------------------------------------------------------------------------


@pytest.mark.clock
def test_each_put_succeeds_or_fails_alone(unary: Steps, store: LocalStore) -> None:
    tokens = {room: unary.reserve(room, lease=60 if room != 5 else 1).token for room in range(1, 7)}
    unary.publish(7, records.numbered(7))
    unary.abort(4)
    store.advance(1)
    batch = [
        requests.put(1, tokens[1], records.full(1)),
        requests.put(2, tokens[2], records.with_top(129)),
        requests.put(3, tokens[3], records.record(finish_reason=77)),
        requests.put(4, tokens[4]),
        requests.put(5, tokens[5]),
        requests.put(6, tokens[1]),
        requests.put_once(7, records.numbered(8)),
        pb.PutRequest(key=requests.key(8)),
        requests.put_once(9, records.full(9)),
    ]
    answers = put(unary, batch)
    reasons = [
        "TOP_LOGPROBS_OVERFLOW",
        "INVALID_RECORD",
        "HANDOFF_ABORTED",
        "RESERVATION_EXPIRED",
        "STALE_RESERVATION",
        "RECORD_IMMUTABLE",
        "INVALID_REQUEST",
    ]
    for answer, reason in zip(answers[1:8], reasons, strict=True):
        check(error(answer), reason)
    assert set(error(answers[2]).violations) == {"requests[2].record.finish_reason"}
    assert error(answers[2]).message.startswith("requests[2].record.finish_reason: ")
    assert "requests[7].record" in error(answers[7]).violations
    assert isinstance(answers[0], pb.PutResponse)
    assert isinstance(answers[8], pb.PutResponse)
    assert unary.record(1) == records.full(1)
    assert unary.record(9) == records.full(9)


def test_puts_are_carried_out_in_order(unary: Steps) -> None:
    token = unary.reserve(7).token
    first, second, third = put(
        unary,
        [
            requests.put(7, token, records.numbered(1)),
            requests.put(7, token, records.numbered(2)),
            requests.put(7, token, records.numbered(1)),
        ],
    )
    check(error(second), "RECORD_IMMUTABLE")
    assert first == third
    assert unary.record(7) == records.numbered(1)


@pytest.mark.settings(slots=1)
def test_a_one_shot_put_in_a_batch_may_wait(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1)
    batch = pb.BatchPutRequest(
        requests=[
            requests.put_once(2, records.full(2), requests.reserve(None, max_wait=300)),
            requests.put(9, b"stale"),
        ]
    )
    waiting = unary.caller.start("BatchPut", batch, None)
    store.until_waiting(1)
    unary.abort(1)
    answer: pb.BatchPutResponse = waiting.result()
    assert answer.results[0].HasField("response")
    check(of_status(answer.results[1].error, "BatchPut"), "STALE_RESERVATION")
    assert unary.record(2) == records.full(2)


# -- BatchGet ----------------------------------------------------------------------------------------------------------


@pytest.mark.clock
def test_each_get_succeeds_or_fails_alone_in_order(unary: Steps, store: LocalStore) -> None:
    unary.publish(1, records.full(1))
    unary.reserve(2)
    unary.abort(3)
    unary.reserve(4, lease=1)
    unary.exchange(5)
    store.advance(31)
    rooms = [requests.get(room) for room in (6, 5, 4, 3, 2, 1)]
    rooms.append(requests.get(1, epoch="other"))
    rooms.append(pb.GetRequest(consume=True))
    answers = get(unary, rooms)
    reasons = ["HANDOFF_NOT_FOUND", "ALREADY_CONSUMED", "HANDOFF_EXPIRED", "HANDOFF_ABORTED", "RECORD_NOT_READY"]
    for answer, reason in zip(answers, reasons, strict=False):
        check(error(answer), reason)
    assert isinstance(answers[5], pb.GetResponse)
    assert answers[5].record == records.full(1)
    check(error(answers[6]), "STORE_RESTARTED", expected="other")
    assert set(error(answers[7]).violations) == {"requests[7].key.room", "requests[7].reader_id"}


@pytest.mark.clock
def test_get_answers_when_all_its_items_have_an_answer(unary: Steps, store: LocalStore) -> None:
    unary.publish(1, records.full(1))
    waiting = start_get(unary, [requests.get(room, max_wait=60, reader="decode") for room in (1, 2, 3, 4)])
    store.until_waiting(3)
    unary.publish(3, records.full(3))
    unary.abort(2)
    store.until_waiting(1)
    assert not waiting.done()
    store.advance(60)
    answers = got(waiting.result())
    assert isinstance(answers[0], pb.GetResponse)
    check(error(answers[1]), "HANDOFF_ABORTED", http_status=400)
    assert isinstance(answers[2], pb.GetResponse)
    assert answers[2].record == records.full(3)
    check(error(answers[3]), "RECORD_NOT_READY", state="NONE")


def test_a_key_may_stand_twice_among_gets(unary: Steps, store: LocalStore) -> None:
    waiting = start_get(unary, [requests.get(7, max_wait=60, reader=f"rank {rank}") for rank in range(4)])
    store.until_waiting(4)
    unary.publish(7, records.full(), readers=4)
    answers = got(waiting.result())
    assert all(isinstance(answer, pb.GetResponse) and answer.record == records.full() for answer in answers)


@pytest.mark.settings(max_waiters=2)
def test_items_beyond_the_waiters_allowed_are_told_so(unary: Steps, store: LocalStore) -> None:
    waiting = start_get(unary, [requests.get(room, max_wait=60) for room in (1, 2, 3)])
    store.until_waiting(2)
    unary.publish(1)
    unary.publish(2)
    answers = got(waiting.result())
    check(error(answers[2]), "TOO_MANY_WAITERS", limit=2)


@pytest.mark.internals
def test_drain_wakes_a_waiting_batch(unary: Steps, store: LocalStore) -> None:
    unary.publish(1)
    waiting = start_get(unary, [requests.get(room, max_wait=60) for room in (1, 2)])
    store.until_waiting(1)
    store.core.drain()
    answers = got(waiting.result())
    assert isinstance(answers[0], pb.GetResponse)
    check(error(answers[1]), "DRAINING")


@pytest.mark.settings(slots=128)
def test_a_batch_of_128_all_the_way(unary: Steps) -> None:
    answers = reserve(unary, *(requests.reserve(room) for room in range(128)))
    put(unary, [requests.put(room, answers[room].token, records.numbered(room)) for room in range(128)])
    read = get(unary, [requests.get(room, reader="decode") for room in range(128)])
    for room, answer in enumerate(read):
        assert isinstance(answer, pb.GetResponse)
        assert answer.record == records.numbered(room)
    assert unary.free == 128
