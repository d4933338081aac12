"""The messages of a Session, around requests and answers that are already there."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from pd_handoff import errors
from pd_handoff.v1 import metadata_store_pb2 as pb

METHOD = "/pd_handoff.v1.MetadataStore/Session"
LARGEST = 1 << 20
"""Bytes of a request that still goes over a stream. A larger one might exceed a limit of the way, which would end the
stream with all that is on it; as a call of its own it fails alone."""

_TAGS = {
    field.name.capitalize(): bytes((field.number << 3 | 2,))
    for field in pb.SessionRequest.DESCRIPTOR.oneofs_by_name["call"].fields
}


def carries(method: str) -> bool:
    """Whether a Session can carry it."""
    return method in _TAGS


def waits(request: Message) -> bool:
    """Whether its answer may wait for what somebody else does."""
    if isinstance(request, pb.PutRequest):
        return request.HasField("reserve") and request.reserve.HasField("max_wait")
    return isinstance(request, (pb.GetRequest, pb.ReserveRequest)) and request.HasField("max_wait")


def body_of(method: str, request: Message) -> bytes:
    """What follows the call id in a SessionRequest. Built by hand: a message in a message would be copied into it
    first."""
    data = request.SerializeToString()
    return _TAGS[method] + _varint(len(data)) + data


def frame_of(call_id: int, body: bytes) -> bytes:
    """A serialized SessionRequest."""
    return b"\x08" + _varint(call_id) + body


def answer_of(frame: bytes) -> tuple[int, Message | errors.HandoffError]:
    """(call id, its answer or refusal) of a serialized SessionResponse. Raises ValueError for anything else."""
    try:
        response = pb.SessionResponse.FromString(frame)
    except DecodeError:
        raise ValueError("no SessionResponse") from None
    which = response.WhichOneof("result")
    if which == "error":
        return response.call_id, errors.from_status(response.error)
    if which is None:
        return response.call_id, errors.StoreInternalError("the store sent an answer that this version does not know")
    answer: Message = getattr(response, which)
    return response.call_id, answer


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
