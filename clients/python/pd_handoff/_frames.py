"""The messages of a Session, around requests and answers that are already there."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pd_handoff import errors
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

METHOD = "/pd_handoff.v1.MetadataStore/Session"
LARGEST = 1 << 20
"""Bytes of a request that still goes over a stream. A larger one might exceed a limit of the way, which would end the
stream with all that is on it; as a call of its own it fails alone."""


def _tag(field: FieldDescriptor) -> bytes:
    return bytes((field.number << 3 | 2,))


_TAGS = {field.name.capitalize(): _tag(field) for field in pb.SessionRequest.DESCRIPTOR.oneofs_by_name["call"].fields}
_PUT_KEY, _PUT_TOKEN, _PUT_RECORD = (
    _tag(pb.PutRequest.DESCRIPTOR.fields_by_name[name]) for name in ("key", "token", "record")
)
_BATCH_ITEM = _tag(pb.BatchPutRequest.DESCRIPTOR.fields_by_name["requests"])


class Encoded:
    """A request that is bytes already; our own transports take it for a message. A message in a message is copied into
    it before it is serialized, which for a record costs as much as everything else the client does."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - as a message has it
        """The bytes."""
        return self._data

    def ByteSize(self) -> int:  # noqa: N802
        """How many."""
        return len(self._data)


def encoded_put(key: record_pb2.HandoffKey, token: bytes, record: record_pb2.HandoffRecord) -> Encoded:
    """A PutRequest by token."""
    return Encoded(
        _framed(_PUT_KEY, key.SerializeToString())
        + _framed(_PUT_TOKEN, token)
        + _framed(_PUT_RECORD, record.SerializeToString())
    )


def encoded_batch(requests: Iterable[Encoded]) -> Encoded:
    """A BatchPutRequest of them."""
    return Encoded(b"".join([_framed(_BATCH_ITEM, request.SerializeToString()) for request in requests]))


def _framed(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


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
    return _framed(_TAGS[method], request.SerializeToString())


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
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
