"""etcd by gRPC's public stub, its messages framed by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from bench import payload
from bench.worker import timed


class Etcd:
    """One channel."""

    def __init__(self, address: str) -> None:
        channel: Any = grpc.insecure_channel(address)
        self._put = channel.unary_unary("/etcdserverpb.KV/Put")
        self._range = channel.unary_unary("/etcdserverpb.KV/Range")
        self._put(_field(1, b"ready") + _field(2, b"1"), timeout=30, wait_for_ready=True)

    def single(self, size: str, first: int, count: int) -> dict[str, Any]:
        """Put, then Range of one key."""
        value = _field(2, payload.of(size))
        keys = [_field(1, b"k%d" % room) for room in range(first, first + count)]
        return {
            "put": timed([partial(self._put, key + value) for key in keys]),
            "get": timed([partial(self._range, key) for key in keys], lambda answer: len(answer) > len(value)),
        }


def _field(number: int, data: bytes) -> bytes:
    size, out = len(data), bytearray((number << 3 | 2,))
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def connect(address: str) -> Etcd:
    """To a running server."""
    return Etcd(address)
