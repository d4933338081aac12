"""Answers framed by hand, and requests cut by hand, are what protobuf would have made of them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server import parser
from pd_handoff_server.handlers import responses, session
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT
from pd_handoff_server.parser import Reader
from pd_handoff_server.parser.fallback import Absent
from pd_handoff_server.store.interface import Published, Reading

from .strategies import records

READERS: tuple[Reader, ...] = (Absent("for comparison"), parser.load(SCHEMA_FINGERPRINT, "required"))

uint64s = st.integers(0, 2**64 - 1)
walls = st.integers(0, 253402300799 * 10**9)
epochs = st.text("0123456789abcdef", max_size=16)


@settings(deadline=None)
@given(uint64s)
@example(0)
@example(127)
@example(128)
@example(2**64 - 1)
def test_varints(value: int) -> None:
    assert b"\x08" + responses.varint(value) == pb.SessionRequest(call_id=value).SerializeToString() or value == 0
    assert pb.SessionRequest.FromString(b"\x08" + responses.varint(value)).call_id == value


@settings(deadline=None)
@given(st.integers(1, 15), st.binary(max_size=300))
def test_frames(number: int, payload: bytes) -> None:
    framed = responses.framed(number, payload)
    read = rp.HandoffRecord.FromString(responses.framed(9, payload))
    assert read.customized_info == payload
    assert framed[1:] == responses.framed(9, payload)[1:]
    assert framed[0] == number << 3 | 2


@pytest.mark.parametrize("reader", READERS, ids=("python", "native"))
@settings(deadline=None)
@given(record=records(), attempt=uint64s, reserved=walls, published=walls, epoch=epochs)
def test_a_get_response_is_byte_for_byte_what_protobuf_makes(
    reader: Reader, record: rp.HandoffRecord, attempt: int, reserved: int, published: int, epoch: str
) -> None:
    image = record.SerializeToString()
    reading = Reading(image, attempt, epoch, reserved_wall=reserved, published_wall=published)
    expected = pb.GetResponse(
        record=record,
        attempt=attempt,
        reserved_at=responses.timestamp(reserved),
        published_at=responses.timestamp(published),
        store_epoch=epoch,
    ).SerializeToString()
    first = responses.Answers(reader).get(reading)
    assert first == expected
    assert responses.Answers(reader).get(reading) is first  # readers of one reading share its bytes


@pytest.mark.parametrize("reader", READERS, ids=("python", "native"))
@settings(deadline=None)
@given(published=walls, epoch=epochs)
def test_a_put_response(reader: Reader, published: int, epoch: str) -> None:
    response = pb.PutResponse.FromString(responses.Answers(reader).put(Published(published, epoch)))
    assert response.store_epoch == epoch
    assert response.published_at.ToNanoseconds() == published


# -- Session -----------------------------------------------------------------------------------------------------------

FIELDS = {"reserve": 2, "put": 3, "get": 4, "release": 5, "abort": 6, "capabilities": 7}
TYPES: dict[int, type[Message]] = {
    2: pb.ReserveRequest,
    3: pb.PutRequest,
    4: pb.GetRequest,
    5: pb.ReleaseRequest,
    6: pb.AbortRequest,
    7: pb.CapabilitiesRequest,
}

keys = st.builds(rp.HandoffKey, namespace=st.text(max_size=5), room=uint64s, sample=st.integers(0, 2**32 - 1))
gets = st.builds(pb.GetRequest, key=keys, attempt=uint64s, reader_id=st.text(max_size=20), consume=st.booleans())
puts = st.builds(pb.PutRequest, key=keys, token=st.binary(max_size=40), record=records())
reserves = st.builds(pb.ReserveRequest, key=keys, owner=st.text(max_size=300), attempt=uint64s)
aborts = st.builds(pb.AbortRequest, key=keys, attempt=st.none() | uint64s)
session_requests = st.one_of(
    st.builds(pb.SessionRequest, call_id=uint64s),
    st.builds(pb.SessionRequest, call_id=uint64s, get=gets),
    st.builds(pb.SessionRequest, call_id=uint64s, put=puts),
    st.builds(pb.SessionRequest, call_id=uint64s, reserve=reserves),
    st.builds(pb.SessionRequest, call_id=uint64s, abort=aborts),
    st.builds(pb.SessionRequest, call_id=uint64s, release=st.builds(pb.ReleaseRequest, key=keys)),
    st.builds(pb.SessionRequest, call_id=uint64s, capabilities=st.just(pb.CapabilitiesRequest())),
)


def check_split(data: bytes) -> None:
    """What `split` makes of these bytes must be what protobuf makes of them."""
    call_id, number, payload = session.split(data)
    try:
        request = pb.SessionRequest.FromString(data)
    except DecodeError:
        # Either nothing is found, or the handler that gets the payload finds that it is no request.
        if number:
            with pytest.raises(DecodeError):
                TYPES[number].FromString(payload)
        return
    assert call_id == request.call_id
    name = request.WhichOneof("call")
    if name is None:
        assert (number, payload) == (0, b"")
    else:
        assert number == FIELDS[name]
        assert TYPES[number].FromString(payload) == getattr(request, name)


@settings(deadline=None)
@given(session_requests)
def test_split_reads_what_protobuf_reads(request: pb.SessionRequest) -> None:
    check_split(request.SerializeToString())


@settings(deadline=None)
@given(session_requests, session_requests)
def test_split_merges_as_protobuf_does(one: pb.SessionRequest, other: pb.SessionRequest) -> None:
    """Two messages in a row are one: the last call id counts, equal calls merge, of unequal ones the last stays."""
    check_split(one.SerializeToString() + other.SerializeToString())


@settings(deadline=None)
@given(session_requests, st.data())
def test_split_survives_damage(request: pb.SessionRequest, data: st.DataObject) -> None:
    raw = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if change == "cut":
            del raw[place:]
        elif change == "insert":
            raw[place:place] = data.draw(st.binary(max_size=4))
        elif raw:
            raw[place] ^= 1 << data.draw(st.integers(0, 7))
    check_split(bytes(raw))


@settings(deadline=None)
@given(st.binary(max_size=60))
@example(b"")
@example(b"\x08")
@example(b"\x08\x05")
@example(b"\x22\x00\x08\x05")  # the call before its id
@example(b"\x08\x05\x22\x80")
@example(b"\x08\x85\x00\x22\x00")  # a call id longer than it need be
@example(b"\x08\x05\x22\x80\x00")  # a length longer than it need be
@example(b"\x08" + b"\xff" * 9 + b"\x01\x22\x00")
@example(b"\x08" + b"\xff" * 9 + b"\x7f\x22\x00")  # a call id of more than 64 bits
@example(b"\x08\x05\x22" + b"\x80" * 9 + b"\x02")  # a length of more than 64 bits
@example(b"\x08" + b"\xff" * 20)
@example(b"\x08\x05\x22\x00\x4a\x01x")  # a field of a newer schema behind
@example(b"\x4a\x01x\x08\x05\x22\x00")
@example(b"\x08\x05\x0a\x00")
@example(b"\x09" + bytes(8) + b"\x22\x00")
def test_split_takes_any_garbage(data: bytes) -> None:
    check_split(data)


@pytest.mark.parametrize("reader", READERS, ids=("python", "native"))
@pytest.mark.parametrize("wall", [-1, -(10**17), -(10**30)])
def test_a_clock_before_the_epoch_is_taken_for_the_epoch(reader: Reader, wall: int) -> None:
    response = pb.PutResponse.FromString(responses.Answers(reader).put(Published(wall, "e")))
    assert response.HasField("published_at")
    assert response.published_at.ToNanoseconds() == 0


@pytest.mark.parametrize("reader", READERS, ids=("python", "native"))
@settings(deadline=None)
@given(call_id=uint64s, published=walls)
def test_answers_of_a_session_are_framed(reader: Reader, call_id: int, published: int) -> None:
    answer = pb.PutResponse(published_at=responses.timestamp(published))
    framed = pb.SessionResponse.FromString(reader.answer(call_id, 3, answer.SerializeToString()))
    assert framed == pb.SessionResponse(call_id=call_id, put=answer)
