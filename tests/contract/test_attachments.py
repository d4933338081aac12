"""Contract section 8: large parts of a record, on a heap beside the rows."""

from __future__ import annotations

import random

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import of_status, refused
from tests.support.local import LocalStore
from tests.support.records import tensor, with_attachments
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

PAGE = 4096
HEAP = 16 * PAGE
heap = pytest.mark.settings(attachment_heap=HEAP, slots=8)


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes like no others."""
    return random.Random(seed).randbytes(size)


def pages(count: int, seed: int = 1) -> rp.HandoffRecord:
    """A record whose one attachment takes so many pages."""
    return with_attachments(x=noise(count * PAGE - 100, seed))


def declared(count: int) -> pb.Widths:
    """Widths that declare so many pages."""
    return pb.Widths(attachment_bytes=count * PAGE)


@heap
@pytest.mark.parametrize("size", [0, 1, PAGE - 8, PAGE, 3 * PAGE + 1, HEAP - 200])
def test_what_was_attached_comes_back_bit_for_bit(steps: Steps, size: int) -> None:
    record = records.complete(3)
    record.attachments.add(name="a/b;c=1", data=noise(size))
    record.attachments.add(name="t", tensor=tensor(rp.DATA_TYPE_UINT16, [2, 3], noise(12)))
    assert steps.exchange(1, record) == record
    other = with_attachments(empty=b"", one=tensor(rp.DATA_TYPE_FLOAT32, [], noise(4)))
    assert steps.exchange(2, other) == other
    assert steps.exchange(3, records.full()) == records.full()


@pytest.mark.settings(attachment_heap=80 << 20, slots=4)
@pytest.mark.parametrize("size", [3 << 19, 63 << 20])
def test_large_parts(steps: Steps, size: int) -> None:
    record = with_attachments(prompt_logprobs=noise(size))
    assert steps.exchange(1, record) == record


@heap
def test_a_get_may_choose(steps: Steps, store: LocalStore) -> None:
    record = with_attachments(first=noise(5000), second=noise(9000, 2), third=b"3")
    steps.put_once(1, record, readers=9)
    bare = records.record()
    assert steps.record(1, attachments=[]) == bare
    assert steps.record(1, attachments=["nothing of this name"]) == bare
    chosen = with_attachments(second=noise(9000, 2))
    assert steps.record(1, attachments=["second", "unknown"]) == chosen
    assert steps.record(1, attachments=["third", "first"]) == with_attachments(first=noise(5000), third=b"3")
    assert steps.record(1) == record
    waiting = [steps.start_get(2, attachments=names) for names in ([], ["third"], ["third"])]
    everything = steps.start_get(2)
    store.until_waiting(4)
    steps.put_once(2, record)
    assert [one.result().record for one in waiting] == [bare, *[with_attachments(third=b"3")] * 2]
    assert everything.result().record == record
    with refused("INVALID_REQUEST"):
        steps.get(1, attachments=map(str, range(17)))


@heap
@pytest.mark.parametrize(
    ("record", "field"),
    [
        (with_attachments(x=b"", **{f"n{n}": b"" for n in range(16)}), "record.attachments"),
        (rp.HandoffRecord(attachments=[rp.Attachment(name="x", data=b"")] * 2), "record.attachments[1].name"),
        (rp.HandoffRecord(attachments=[rp.Attachment(name="", data=b"")]), "record.attachments[0].name"),
        (rp.HandoffRecord(attachments=[rp.Attachment(name="n" * 65, data=b"")]), "record.attachments[0].name"),
        (rp.HandoffRecord(attachments=[rp.Attachment(name="a b", data=b"")]), "record.attachments[0].name"),
        (rp.HandoffRecord(attachments=[rp.Attachment(name="x")]), "record.attachments[0].content"),
        (with_attachments(x=tensor(rp.DATA_TYPE_INT32, [2], b"1234")), "record.attachments[0].tensor.data"),
        (with_attachments(x=tensor(0, [1], b"1")), "record.attachments[0].tensor.dtype"),
    ],
)
def test_what_is_malformed(steps: Steps, record: rp.HandoffRecord, field: str) -> None:
    wrong = records.record()
    wrong.attachments.extend(record.attachments)
    token = steps.reserve(1).token
    with refused("INVALID_RECORD") as caught:
        steps.put(1, token, wrong)
    assert field in caught.error.message
    assert steps.capabilities().attachment_heap_free == HEAP
    steps.put(1, token, pages(1))
    assert steps.record(1) == pages(1)


def test_without_a_heap_an_attachment_is_refused_by_name(steps: Steps) -> None:
    assert "attachments" not in steps.capabilities().features
    token = steps.reserve(1).token
    with refused("FIELD_OVERFLOW", field="attachment_bytes", limit=0) as at_put:
        steps.put(1, token, with_attachments(x=b"1"))
    assert "--attachment-heap" in at_put.error.message
    with refused("FIELD_OVERFLOW", field="attachment_bytes", requested=5, limit=0) as at_reserve:
        steps.reserve(2, widths=pb.Widths(attachment_bytes=5))
    assert "--attachment-heap" in at_reserve.error.message
    steps.put(1, token, records.full())
    assert steps.record(1, attachments=["x"]) == records.full()


@heap
def test_what_can_never_fit_is_an_overflow(steps: Steps) -> None:
    facts = steps.capabilities()
    assert (facts.limits.attachment_bytes, facts.attachment_heap_bytes, facts.attachment_page_bytes) == (
        *(HEAP, HEAP),
        PAGE,
    )
    assert "attachments" in facts.features
    with refused("FIELD_OVERFLOW", field="attachment_bytes", requested=HEAP + 1, limit=HEAP):
        steps.reserve(1, widths=pb.Widths(attachment_bytes=HEAP + 1))
    with refused("FIELD_OVERFLOW", field="attachment_bytes", limit=HEAP):
        steps.put_once(1, pages(17))
    assert steps.capabilities().attachment_heap_free == HEAP


@heap
def test_declared_pages_are_held_and_go_back_at_whatever_end(steps: Steps, store: LocalStore) -> None:
    def free() -> int:
        return steps.capabilities().attachment_heap_free // PAGE

    token = steps.reserve(1, widths=declared(10)).token
    assert free() == 6
    with refused("ARENA_FULL", heap_total=HEAP, heap_in_use=10 * PAGE, slots_total=8, in_use=1) as caught:
        steps.reserve(2, widths=declared(7))
    assert caught.error.retry_after is not None
    steps.put(1, token, pages(3))  # what is not needed goes back
    assert free() == 13
    steps.reserve(2, widths=declared(13))
    assert free() == 0
    second = steps.reserve(3).token
    with refused("ARENA_FULL", heap_total=HEAP, heap_in_use=HEAP):
        steps.put(3, second, pages(1))
    steps.abort(2)
    assert free() == 13
    steps.put(3, second, pages(13, 2))  # undeclared: taken at Put
    assert free() == 0
    steps.get(3, reader="r")  # consumed: its pages can be had
    assert free() == 13
    assert steps.record(3, reader="r") == pages(13, 2)
    steps.put_once(4, pages(13, 3))
    with refused("ALREADY_CONSUMED"):
        steps.get(3)
    assert steps.record(1) == pages(3)
    steps.reserve(4, attempt=1, widths=declared(13))  # what it supersedes makes the room
    steps.release(4, token=steps.reserve(4, attempt=1).token)
    steps.release(1, reader="r")
    assert free() == 16
    assert store.sight(3) is not None


@heap
def test_whoever_waits_for_pages_has_them_in_turn_and_holds_up_nobody_else(steps: Steps, store: LocalStore) -> None:
    steps.put_once(1, pages(10))
    large = steps.start_reserve(2, max_wait=60, widths=declared(12))
    store.until_waiting(1)
    with refused("ARENA_FULL", heap_total=HEAP):  # six pages are free, and the large one came first
        steps.reserve(3, widths=declared(2))
    small = steps.start_reserve(3, max_wait=60, widths=declared(2))
    store.until_waiting(2)
    token = steps.reserve(4).token
    with refused("ARENA_FULL", heap_total=HEAP):
        steps.put(4, token, pages(1))
    steps.put(4, token, records.full())  # no page, no line
    steps.put_once(5)
    assert not large.done()
    steps.get(1, reader="r")
    assert large.result().token
    assert small.result().token
    assert steps.capabilities().attachment_heap_free == 2 * PAGE


@heap
def test_a_one_shot_put_waits_for_pages(steps: Steps, store: LocalStore) -> None:
    steps.put_once(1, pages(10))
    request = requests.put_once(2, pages(8, 2), requests.reserve(None, max_wait=60))
    waiting = steps.caller.start("Put", request)
    got = steps.start_get(2, reader="r")
    store.until_waiting(2)
    steps.get(1, reader="r")
    waiting.result()
    assert got.result().record == pages(8, 2)


@heap
def test_a_repeated_put_is_told_from_another(steps: Steps) -> None:
    record = with_attachments(x=noise(6000))
    token = steps.publish(1, record)
    first = steps.put(1, token, record)
    assert steps.put(1, token, record) == first
    for other in (with_attachments(x=noise(6000, 2)), with_attachments(y=noise(6000)), records.record()):
        with refused("RECORD_IMMUTABLE"):
            steps.put(1, token, other)
    steps.get(1, reader="r")
    steps.release(1, token=token)
    assert steps.put(1, token, record) == first
    with refused("RECORD_IMMUTABLE"):
        steps.put(1, token, records.record())


@heap
def test_unknown_fields_stay_beside_attachments(steps: Steps) -> None:
    record = with_attachments(x=noise(5000), y=b"")
    record.MergeFromString(b"\xfa\x01\x03new")
    got = steps.exchange(1, record)
    assert got.SerializeToString(deterministic=True) == record.SerializeToString(deterministic=True)


@heap
def test_a_batch_over_the_heap_is_hopeless(unary: Steps) -> None:
    def reserve(wait: float | None, *counts: int) -> pb.BatchReserveRequest:
        each = [requests.reserve(n, max_wait=wait, widths=declared(count)) for n, count in enumerate(counts)]
        return pb.BatchReserveRequest(requests=each)

    with refused("ARENA_FULL", heap_total=HEAP) as caught:
        unary.caller.call("BatchReserve", reserve(60, 9, 8))
    assert "waiting does not help" in caught.error.message
    unary.caller.call("BatchReserve", reserve(None, 9, 7))
    assert unary.capabilities().attachment_heap_free == 0


@pytest.mark.settings(attachment_heap=16 << 20, max_attachment_bytes=3 << 20, slots=8)
def test_a_batch_answers_up_to_the_largest_message(unary: Steps) -> None:
    assert unary.capabilities().max_message_bytes < 16 << 20
    wide = with_attachments(x=noise((3 << 20) - 200))
    most = unary.capabilities().max_message_bytes // (3 << 20)
    for room in range(5):
        unary.put_once(room, wide)
    gets = pb.BatchGetRequest(requests=[requests.get(room, reader="r") for room in range(5)])
    answer: pb.BatchGetResponse = unary.caller.call("BatchGet", gets)
    whole = [result for result in answer.results if result.HasField("response")]
    assert len(whole) == min(most, 5)
    assert all(result.response.record == wide for result in whole)
    for room, result in enumerate(answer.results):
        if not result.HasField("response"):
            assert of_status(result.error).reason == "TOO_MANY_WAITERS"
            assert unary.record(room, reader="r") == wide  # it was not counted
