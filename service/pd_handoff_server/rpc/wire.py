"""Answers as bytes.

A record leaves its row as it lies there, framed by hand: parsing it only to serialize it again would cost more than
everything else a Get does.
"""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server.lifecycle.model import Handoff
from pd_handoff_server.store.interface import Reading

_SECOND = 1_000_000_000


def varint(value: int) -> bytes:
    """A non-negative number as varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def framed(number: int, payload: bytes) -> bytes:
    """A length-delimited field (message, bytes or string); `number` is below 16."""
    return bytes((number << 3 | 2,)) + varint(len(payload)) + payload


def timestamp(wall: int) -> Timestamp:
    """Nanoseconds since the Unix epoch as a Timestamp."""
    return Timestamp(seconds=wall // _SECOND, nanos=wall % _SECOND)


def put_response(published_wall: int, epoch: str) -> bytes:
    """A PutResponse."""
    return pb.PutResponse(published_at=timestamp(published_wall), store_epoch=epoch).SerializeToString()


def get_response(reading: Reading, epoch: str) -> bytes:
    """A GetResponse. All of it but the record is the same for every reader and is encoded once."""
    handoff = reading.handoff
    rest = handoff.answer
    if rest is None:
        rest = handoff.answer = _rest(handoff, epoch)
    image = reading.image
    return b"\x0a" + varint(len(image)) + image + rest


def _rest(handoff: Handoff, epoch: str) -> bytes:
    return pb.GetResponse(
        attempt=handoff.attempt,
        reserved_at=timestamp(handoff.reserved_wall),
        published_at=timestamp(handoff.published_wall),
        store_epoch=epoch,
    ).SerializeToString()
