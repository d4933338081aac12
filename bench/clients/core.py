"""gRPC's C core driven from Python, without its stub and without anything of ours: one message after the other over one
stream, ready-made bytes out and unread bytes in. What is left is the least that a client on gRPC in Python can cost.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import records
from bench.worker import timed

_SESSION = b"/pd_handoff.v1.MetadataStore/Session"
_BEGUN, _OVER, _ANSWERED = "begun", "over", "answered"


class Core:
    """One stream; `real` when a store is behind it."""

    def __init__(self, address: str, real: bool) -> None:
        self._channel = grpc.insecure_channel(address)
        self._real = real
        begin = (cygrpc.SendInitialMetadataOperation(None, 0), cygrpc.ReceiveStatusOnClientOperation(0))
        begun = (cygrpc.ReceiveInitialMetadataOperation(0),)
        flags = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
        operations = ((begin, _OVER), (begun, _BEGUN))
        channel: Any = self._channel
        self._call = channel._channel.segregated_call(flags, _SESSION, None, None, None, None, operations, None)

    def _ask(self, message: bytes) -> bytes:
        both = (cygrpc.SendMessageOperation(message, 0), cygrpc.ReceiveMessageOperation(0))
        self._call.operate(both, _ANSWERED)
        while True:
            event = self._call.next_event()
            if event.tag == _ANSWERED:
                return bytes(event.batch_operations[1].message())
            if event.tag == _OVER:
                raise RuntimeError("the stream has ended")

    def _request(self, **what: Any) -> bytes:
        return pb.SessionRequest(call_id=1, **what).SerializeToString()

    def repeat(self, method: str, size: str, room: int, count: int) -> dict[str, Any]:
        """The same Put, or the same Get that does not consume, over and over."""
        token = bytes(32)
        if self._real:
            reserve = pb.ReserveRequest.FromString(records.reserves([room])[0])
            token = pb.SessionResponse.FromString(self._ask(self._request(reserve=reserve))).reserve.token
        made = records.puts([room], [token], records.record(size))[0]
        put = self._request(put=pb.PutRequest.FromString(made))
        peek, get = (
            self._request(get=pb.GetRequest.FromString(records.gets([room], consume=consume)[0]))
            for consume in (False, True)
        )
        self._ask(put)
        result = timed([partial(self._ask, put if method == "put" else peek)] * count, partial(self._well, method))
        self._ask(get)
        return result

    def _well(self, method: str, answer: bytes) -> bool:
        return not self._real or pb.SessionResponse.FromString(answer).WhichOneof("result") == method


def connect(address: str, real: str) -> Core:
    """`real` is store or echo."""
    if real not in {"store", "echo"}:
        sys.exit(f"store or echo, not {real}")
    return Core(address, real == "store")
