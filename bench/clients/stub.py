"""gRPC's public stub on ready-made bytes: the transport and the server, without a client of ours.

Also for the echo servers, which take any token.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import grpc
from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import records
from bench.worker import timed

STORE = "/pd_handoff.v1.MetadataStore/"


class Stub:
    """One channel; `real` when a store is behind it."""

    def __init__(self, address: str, real: bool) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options)
        self._real = real

    def _method(self, name: str) -> Any:
        return self._channel.unary_unary(STORE + name)

    def _tokens(self, rooms: range) -> list[bytes]:
        if not self._real:
            return [bytes(32)] * len(rooms)
        reserve = self._method("Reserve")
        return [pb.ReserveResponse.FromString(reserve(request)).token for request in records.reserves(rooms)]

    def single(self, size: str, first: int, count: int) -> dict[str, Any]:
        """Puts, then Gets."""
        rooms = range(first, first + count)
        puts = records.puts(rooms, self._tokens(rooms), records.record(size))
        put, get = self._method("Put"), self._method("Get")
        return {
            "put": timed([partial(put, request) for request in puts]),
            "get": timed([partial(get, request) for request in records.gets(rooms)]),
        }

    def batch(self, size: str, first: int, count: int, batch: int) -> dict[str, Any]:
        """Reserves, Puts, then Gets, so many in one call; of a store."""
        rooms = range(first, first + count)
        record = records.record(size)
        answers: list[bytes] = []
        reserve = self._method("BatchReserve")

        def one(request: bytes) -> None:
            answers.append(reserve(request))

        reserves = [records.batch_reserve(rooms[at : at + batch]) for at in range(0, count, batch)]
        reserve_result = timed([partial(one, request) for request in reserves])
        tokens = [each.token for answer in answers for each in pb.BatchReserveResponse.FromString(answer).responses]
        puts, gets = [], []
        for at in range(0, count, batch):
            part = rooms[at : at + batch]
            puts.append(records.batch_put(part, tokens[at : at + batch], record))
            gets.append(records.batch_get(part))
        put, get = self._method("BatchPut"), self._method("BatchGet")
        return {
            "reserve": reserve_result,
            "put": timed([partial(put, request) for request in puts], partial(_all_well, pb.BatchPutResponse)),
            "get": timed([partial(get, request) for request in gets], partial(_all_well, pb.BatchGetResponse)),
        }


def _all_well(kind: Any, answer: bytes) -> bool:
    return all(result.WhichOneof("result") == "response" for result in kind.FromString(answer).results)


def connect(address: str, real: str) -> Stub:
    """`real` is store or echo."""
    if real not in {"store", "echo"}:
        sys.exit(f"store or echo, not {real}")
    return Stub(address, real == "store")
