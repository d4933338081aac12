"""Answers as bytes.

A record leaves its row as it lies there, framed by hand: parsing it only to serialize it again would cost more than
everything else a Get does.
"""

from __future__ import annotations

import functools

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server.lifecycle.model import Handoff
from pd_handoff_server.native.python import framed, varint
from pd_handoff_server.store.interface import Reading

from .reading import READER

__all__ = ["answer", "framed", "get_response", "put_response", "reserve_response", "stamp", "timestamp", "varint"]

stamp = READER.stamp
answer = READER.answer
_SECOND = 1_000_000_000


def timestamp(wall: int) -> Timestamp:
    """Nanoseconds since the Unix epoch as a Timestamp."""
    return Timestamp(seconds=wall // _SECOND, nanos=wall % _SECOND)


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
    return stamp(0x0A, published_wall) + _ends(epoch)[0]


def get_response(reading: Reading, epoch: str) -> bytes:
    """A GetResponse. All of it but the record is the same for every reader and is encoded once."""
    handoff = reading.handoff
    rest = handoff.answer
    if rest is None:
        rest = handoff.answer = _rest(handoff, epoch)
    image = reading.image
    return b"".join((b"\x0a", varint(len(image)), image, rest))


def _rest(handoff: Handoff, epoch: str) -> bytes:
    rest = stamp(0x1A, handoff.reserved_wall) + stamp(0x22, handoff.published_wall) + _ends(epoch)[1]
    return b"\x10" + varint(handoff.attempt) + rest if handoff.attempt else rest
