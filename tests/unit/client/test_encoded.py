"""Requests and answers that are written and cut by hand, against protobuf."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff import Key, Published, errors
from pd_handoff._calls import encoded_requests
from pd_handoff._transport import session_frames
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

numbers = st.integers(0, (1 << 64) - 1) | st.sampled_from([1 << bits for bits in range(64)])
names = st.text(max_size=130) | st.sampled_from(["", "ns", "a" * 127, "a" * 128])
sizes = st.sampled_from([0, 1, 127, 128, 129, 16383, 16384, 16385, (1 << 21) - 1, 1 << 21, (1 << 21) + 1])


@settings(deadline=None)
@given(room=numbers, sample=st.integers(0, (1 << 32) - 1) | st.just(0), name=names, own=st.none() | names)
def test_keys(room: int, sample: int, name: str, own: str | None) -> None:
    message = record_pb2.HandoffKey(namespace=name if own is None else own, room=room, sample=sample)
    assert encoded_requests.key(Key(room, sample, own), name) == message.SerializeToString()
    if own is None and sample == 0:
        assert encoded_requests.key(room, name) == message.SerializeToString()


def named(name: Any) -> Key:
    return Key(1, 0, name)


@pytest.mark.parametrize(
    "key",
    [-1, 1 << 64, True, None, "7", 1.5, Key(1, -1), Key(1, 1 << 32), Key(1, True), named(b"\xff"), named(0)],
)
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        encoded_requests.key(key, "")


@settings(deadline=None)
@given(data=st.data())
def test_puts(data: st.DataObject) -> None:
    token = data.draw(st.binary(max_size=300))
    record = record_pb2.HandoffRecord(customized_info=bytes(data.draw(sizes)))
    message = pb.PutRequest(key=record_pb2.HandoffKey(room=7), token=token, record=record)
    request = encoded_requests.put(encoded_requests.key(7, ""), token, record)
    assert pb.PutRequest.FromString(request.SerializeToString()) == message
    assert request.ByteSize() == len(request.SerializeToString())
    if token:
        assert request.SerializeToString() == message.SerializeToString()


@settings(deadline=None)
@given(
    attempt=numbers,
    reader=names,
    consume=st.booleans(),
    epoch=st.none() | names,
    digest=st.none() | st.binary(max_size=40),
)
def test_gets(attempt: int, reader: str, consume: bool, epoch: str | None, digest: bytes | None) -> None:
    message = pb.GetRequest(
        key=record_pb2.HandoffKey(room=7),
        attempt=attempt,
        reader_id=reader,
        consume=consume,
        expected_store_epoch=epoch or "",
        request_digest=digest or b"",
    )
    request = encoded_requests.get(encoded_requests.key(7, ""), attempt, reader, consume, epoch, digest)
    assert request.SerializeToString() == message.SerializeToString()


@pytest.mark.parametrize("attempt", [-1, 1 << 64, "1", 1.5, 1.0, [], {}])
def test_what_no_get_can_hold(attempt: Any) -> None:
    one = pb.GetRequest(attempt=1, reader_id="me", consume=True, key=record_pb2.HandoffKey()).SerializeToString()
    for _ in range(2):  # what was right is remembered, and is no excuse for what only equals it
        assert encoded_requests.get(b"", 1, "me", True, None).SerializeToString() == one
        with pytest.raises(errors.InvalidRequest) as caught:
            encoded_requests.get(encoded_requests.key(7, ""), attempt, "me", True, None)
        assert caught.value.violations[0].field == "attempt"


def test_batches() -> None:
    gets = [pb.GetRequest(key=record_pb2.HandoffKey(room=room), reader_id="x" * room) for room in (1, 200, 20000)]
    batch = encoded_requests.batch([encoded_requests.Encoded(one.SerializeToString()) for one in gets])
    assert batch.SerializeToString() == pb.BatchGetRequest(requests=gets).SerializeToString()
    assert pb.BatchPutRequest.FromString(encoded_requests.batch([]).SerializeToString()) == pb.BatchPutRequest()


ANSWERS: dict[str, Any] = {
    "reserve": pb.ReserveResponse(token=b"t" * 24, store_epoch="e"),
    "put": pb.PutResponse(store_epoch="e"),
    "get": pb.GetResponse(store_epoch="e", attempt=3),
    "release": pb.ReleaseResponse(),
    "abort": pb.AbortResponse(ended=True),
    "capabilities": pb.CapabilitiesResponse(max_batch=7),
}


@pytest.mark.parametrize("call_id", [1, 127, 128, 16384, 1 << 21, 1 << 40])
@pytest.mark.parametrize("name", ANSWERS)
def test_frames(name: str, call_id: int) -> None:
    tag = session_frames.TAGS[name.capitalize()]
    head = session_frames.head_of(call_id, tag)
    kind = type(getattr(pb.SessionRequest(), name))
    for request in (kind(), kind(key=record_pb2.HandoffKey(room=7)) if name != "capabilities" else kind()):
        wanted = pb.SessionRequest(call_id=call_id, **{name: request})
        assert session_frames.frame_of(head, request.SerializeToString()) == wanted.SerializeToString()
    answer = pb.SessionResponse(call_id=call_id, **{name: ANSWERS[name]}).SerializeToString()
    assert session_frames.own_answer_of(answer, head, tag) == ANSWERS[name]
    assert session_frames.answer_of(answer) == (call_id, ANSWERS[name])
    assert session_frames.own_answer_of(answer, session_frames.head_of(call_id + 1, tag), tag) is None


@settings(deadline=None)
@given(size=sizes)
def test_answers_of_every_size(size: int) -> None:
    tag = session_frames.TAGS["Get"]
    answer = pb.GetResponse(record=record_pb2.HandoffRecord(customized_info=bytes(size)))
    frame = pb.SessionResponse(call_id=9, get=answer).SerializeToString()
    assert session_frames.own_answer_of(frame, session_frames.head_of(9, tag), tag) == answer


def test_answers_in_an_unusual_form_are_left_to_protobuf() -> None:
    tag = session_frames.TAGS["Put"]
    head = session_frames.head_of(5, tag)
    usual = pb.SessionResponse(call_id=5, put=pb.PutResponse(store_epoch="e")).SerializeToString()
    assert session_frames.own_answer_of(usual, head, tag) is not None
    body = pb.PutResponse(store_epoch="e").SerializeToString()
    unusual = [
        usual + tag + b"\x00",  # said twice
        usual + b"\x78\x01",  # and something of a later version
        usual[2:] + usual[:2],  # the id last
        head + bytes((len(body) | 0x80, 0)) + body,  # a size in more bytes than it takes
        pb.SessionResponse(call_id=5, error={"code": 5}).SerializeToString(),
        usual[:2],
        b"",
    ]
    for frame in unusual:
        assert session_frames.own_answer_of(frame, head, tag) is None
    for frame in unusual[:4]:
        assert session_frames.answer_of(frame)[1].store_epoch == "e"  # type: ignore[union-attr]


@pytest.mark.parametrize("cut", [b"\x12", b"\xff", b"\x12\x05e", b"\x12\x01\xff"])
def test_answers_that_cannot_be_parsed(cut: bytes) -> None:
    tag = session_frames.TAGS["Put"]
    head = session_frames.head_of(5, tag)
    frame = session_frames.frame_of(head, cut)
    with pytest.raises(ValueError, match="no SessionResponse"):
        session_frames.own_answer_of(frame, head, tag)
    with pytest.raises(ValueError, match="no SessionResponse"):
        session_frames.answer_of(frame)


def told() -> Published:
    message = pb.PutResponse(store_epoch="e")
    message.published_at.seconds, message.published_at.nanos = 1_700_000_000, 123_456_789
    return Published.from_proto(message)


SAME = Published(datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc), "e")


def test_a_confirmation_is_read_when_it_is_looked_at() -> None:
    assert told() == SAME
    assert hash(told()) == hash(SAME)
    assert repr(told()) == repr(SAME)
    assert told().published_at == SAME.published_at
    assert told().store_epoch == "e"
    assert dataclasses.astuple(told()) == (SAME.published_at, "e")
    assert dataclasses.replace(told(), store_epoch="f") == Published(SAME.published_at, "f")
    for copied in (copy.copy(told()), copy.deepcopy(told()), pickle.loads(pickle.dumps(told()))):
        assert copied == SAME


@pytest.mark.parametrize("one", [told(), SAME])
def test_it_has_nothing_else(one: Published) -> None:
    with pytest.raises(AttributeError, match="'Published' object has no attribute 'other'"):
        getattr(one, "other")  # noqa: B009
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.store_epoch = "f"  # type: ignore[misc]
    assert one != object()
