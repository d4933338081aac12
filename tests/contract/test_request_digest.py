"""Contract section 8: a record reaches only the request that it was computed for, where both sides say which it is."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.failures import check, of_status, refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

MINE, OTHER = b"\x00" * 31 + b"a", b"\x00" * 31 + b"b"
PUBLISHED = admin_pb2.HANDOFF_STATE_PUBLISHED


@pytest.mark.parametrize(
    ("reserved", "asked"), [(b"", b""), (b"", OTHER), (MINE, b""), (MINE, MINE), (b"\x00", b"\x00")]
)
def test_a_get_has_the_record_where_the_digests_do_not_differ(steps: Steps, reserved: bytes, asked: bytes) -> None:
    steps.put_once(7, records.full(), digest=reserved)
    assert steps.record(7, reader="decode", digest=asked) == records.full()
    steps.publish(8, records.full(), digest=reserved)
    assert steps.record(8, reader="decode", digest=asked) == records.full()


@pytest.mark.parametrize("other", [OTHER, MINE[:31], MINE[:1], b"\x00" * 32])
def test_a_get_of_another_request_has_nothing_and_counts_for_nothing(
    steps: Steps, store: LocalStore, other: bytes
) -> None:
    steps.reserve(7, digest=MINE)
    with refused("REQUEST_MISMATCH", state="RESERVED"):
        steps.get(7, digest=other)
    token = steps.reserve(7, digest=MINE).token
    steps.put(7, token, records.full())
    for wait in (None, 300):
        with refused("REQUEST_MISMATCH", state="PUBLISHED") as caught:
            steps.get(7, reader="decode", digest=other, max_wait=wait)
        assert len(caught.error.status.details) == 1  # type: ignore[union-attr]
    assert (store.sight(7).state, store.sight(7).readers_done) == (PUBLISHED, 0)
    steps.get(7, reader="decode", digest=MINE)
    with refused("REQUEST_MISMATCH", state="CONSUMED"):
        steps.get(7, reader="another", digest=other)


def test_a_waiting_get_is_refused_as_soon_as_another_request_reserves_the_room(steps: Steps, store: LocalStore) -> None:
    waiting = steps.start_get(7, reader="decode", digest=OTHER)
    right = steps.start_get(7, reader="right", digest=MINE)
    store.until_waiting(2)
    token = steps.reserve(7, digest=MINE, readers=2).token
    with refused("REQUEST_MISMATCH", state="RESERVED"):
        waiting.result()
    assert not right.done()
    steps.put(7, token)
    right.result()
    assert store.sight(7).readers_done == 1


def test_a_waiting_get_is_refused_by_a_one_shot_put_of_another_request(steps: Steps, store: LocalStore) -> None:
    waiting = steps.start_get(7, reader="decode", digest=OTHER)
    store.until_waiting(1)
    steps.put_once(7, digest=MINE)
    with refused("REQUEST_MISMATCH", state="PUBLISHED"):
        waiting.result()


def test_each_attempt_has_its_own_digest(steps: Steps) -> None:
    steps.publish(7, digest=MINE)
    steps.publish(7, records.numbered(1), attempt=1, digest=OTHER)
    assert steps.record(7, digest=OTHER) == records.numbered(1)
    with refused("REQUEST_MISMATCH"):
        steps.get(7, digest=MINE)
    steps.publish(7, records.numbered(2), attempt=2)
    assert steps.record(7, digest=MINE) == records.numbered(2)


@pytest.mark.clock
def test_a_renewal_keeps_the_digest_and_never_changes_it(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7, digest=MINE).token
    assert steps.reserve(7, digest=MINE).token == token
    assert steps.reserve(7).token == token
    store.advance(1)
    with refused("HANDOFF_EXISTS", state="RESERVED", age_ms=1000):
        steps.reserve(7, digest=OTHER)
    steps.reserve(8)
    with refused("HANDOFF_EXISTS", state="RESERVED"):
        steps.reserve(8, digest=MINE)
    steps.put(7, token)
    with refused("HANDOFF_EXISTS", state="PUBLISHED"):
        steps.reserve(7, digest=OTHER)
    with refused("REQUEST_MISMATCH"):
        steps.get(7, digest=OTHER)


def test_a_repeated_one_shot_put_keeps_its_digest(steps: Steps) -> None:
    first = steps.put_once(7, digest=MINE)
    assert steps.put_once(7, digest=MINE) == first
    assert steps.put_once(7) == first
    with refused("HANDOFF_EXISTS", state="PUBLISHED"):
        steps.put_once(7, digest=OTHER)


def test_batches_carry_it_item_by_item(unary: Steps) -> None:
    reserves = [requests.reserve(room, digest=MINE) for room in (1, 2)]
    held = unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=reserves))
    with refused("HANDOFF_EXISTS"):
        unary.caller.call(
            "BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(3), requests.reserve(1, digest=OTHER)])
        )
    puts = [requests.put(room, one.token) for room, one in zip((1, 2), held.responses, strict=True)]
    puts.append(requests.put_once(3, None, requests.reserve(None, digest=MINE)))
    answers = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=puts))
    assert [one.WhichOneof("result") for one in answers.results] == ["response"] * 3
    gets = [requests.get(room, digest=digest) for room in (1, 2, 3) for digest in (MINE, OTHER)]
    answers = unary.caller.call("BatchGet", pb.BatchGetRequest(requests=gets))
    assert [one.WhichOneof("result") for one in answers.results] == ["response", "error"] * 3
    for one in answers.results[1::2]:
        check(of_status(one.error, "BatchGet"), "REQUEST_MISMATCH", state="PUBLISHED")


@pytest.mark.parametrize("size", [33, 4096])
def test_a_digest_that_is_too_long_is_refused_in_words(steps: Steps, size: int) -> None:
    long = bytes(size)
    for method, request, field in (
        ("Reserve", requests.reserve(7, digest=long), "request_digest"),
        ("Put", requests.put_once(7, None, requests.reserve(None, digest=long)), "reserve.request_digest"),
        ("Get", requests.get(7, digest=long), "request_digest"),
    ):
        with refused("INVALID_REQUEST") as caught:
            steps.caller.call(method, request)
        assert caught.error.violations == {field: f"has {size} bytes; at most 32 are legal"}


def test_the_outcome_of_what_has_ended_is_anybodys(steps: Steps) -> None:
    token = steps.reserve(7, digest=MINE).token
    steps.abort(7, token=token)
    with refused("HANDOFF_ABORTED", failure_reason="INPUT_TOO_LONG"):
        steps.get(7, digest=OTHER)
