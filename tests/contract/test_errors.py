"""Contract section 6, row by row: code, reason, metadata and details. `refused` holds each against the whole table."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.store.interface import Query

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire


@pytest.mark.settings(slots=2)
def test_no_free_slot(steps: Steps) -> None:
    steps.reserve(1)
    steps.publish(2)
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        steps.reserve(3)
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        steps.put_once(3)


@pytest.mark.settings(slots=1, max_waiters=2)
def test_too_many_waiting_calls(steps: Steps, store: LocalStore) -> None:
    steps.reserve(1)
    waiting = [steps.start_get(1), steps.start_get(2)]
    store.until_waiting(2)
    with refused("TOO_MANY_WAITERS", limit=2):
        steps.get(3, max_wait=5)
    with refused("TOO_MANY_WAITERS", limit=2):
        steps.reserve(4, max_wait=5)
    with refused("TOO_MANY_WAITERS", limit=2):
        steps.put_once(4, max_wait=5)
    steps.abort(2)
    with refused("HANDOFF_ABORTED"):
        waiting[1].result()
    third = steps.start_get(3)  # one of them has gone: there is room for this
    store.until_waiting(2)
    assert not third.done()


@pytest.mark.clock
def test_a_live_key_of_another_owner(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, "first").token
    store.advance(1.5)
    with refused("HANDOFF_EXISTS", state="RESERVED", age_ms=1500):
        steps.reserve(7, "second")
    with refused("HANDOFF_EXISTS", state="RESERVED", age_ms=1500):
        steps.put_once(7, owner="second")
    steps.put(7, token)
    store.advance(0.25)
    with refused("HANDOFF_EXISTS", state="PUBLISHED", age_ms=1750):
        steps.reserve(7, "second")


def test_second_put_of_another_record(steps: Steps) -> None:
    token = steps.publish(7, records.numbered(1))
    with refused("RECORD_IMMUTABLE"):
        steps.put(7, token, records.numbered(2))
    steps.get(7, reader="decode")
    with refused("RECORD_IMMUTABLE"):
        steps.put(7, token, records.numbered(2))
    assert steps.record(7) == records.numbered(1)


@pytest.mark.clock
def test_stale_token_tells_the_state_of_the_key(steps: Steps, store: LocalStore) -> None:
    unknown = b"never made by any store"

    def stale(state: str) -> None:
        with refused("STALE_RESERVATION", state=state):
            steps.put(7, unknown)

    stale("NONE")
    token = steps.reserve(7, lease=60).token
    stale("RESERVED")
    steps.put(7, token)
    stale("PUBLISHED")
    steps.get(7, reader="decode")
    stale("CONSUMED")
    steps.release(7, token=token)
    stale("CONSUMED")
    steps.reserve(7, attempt=1)
    steps.abort(7)
    stale("ABORTED")
    steps.reserve(7, attempt=2, lease=60)
    store.advance(61)
    stale("EXPIRED")


def test_superseded_and_lower_attempt(steps: Steps) -> None:
    old = steps.reserve(7, attempt=3).token
    steps.reserve(7, attempt=4)
    with refused("STALE_RESERVATION", state="RESERVED"):
        steps.put(7, old)
    with refused("STALE_RESERVATION", state="RESERVED"):
        steps.reserve(7, attempt=3)
    with refused("STALE_RESERVATION", state="RESERVED"):
        steps.put_once(7, attempt=3)


@pytest.mark.clock
def test_lease_ran_out_before_put(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, lease=2).token
    store.advance(2)
    with refused("RESERVATION_EXPIRED"):
        steps.put(7, token)
    with refused("RESERVATION_EXPIRED"):
        steps.reserve(7)
    with refused("RESERVATION_EXPIRED"):
        steps.put_once(7)
    with refused("HANDOFF_EXPIRED"):
        steps.get(7)


def test_get_of_a_key_nobody_knows(steps: Steps) -> None:
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7)
    steps.reserve(7)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7, attempt=1)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(8, max_wait=0)


def test_get_without_wait_of_a_reserved_one(steps: Steps) -> None:
    steps.reserve(7)
    with refused("RECORD_NOT_READY", state="RESERVED"):
        steps.get(7)


@pytest.mark.internals
@pytest.mark.parametrize("reserved", [False, True])
def test_wait_ran_out(steps: Steps, store: LocalStore, reserved: bool) -> None:
    if reserved:
        steps.reserve(7, lease=60)
    waiting = steps.start_get(7, max_wait=10)
    store.until_waiting(1)
    store.advance(9.9)
    assert store.waiting == 1
    store.advance(0.1)
    with refused("RECORD_NOT_READY", state="RESERVED" if reserved else "NONE"):
        waiting.result()
    assert store.waiting == 0


def test_aborted_hand_off_tells_the_failure(steps: Steps) -> None:
    token = steps.reserve(7).token
    steps.abort(7, why=requests.failure(413, "PROMPT_TOO_LONG", "das Prompt ist zu lang \u2026"))
    told = {"http_status": "413", "failure_reason": "PROMPT_TOO_LONG"}
    for again in range(2):
        with refused("HANDOFF_ABORTED", **told) as caught:
            steps.get(7, reader=f"rank {again}")
        assert caught.error.message == "das Prompt ist zu lang \u2026"
        with refused("HANDOFF_ABORTED", **told):
            steps.put(7, token)
        with refused("HANDOFF_ABORTED", **told):
            steps.reserve(7)
        with refused("HANDOFF_ABORTED", **told):
            steps.put_once(7)


@pytest.mark.clock
def test_get_of_an_expired_hand_off(steps: Steps, store: LocalStore) -> None:
    token = steps.publish(7, records.numbered(1))
    store.advance(300)
    with refused("HANDOFF_EXPIRED"):
        steps.get(7)
    with refused("HANDOFF_EXPIRED"):
        steps.reserve(7)
    with refused("HANDOFF_EXPIRED"):
        steps.put(7, token, records.numbered(2))


def test_producer_restarted(steps: Steps) -> None:
    token = steps.reserve(7, producer=("p", 1)).token
    steps.reserve(8, producer=("p", 2))
    with refused("PRODUCER_RESTARTED"):
        steps.get(7)
    with refused("PRODUCER_RESTARTED"):
        steps.put(7, token)
    with refused("PRODUCER_RESTARTED"):
        steps.reserve(9, producer=("p", 1))
    with refused("PRODUCER_RESTARTED"):
        steps.put_once(9, producer=("p", 1))


@pytest.mark.clock
def test_get_after_it_was_consumed_and_freed(steps: Steps, store: LocalStore) -> None:
    steps.publish(7)
    steps.get(7, reader="decode")
    store.advance(30)
    with refused("ALREADY_CONSUMED"):
        steps.get(7, reader="decode")
    with refused("ALREADY_CONSUMED"):
        steps.reserve(7)


def test_store_epoch_differs(steps: Steps) -> None:
    steps.publish(7)
    epoch = steps.capabilities().store_epoch
    assert steps.get(7, epoch=epoch).store_epoch == epoch
    with refused("STORE_RESTARTED", expected="0123", actual=epoch):
        steps.get(7, epoch="0123")
    with refused("STORE_RESTARTED", expected="0123", actual=epoch):
        steps.get(8, epoch="0123", max_wait=5)


def test_schema_fingerprint_differs(steps: Steps) -> None:
    fingerprint = steps.capabilities().schema_fingerprint
    assert steps.capabilities(expected_schema_fingerprint=fingerprint).schema_fingerprint == fingerprint
    with refused("SCHEMA_MISMATCH", expected="77ab", actual=fingerprint):
        steps.capabilities(expected_schema_fingerprint="77ab")
    with refused("SCHEMA_MISMATCH", expected="", actual=fingerprint):
        steps.capabilities(expected_schema_fingerprint="")


@pytest.mark.internals
def test_draining(steps: Steps, store: LocalStore) -> None:
    steps.publish(7)
    store.core.drain()
    with refused("DRAINING"):
        steps.reserve(8)
    with refused("DRAINING"):
        steps.put_once(8)
    with refused("DRAINING"):
        steps.get(8, max_wait=5)


def _break(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every call of the core fail in a way that nobody foresaw."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the house: /etc/passwd")

    for name in ("reserve", "reserve_all", "put", "put_reserving", "get", "release", "abort", "facts"):
        monkeypatch.setattr(store.core, name, fail)


@pytest.mark.internals
@pytest.mark.parametrize(("method", "request_"), requests.EACH, ids=[method for method, _ in requests.EACH])
def test_unforeseen_errors_do_not_show_their_text(
    steps: Steps,
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[str],
    method: str,
    request_: Message,
) -> None:
    with monkeypatch.context() as broken:
        _break(store, broken)
        with refused("INTERNAL") as caught:
            steps.caller.call(method, request_)
        assert caught.error.status is not None
        assert b"secret" not in caught.error.status.SerializeToString()
    assert "RuntimeError" in failures.pop()  # the log has the cause
    steps.put_once(9)  # and the store, stream or not, serves on
    steps.get(9, reader="decode")


@pytest.mark.internals
def test_a_batch_that_fails_leaves_nothing_waiting(
    unary: Steps, store: LocalStore, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    original = store.core.await_record

    def wait(query: Query, *rest: object) -> object:
        if query.key[1] == 3:
            raise RuntimeError("a secret of the house")
        return original(query, *rest)

    monkeypatch.setattr(store.core, "await_record", wait)
    batch = pb.BatchGetRequest(requests=[requests.get(room, max_wait=300) for room in (1, 2, 3, 4)])
    with refused("INTERNAL"):
        unary.caller.call("BatchGet", batch)
    assert store.waiting == 0
    assert "RuntimeError" in failures.pop()


@pytest.mark.internals
def test_a_batch_that_fails_when_its_answer_is_made_is_told_and_logged(
    unary: Steps, store: LocalStore, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    def get(query: Query, *rest: object) -> object:
        raise RuntimeError("a secret of the house")

    waiting = unary.caller.start("BatchGet", pb.BatchGetRequest(requests=[requests.get(1, max_wait=300)]), None)
    store.until_waiting(1)
    monkeypatch.setattr(store.core, "get", get)
    unary.put_once(1)
    with refused("INTERNAL"):
        waiting.result()
    assert "RuntimeError" in failures.pop()
