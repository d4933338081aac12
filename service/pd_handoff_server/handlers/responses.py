"""Answers as bytes.

A record leaves its row as it lies there, framed by hand: parsing it only to serialize it again would cost more than
everything else a Get does.
"""

from __future__ import annotations

import functools

from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server.parser import Reader
from pd_handoff_server.parser.fallback import framed, varint
from pd_handoff_server.store.interface import Published, Reading, Reserved

__all__ = ["Answers", "framed", "timestamp", "varint"]
_SECOND = 1_000_000_000


def timestamp(wall: int) -> Timestamp:
    """Nanoseconds since the Unix epoch as a Timestamp."""
    return Timestamp(seconds=wall // _SECOND, nanos=wall % _SECOND)


class Answers:
    """The answers of a store, as serialized messages; each names the epoch that came with it."""

    def __init__(self, reader: Reader) -> None:
        """`reader` frames moments."""
        self._stamp = reader.stamp

    @staticmethod
    def reserve(reserved: Reserved) -> bytes:
        """A ReserveResponse."""
        return framed(1, reserved.token) + _lease_and_end(reserved.lease, reserved.epoch)

    def put(self, published: Published) -> bytes:
        """A PutResponse."""
        return self._stamp(0x0A, published[0]) + _put_ends(published[1])

    def get(self, reading: Reading) -> bytes:
        """A GetResponse. Readers that share a reading share its bytes."""
        encoded = reading.encoded
        if encoded is None:
            image, attempt, stamp = reading.image, reading.attempt, self._stamp
            parts = (
                b"\x0a",
                varint(len(image)),
                image,
                b"\x10" + varint(attempt) if attempt else b"",
                stamp(0x1A, reading.reserved_wall),
                stamp(0x22, reading.published_wall),
                _get_ends(reading.epoch),
            )
            encoded = reading.encoded = b"".join(parts)
        return encoded


@functools.lru_cache(maxsize=16)
def _put_ends(epoch: str) -> bytes:
    """How a PutResponse goes on after the moment."""
    return pb.PutResponse(store_epoch=epoch).SerializeToString()


@functools.lru_cache(maxsize=16)
def _get_ends(epoch: str) -> bytes:
    """How a GetResponse goes on after the moments."""
    return pb.GetResponse(store_epoch=epoch).SerializeToString()


@functools.lru_cache(maxsize=64)
def _lease_and_end(lease: int, epoch: str) -> bytes:
    """How a ReserveResponse goes on after the token; producers ask for few different leases."""
    response = pb.ReserveResponse(store_epoch=epoch)
    response.lease.seconds, response.lease.nanos = divmod(lease, _SECOND)
    return response.SerializeToString()
