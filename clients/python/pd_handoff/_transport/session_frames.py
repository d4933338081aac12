"""The messages of a Session, around requests and answers that are already there."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError, Message

from pd_handoff import errors
from pd_handoff._values.wire_format import tag_of, varint
from pd_handoff.v1 import metadata_store_pb2 as pb

METHOD = "/pd_handoff.v1.MetadataStore/Session"
LARGEST = 1 << 20
"""Bytes of a request that still goes over a stream. A larger one might exceed a limit of the way, which would end the
stream with all that is on it; as a call of its own it fails alone."""


TAGS: Final = {
    field.name.capitalize(): tag_of(field) for field in pb.SessionRequest.DESCRIPTOR.oneofs_by_name["call"].fields
}
"""What stands before a call's request in a SessionRequest, by its method; its answer has the same number."""
_ANSWERS = {TAGS[name]: getattr(pb, f"{name}Response").FromString for name in TAGS}


def waits(request: Message) -> bool:
    """Whether its answer may wait for what somebody else does."""
    if isinstance(request, pb.PutRequest):
        return request.HasField("reserve") and request.reserve.HasField("max_wait")
    if isinstance(request, (pb.BatchGetRequest, pb.BatchReserveRequest, pb.BatchPutRequest)):
        return any(waits(one) for one in request.requests)
    return isinstance(request, (pb.GetRequest, pb.ReserveRequest)) and request.HasField("max_wait")


def head_of(call_id: int, tag: bytes) -> bytes:
    """What stands before the size of the request in a SessionRequest, and of its answer in a SessionResponse."""
    return b"\x08" + varint(call_id) + tag


def frame_of(head: bytes, request: bytes) -> bytes:
    """A serialized SessionRequest. Built by hand: a message in a message would be copied into it first."""
    return b"".join((head, varint(len(request)), request))


def own_answer_of(frame: bytes, head: bytes, tag: bytes) -> Message | None:
    """The answer to the call of this head and tag, if that is all that the frame holds, in the usual form; for
    anything else ask `answer_of`. Raises ValueError for an answer that cannot be parsed."""
    size = len(frame) - len(head)
    size -= 1 if size <= 0x80 else 2 if size <= 0x4001 else 3 if size <= 0x200002 else 4
    if size < 0 or not frame.startswith(head + varint(size)):
        return None
    try:
        answer: Message = _ANSWERS[tag](frame[-size:] if size else b"")
    except DecodeError:
        raise ValueError("no SessionResponse") from None
    return answer


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
