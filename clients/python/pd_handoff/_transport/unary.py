"""One call by itself, in the thread that makes it.

A blocking call of gRPC's stub starts its operations, waits for them, and keeps a state that others may look at
meanwhile, in Python. Nobody looks: `RawUnary` starts the same operations and waits. Where it cannot, `PublicUnary`
calls the stub.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, EncodeError, Message

from pd_handoff._transport import channel as _channel
from pd_handoff._transport import grpc_internals
from pd_handoff._transport.grpc_internals import Status, cygrpc

_INTERNAL = grpc.StatusCode.INTERNAL.value[0]


class CallFailed(Exception):  # noqa: N818  # what happened, not always an error
    """The call ended without an answer; `status` has the methods that `errors.from_rpc` reads."""

    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.status = status


class Unary(Protocol):
    """Used by many threads at once."""

    def call(self, method: str, request: Message, timeout: float, metadata: _channel.Metadata | None) -> Message:
        """One call by its method's name; `timeout` in seconds. Raises CallFailed; ValueError when the channel is
        closed."""


class RawUnary:
    """Operations on gRPC's own call object, completed in the calling thread."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._begin = grpc_internals.begin_of(channel)

    def call(self, method: str, request: Message, timeout: float, metadata: _channel.Metadata | None) -> Message:
        """See Unary."""
        path, answer_of = _METHODS[method]
        try:
            data = request.SerializeToString()
        except EncodeError as error:
            raise CallFailed(Status(_INTERNAL, f"the request cannot be sent: {error}", ())) from None
        answer, ended = cygrpc.ReceiveMessageOperation(0), cygrpc.ReceiveStatusOnClientOperation(0)
        operations = (
            cygrpc.SendInitialMetadataOperation(metadata, 0),
            cygrpc.SendMessageOperation(data, 0),
            cygrpc.SendCloseFromClientOperation(0),
            cygrpc.ReceiveInitialMetadataOperation(0),
            answer,
            ended,
        )
        call = self._begin(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            path,
            None,
            time.time() + timeout,
            metadata,
            None,
            ((operations, None),),
            None,
        )
        call.next_event()  # an interrupt cancels the call, and frees it
        if ended.code():
            raise CallFailed(grpc_internals.status_of(ended))
        found = answer.message()
        if found is None:
            raise CallFailed(Status(_INTERNAL, "the call ended well, but without an answer", ()))
        try:
            message: Message = answer_of(found)
        except DecodeError:
            raise CallFailed(Status(_INTERNAL, "the answer cannot be parsed", ())) from None
        return message


class PublicUnary:
    """The same by gRPC's public stub."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._methods = _channel.methods_of(channel)

    def call(self, method: str, request: Message, timeout: float, metadata: _channel.Metadata | None) -> Message:
        """See Unary."""
        try:
            answer: Message = self._methods[method](request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise CallFailed(error) from None
        return answer


class CheckedUnary:
    """The calls that are worth it by `RawUnary`, as long as that works; the others by `PublicUnary`."""

    def __init__(self, raw: RawUnary, public: PublicUnary) -> None:
        self._raw = raw
        self._public = public

    def call(self, method: str, request: Message, timeout: float, metadata: _channel.Metadata | None) -> Message:
        """See Unary."""
        if method not in _SINGLE or grpc_internals.given_up():
            return self._public.call(method, request, timeout, metadata)
        try:
            return self._raw.call(method, request, timeout, metadata)
        except CallFailed:
            raise
        except Exception as error:
            # Every call can be repeated. What the public way refuses, too, is the caller's own: no other gRPC.
            try:
                answer = self._public.call(method, request, timeout, metadata)
            except CallFailed:
                grpc_internals.give_up(error)
                raise
            grpc_internals.give_up(error)
            return answer


def open_unary(channel: grpc.Channel) -> Unary:
    """The way that this gRPC allows."""
    public = PublicUnary(channel)
    if not grpc_internals.wanted() or grpc_internals.missing(channel, _NAMES, ("next_event",)):
        return public
    return CheckedUnary(RawUnary(channel), public)


_SINGLE = frozenset({"Reserve", "Put", "Get", "Release", "Abort", "Capabilities"})
"""Small calls, of which the stub's own work is a good part: an eighth less time without it. In a batch it is none."""


_METHODS = {name: (path.encode(), answer.FromString) for name, (path, answer) in _channel.METHODS.items()}
_NAMES = (
    *("SendInitialMetadataOperation", "SendMessageOperation", "SendCloseFromClientOperation"),
    *("ReceiveInitialMetadataOperation", "ReceiveMessageOperation", "ReceiveStatusOnClientOperation"),
    "PropagationConstants",
)
