"""Answers as bytes.

A record leaves its row as it lies there, framed by hand: parsing it only to serialize it again would cost more than
everything else a Get does.
"""

from __future__ import annotations

import functools

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server.lifecycle.model import Handoff
from pd_handoff_server.native import Reader
from pd_handoff_server.native.python import framed, varint
from pd_handoff_server.store.interface import Reading

__all__ = ["Answers", "framed", "timestamp", "varint"]
_SECOND = 1_000_000_000


def timestamp(wall: int) -> Timestamp:
    """Nanoseconds since the Unix epoch as a Timestamp."""
    return Timestamp(seconds=wall // _SECOND, nanos=wall % _SECOND)


class Answers:
    """The answers of one store, as serialized messages."""

    def __init__(self, epoch: str, reader: Reader) -> None:
        """`epoch` of the store; `reader` frames moments."""
        self._epoch = epoch
        self._stamp = reader.stamp
        self._put_ends = pb.PutResponse(store_epoch=epoch).SerializeToString()
        self._get_ends = pb.GetResponse(store_epoch=epoch).SerializeToString()

    def reserve(self, handoff: Handoff) -> bytes:
        """A ReserveResponse."""
        return framed(1, handoff.token) + _lease_and_end(handoff.lease, self._epoch)

    def put(self, published_wall: int) -> bytes:
        """A PutResponse."""
        return self._stamp(0x0A, published_wall) + self._put_ends

    def get(self, reading: Reading) -> bytes:
        """A GetResponse. All of it but the record is the same for every reader and is encoded once."""
        handoff = reading.handoff
        rest = handoff.answer
        if rest is None:
            rest = handoff.answer = self._rest(handoff)
        image = reading.image
        return b"".join((b"\x0a", varint(len(image)), image, rest))

    def _rest(self, handoff: Handoff) -> bytes:
        rest = self._stamp(0x1A, handoff.reserved_wall) + self._stamp(0x22, handoff.published_wall) + self._get_ends
        return b"\x10" + varint(handoff.attempt) + rest if handoff.attempt else rest


@functools.lru_cache(maxsize=64)
def _lease_and_end(lease: int, epoch: str) -> bytes:
    """How a ReserveResponse goes on after the token; producers ask for few different leases."""
    response = pb.ReserveResponse(store_epoch=epoch)
    response.lease.seconds, response.lease.nanos = divmod(lease, _SECOND)
    return response.SerializeToString()
