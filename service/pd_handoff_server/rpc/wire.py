"""Answers as bytes.

A record leaves its row as it lies there, framed by hand: parsing it only to serialize it again would cost more than
everything else a Get does.
"""

from __future__ import annotations

import functools

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server.lifecycle.model import Handoff
from pd_handoff_server.store.interface import Reading

_SECOND = 1_000_000_000


def varint(value: int) -> bytes:
    """A non-negative number as varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0x1000_0000 <= value < 0x8_0000_0000:  # seconds and nanoseconds of a moment
        low, high = value & 0x7F | 0x80, value >> 28
        return bytes((low, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21 & 0x7F | 0x80, high))
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


_second = (0, b"")  # the last one seen, and how it is encoded: most moments share it with the one before


def _stamp(tag: int, wall: int) -> bytes:
    """A Timestamp as the field of this tag."""
    global _second  # noqa: PLW0603 - a pair that is replaced whole
    second, nanos = divmod(wall, _SECOND)
    known, encoded = _second
    if known != second:
        encoded = b"\x08" + varint(second) if second else b""
        _second = (second, encoded)
    if nanos:
        encoded += b"\x10" + varint(nanos)
    return bytes((tag, len(encoded))) + encoded


@functools.cache
def _ends(epoch: str) -> tuple[bytes, bytes]:
    """How each PutResponse and each GetResponse of a store ends."""
    put, get = pb.PutResponse(store_epoch=epoch), pb.GetResponse(store_epoch=epoch)
    return put.SerializeToString(), get.SerializeToString()


@functools.lru_cache(maxsize=64)
def _lease_and_end(lease: int, epoch: str) -> bytes:
    """How a ReserveResponse goes on after the token; producers ask for few different leases."""
    response = pb.ReserveResponse(store_epoch=epoch)
    response.lease.seconds, response.lease.nanos = divmod(lease, _SECOND)
    return response.SerializeToString()


def reserve_response(handoff: Handoff, epoch: str) -> bytes:
    """A ReserveResponse."""
    return framed(1, handoff.token) + _lease_and_end(handoff.lease, epoch)


def put_response(published_wall: int, epoch: str) -> bytes:
    """A PutResponse."""
    return _stamp(0x0A, published_wall) + _ends(epoch)[0]


def get_response(reading: Reading, epoch: str) -> bytes:
    """A GetResponse. All of it but the record is the same for every reader and is encoded once."""
    handoff = reading.handoff
    rest = handoff.answer
    if rest is None:
        rest = handoff.answer = _rest(handoff, epoch)
    image = reading.image
    return b"\x0a" + varint(len(image)) + image + rest


def _rest(handoff: Handoff, epoch: str) -> bytes:
    rest = _stamp(0x1A, handoff.reserved_wall) + _stamp(0x22, handoff.published_wall) + _ends(epoch)[1]
    return b"\x10" + varint(handoff.attempt) + rest if handoff.attempt else rest
