"""Contract section 6: what is malformed is refused with one violation a field; nothing is padded, cast or guessed."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.records import Token, logprobs, record, with_hidden
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

F32, F16, BF16, E4M3 = (
    rp.DATA_TYPE_FLOAT32,
    rp.DATA_TYPE_FLOAT16,
    rp.DATA_TYPE_BFLOAT16,
    rp.DATA_TYPE_FLOAT8_E4M3,
)


def state(**parts: Any) -> rp.HandoffRecord:
    """A record with this speculative state."""
    return record(speculative=rp.SpeculativeState(**parts))


def mask(**parts: Any) -> rp.HandoffRecord:
    """A record with this sampling mask."""
    return record(sampling_mask=rp.SamplingMask(**parts))


def top(**parts: Any) -> rp.HandoffRecord:
    """A record with these top logprobs."""
    return record(Token(token_id=1, top_logprobs=rp.Logprobs(**parts)))


RECORDS: dict[str, tuple[rp.HandoffRecord, str]] = {
    "no tokens": (rp.HandoffRecord(customized_info=b"x"), "record.tokens"),
    "negative token": (record(Token(token_id=-1)), "record.tokens[0].token_id"),
    "least token": (record(Token(token_id=-(1 << 31))), "record.tokens[0].token_id"),
    "second token negative": (record(Token(), Token(token_id=-7)), "record.tokens[1].token_id"),
    "three values, five ids": (top(values=[-1, -2, -3], token_ids=range(5)), "record.tokens[0].top_logprobs"),
    "five values, three ids": (top(values=[-1] * 5, token_ids=range(3)), "record.tokens[0].top_logprobs"),
    "129 ids, no values": (top(token_ids=range(129)), "record.tokens[0].top_logprobs"),
    "values, no ids": (top(values=[-1.0]), "record.tokens[0].top_logprobs"),
    "negative id": (top(values=[-1.0], token_ids=[-1]), "record.tokens[0].top_logprobs.token_ids"),
    "listed ids unequal": (
        record(Token(), Token(token_ids_logprobs=rp.Logprobs(values=[-1.0]))),
        "record.tokens[1].token_ids_logprobs",
    ),
    "negative listed id": (
        record(Token(token_ids_logprobs=rp.Logprobs(values=[0], token_ids=[-5]))),
        "record.tokens[0].token_ids_logprobs.token_ids",
    ),
    "mask unequal": (mask(token_ids=[1, 2], logprobs=[-1.0]), "record.sampling_mask"),
    "mask logprobs alone": (mask(logprobs=[-1.0]), "record.sampling_mask"),
    "mask negative": (mask(token_ids=[3, -1]), "record.sampling_mask.token_ids"),
    "candidates unequal": (state(topk_p=[0.5], topk_index=[1, 2]), "record.speculative.topk_p"),
    "candidates without p": (state(topk_index=[1]), "record.speculative.topk_p"),
    "dtype left out": (with_hidden(0, [1], b"1234"), "record.speculative.hidden_states.dtype"),
    "dtype unknown": (with_hidden(99, [1], b"1234"), "record.speculative.hidden_states.dtype"),
    "one byte short": (with_hidden(F32, [2, 2], bytes(15)), "record.speculative.hidden_states.data"),
    "one byte over": (with_hidden(BF16, [4096], bytes(8193)), "record.speculative.hidden_states.data"),
    "bytes of another dtype": (with_hidden(F16, [8], bytes(32)), "record.speculative.hidden_states.data"),
    "to be broadcast": (with_hidden(F32, [4, 4], bytes(16)), "record.speculative.hidden_states.data"),
    "no shape, two elements": (with_hidden(E4M3, [], bytes(2)), "record.speculative.hidden_states.data"),
    "zero in shape, yet data": (with_hidden(F32, [0, 4], bytes(16)), "record.speculative.hidden_states.data"),
    "shape overflows 64 bits": (
        with_hidden(E4M3, [1 << 16] * 4, b""),
        "record.speculative.hidden_states.data",
    ),
    "nine dimensions": (with_hidden(E4M3, [1] * 9, b"1"), "record.speculative.hidden_states.shape"),
    "finish reason unspecified": (record(finish_reason=0), "record.finish_reason"),
    "finish reason unknown": (record(finish_reason=77), "record.finish_reason"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_malformed_record(shared: Steps, room: int, what: str) -> None:
    wrong, field = RECORDS[what]
    token = shared.reserve(room).token
    with refused("INVALID_RECORD") as caught:
        shared.put(room, token, wrong)
    assert list(caught.error.violations) == [field]
    with refused("INVALID_RECORD"):
        shared.put_once(-room % (1 << 64), wrong)
    shared.put(room, token, records.numbered(7))  # the reservation lives on
    assert shared.record(room, reader="decode") == records.numbered(7)
    with refused("HANDOFF_NOT_FOUND"):
        shared.get(-room % (1 << 64))


def test_each_wrong_field_has_a_violation(shared: Steps) -> None:
    wrong = rp.HandoffRecord(
        tokens=[Token(token_id=-1, top_logprobs=rp.Logprobs(values=[0.0]))],
        sampling_mask=rp.SamplingMask(logprobs=[1.0]),
        finish_reason=rp.FINISH_REASON_UNSPECIFIED,
    )
    with refused("INVALID_RECORD") as caught:
        shared.put_once(7, wrong)
    assert set(caught.error.violations) == {
        "record.tokens[0].token_id",
        "record.tokens[0].top_logprobs",
        "record.sampling_mask",
        "record.finish_reason",
    }


NO_ROOM = rp.HandoffKey(namespace="a", sample=1)
RECORD = records.record()
LONG = "o" * 257
WIDE = "\u00f6" * 129  # 258 bytes


def spaced(namespace: str) -> rp.HandoffKey:
    """A key in this namespace."""
    return rp.HandoffKey(namespace=namespace, room=1)


REQUESTS: dict[str, tuple[str, Message, set[str]]] = {
    "reserve without key": ("Reserve", pb.ReserveRequest(owner="p"), {"key.room"}),
    "reserve without room": ("Reserve", pb.ReserveRequest(key=NO_ROOM, owner="p"), {"key.room"}),
    "reserve without owner": ("Reserve", requests.reserve(7, ""), {"owner"}),
    "reserve without anything": ("Reserve", pb.ReserveRequest(), {"key.room", "owner"}),
    "owner too long": ("Reserve", requests.reserve(7, LONG), {"owner"}),
    "owner too long in bytes": ("Reserve", requests.reserve(7, WIDE), {"owner"}),
    "negative lease": ("Reserve", requests.reserve(7, lease=-1), {"lease"}),
    "negative by nanoseconds": ("Reserve", requests.reserve(7, lease=-0.5), {"lease"}),
    "negative wait": ("Reserve", requests.reserve(7, max_wait=-1), {"max_wait"}),
    "producer without instance": ("Reserve", requests.reserve(7, producer=("", 1)), {"producer.instance_id"}),
    "instance too long": ("Reserve", requests.reserve(7, producer=(LONG, 1)), {"producer.instance_id"}),
    "too many readers": ("Reserve", requests.reserve(7, readers=1025), {"expected_readers"}),
    "namespace of 129": ("Reserve", requests.reserve(spaced("n" * 129)), {"key.namespace"}),
    "namespace of 10,000": ("Reserve", requests.reserve(spaced("n" * 10_000)), {"key.namespace"}),
    "namespace with slash": ("Reserve", requests.reserve(spaced("a/b")), {"key.namespace"}),
    "namespace with space": ("Reserve", requests.reserve(spaced(" ")), {"key.namespace"}),
    "namespace with newline": ("Reserve", requests.reserve(spaced("a\n")), {"key.namespace"}),
    "namespace beyond ASCII": ("Reserve", requests.reserve(spaced("caf\u00e9")), {"key.namespace"}),
    "namespace with NUL": ("Reserve", requests.reserve(spaced("a\0")), {"key.namespace"}),
    "put without key": ("Put", pb.PutRequest(token=b"t", record=RECORD), {"key.room"}),
    "put without token": ("Put", pb.PutRequest(key=requests.key(7), record=RECORD), {"token"}),
    "put without record": ("Put", pb.PutRequest(key=requests.key(7), token=b"t"), {"record"}),
    "put without anything": ("Put", pb.PutRequest(), {"key.room", "record", "token"}),
    "put of another namespace": ("Put", requests.put(spaced("\u2028"), b"t"), {"key.namespace"}),
    "token beside reserve": (
        "Put",
        pb.PutRequest(key=requests.key(7), token=b"t", record=RECORD, reserve=requests.reserve(None)),
        {"token"},
    ),
    "key inside reserve": (
        "Put",
        pb.PutRequest(key=requests.key(7), record=RECORD, reserve=requests.reserve(7)),
        {"reserve.key"},
    ),
    "empty key inside reserve": (
        "Put",
        pb.PutRequest(key=requests.key(7), record=RECORD, reserve=pb.ReserveRequest(key=rp.HandoffKey(), owner="p")),
        {"reserve.key"},
    ),
    "one shot without owner": ("Put", requests.put_once(7, None, requests.reserve(None, "")), {"reserve.owner"}),
    "one shot without record": (
        "Put",
        pb.PutRequest(key=requests.key(7), reserve=requests.reserve(None)),
        {"record"},
    ),
    "one shot, negative lease": (
        "Put",
        requests.put_once(7, None, requests.reserve(None, lease=-1)),
        {"reserve.lease"},
    ),
    "get without key": ("Get", pb.GetRequest(), {"key.room"}),
    "get without room": ("Get", pb.GetRequest(key=NO_ROOM, max_wait=Duration(seconds=1)), {"key.room"}),
    "consume without reader": ("Get", requests.get(7, consume=True), {"reader_id"}),
    "reader too long": ("Get", requests.get(7, reader=LONG), {"reader_id"}),
    "reader too long, no consume": ("Get", requests.get(7, reader=LONG, consume=False), {"reader_id"}),
    "get with negative wait": ("Get", requests.get(7, max_wait=-0.001), {"max_wait"}),
    "release without key": ("Release", pb.ReleaseRequest(token=b"t"), {"key.room"}),
    "release of nothing": ("Release", pb.ReleaseRequest(key=requests.key(7)), {"token"}),
    "release of both": ("Release", pb.ReleaseRequest(key=requests.key(7), token=b"t", reader_id="r"), {"token"}),
    "release by a long reader": ("Release", pb.ReleaseRequest(key=requests.key(7), reader_id=LONG), {"reader_id"}),
    "abort without key": ("Abort", pb.AbortRequest(), {"key.room"}),
    "abort by token and attempt": ("Abort", requests.abort(7, token=b"t", attempt=0), {"attempt"}),
    "status 99": ("Abort", requests.abort(7, why=requests.failure(99)), {"failure.http_status"}),
    "status 600": ("Abort", requests.abort(7, why=requests.failure(600)), {"failure.http_status"}),
    "negative status": ("Abort", requests.abort(7, why=requests.failure(-400)), {"failure.http_status"}),
    "reason in lower case": ("Abort", requests.abort(7, why=requests.failure(reason="oops")), {"failure.reason"}),
    "reason of 64": ("Abort", requests.abort(7, why=requests.failure(reason="R" * 64)), {"failure.reason"}),
}


@pytest.mark.internals
@pytest.mark.parametrize("what", REQUESTS)
def test_malformed_request(shared: Steps, shared_store: LocalStore, what: str) -> None:
    method, request, fields = REQUESTS[what]
    free = shared.free
    with refused("INVALID_REQUEST") as caught:
        shared.caller.call(method, request)
    assert set(caught.error.violations) == fields
    assert shared.free == free
    assert shared_store.waiting == 0


@pytest.mark.parametrize("method", ["Capabilities", "Reserve", "Put", "Get", "Release", "Abort"])
@pytest.mark.parametrize(
    "garbage",
    [b"\x0a", b"\x0a\x05ab", b"\xff" * 40, b"\x12\x01\xff\x0a\x03\x0a\x01\xff", b"\x07\x07"],
    ids=["cut", "short", "ones", "not UTF-8", "bad wire type"],
)
def test_bytes_that_are_no_message(shared: Steps, room: int, method: str, garbage: bytes) -> None:
    with refused("INVALID_REQUEST"):
        shared.caller.call(method, garbage)
    assert shared.exchange(room)  # on the same connection, or stream


@pytest.mark.parametrize(
    ("method", "other"),
    [("Reserve", "Put"), ("Reserve", "Get"), ("Put", "Reserve"), ("Put", "Get"), ("Put", "Abort"), ("Release", "Get")],
)
def test_case_20_message_of_another_type(shared: Steps, room: int, method: str, other: str) -> None:
    sent = {
        "Reserve": requests.reserve(7, max_wait=1),
        "Put": requests.put_once(7, records.full()),
        "Get": requests.get(7, reader="decode"),
        "Abort": requests.abort(7),
    }[other]
    with refused("INVALID_REQUEST"):
        shared.caller.call(method, sent.SerializeToString())
    assert shared.exchange(room)


@pytest.mark.parametrize("length", [1, 256])
def test_identifiers_at_their_bound(steps: Steps, length: int) -> None:
    name = "\u00f6" * (length // 2) or "o"
    key = rp.HandoffKey(namespace="N" * (length // 2) or "-", room=1, sample=(1 << 32) - 1)
    steps.put_once(key, owner=name, producer=(name, (1 << 64) - 1), readers=1024)
    assert steps.record(key, reader=name) == records.record()


@pytest.mark.parametrize("namespace", ["", ".", "-", "_", "Az09._-", "n" * 128])
def test_legal_namespaces_are_apart(steps: Steps, namespace: str) -> None:
    steps.put_once(spaced(namespace), records.numbered(1))
    assert steps.record(spaced(namespace)) == records.numbered(1)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(spaced(namespace + "x" if len(namespace) < 128 else "x"))


def test_logprobs_of_listed_ids_may_be_empty(steps: Steps) -> None:
    empty = record(Token(token_id=1, token_ids_logprobs=logprobs(0)))
    assert steps.exchange(7, empty).tokens[0].HasField("token_ids_logprobs")
