"""Calls by name, whatever carries them: unary calls, one Session stream, or batches of one."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from . import namespaces
from .failures import CallFailed, of_rpc, of_status
from .records import varint
from .waits import PATIENCE

STORE = "pd_handoff.v1.MetadataStore"
ADMIN = "pd_handoff.v1.MetadataStoreAdmin"
SINGLE = ("Capabilities", "Reserve", "Put", "Get", "Release", "Abort")
"""The calls that a Session carries."""

Request = Message | bytes
"""A request, or the bytes that are sent in its place."""

T = TypeVar("T")


class Pending(Protocol):
    """A call on its way."""

    def result(self, timeout: float = PATIENCE) -> Any:
        """Its response. Raises CallFailed; AssertionError when nothing came within `timeout` seconds."""

    def done(self) -> bool:
        """Whether its answer is there."""


class Caller(Protocol):
    """Makes calls. `name` is how test ids call it."""

    name: str

    def start(self, method: str, request: Request, timeout: float | None = PATIENCE) -> Pending:
        """Begin a call; `timeout` (seconds) is its deadline where the transport has one for each call."""

    def call(self, method: str, request: Request, timeout: float = PATIENCE) -> Any:
        """Make a call and wait for its response. Raises CallFailed."""

    def close(self) -> None:
        """Drop whatever still waits."""


def response_type(method: str) -> type[Message]:
    """The type of a method's response."""
    module: Any = admin_pb2 if hasattr(admin_pb2, method + "Response") else pb
    kind: type[Message] = getattr(module, method + "Response")
    return kind


def named(method: str, request: Request) -> str:
    """A call's name in the matrix of reasons: a Put that reserves is another call, a batch of one is its item."""
    if isinstance(request, pb.PutRequest) and request.HasField("reserve"):
        return "one-shot Put"
    return method


def encode(request: Request) -> bytes:
    """The bytes that are sent."""
    return request if isinstance(request, bytes) else namespaces.outgoing(request).SerializeToString()


def decode(kind: type[T], data: bytes) -> T:
    """The answer in these bytes."""
    made: Any = kind
    answer: T = namespaces.incoming(made.FromString(data))
    return answer


class UnaryPending:
    """A unary call on its way."""

    def __init__(self, call: Any, name: str) -> None:
        self._call = call
        self._name = name

    def result(self, timeout: float = PATIENCE) -> Any:
        """See `Pending`."""
        try:
            return self._call.result(timeout)
        except grpc.FutureTimeoutError:
            raise AssertionError(f"no answer within {timeout:g} s") from None
        except grpc.RpcError as error:
            raise of_rpc(error, self._name) from None

    def done(self) -> bool:
        """See `Pending`."""
        return bool(self._call.done())

    def cancel(self) -> None:
        """Tell the store that nobody waits any more."""
        self._call.cancel()


class UnaryCaller:
    """Each call is a call of its own, on any service of the store."""

    name = "unary"

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def start(self, method: str, request: Request, timeout: float | None = PATIENCE) -> UnaryPending:
        """See `Caller`."""
        service = ADMIN if hasattr(admin_pb2, method + "Response") else STORE
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=encode,
            response_deserializer=functools.partial(decode, response_type(method)),
        )
        return UnaryPending(call.future(request, timeout=timeout), named(method, request))

    def call(self, method: str, request: Request, timeout: float = PATIENCE) -> Any:
        """See `Caller`."""
        return self.start(method, request, timeout).result(timeout + 5)

    def close(self) -> None:
        """See `Caller`; unary calls end with their channel."""


class Stream:
    """One Session stream, message by message. `ended` holds its final status once it is over."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._out: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[pb.SessionResponse | None] = queue.SimpleQueue()
        self.ended: Future[Any] = Future()
        open_stream = channel.stream_stream(
            f"/{STORE}/Session",
            request_serializer=encode,
            response_deserializer=functools.partial(decode, pb.SessionResponse),
        )
        self._call: Any = open_stream(iter(self._out.get, None))
        self._thread = threading.Thread(target=self._read, name="session", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                self._in.put(response)
        except grpc.RpcError:
            pass  # told by its code
        self.ended.set_result(self._call.code())
        self._in.put(None)

    def send(self, request: Request) -> None:
        """Send a SessionRequest, or bytes in its place."""
        self._out.put(request)

    def receive(self, timeout: float = PATIENCE) -> pb.SessionResponse:
        """The next message. Raises EOFError when the stream has ended, AssertionError when nothing comes."""
        try:
            response = self._in.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"nothing on the stream within {timeout:g} s") from None
        if response is None:
            raise EOFError(self.ended.result())
        return response

    def __iter__(self) -> Iterator[pb.SessionResponse]:
        """The messages up to the end of the stream."""
        return iter(self._in.get, None)

    def half_close(self) -> None:
        """Say that no more requests come."""
        self._out.put(None)

    def cancel(self) -> None:
        """End the stream at once."""
        self._call.cancel()
        self._out.put(None)
        self._thread.join(PATIENCE)


class SessionPending:
    """A call on a Session, on its way."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, timeout: float = PATIENCE) -> Any:
        """See `Pending`."""
        try:
            return self._future.result(timeout)
        except TimeoutError:
            raise AssertionError(f"no answer within {timeout:g} s") from None

    def done(self) -> bool:
        """See `Pending`."""
        return self._future.done()


class SessionCaller:
    """All calls share one stream; answers find their call by its id."""

    name = "session"

    def __init__(self, channel: grpc.Channel) -> None:
        self.stream = Stream(channel)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, str, Future[Any]]] = {}
        self._over = False
        self._thread = threading.Thread(target=self._dispatch, name="session answers", daemon=True)
        self._thread.start()

    def start(self, method: str, request: Request, timeout: float | None = PATIENCE) -> SessionPending:
        """See `Caller`; a Session has no deadline for each call."""
        del timeout
        future: Future[Any] = Future()
        with self._lock:
            if self._over:
                raise CallFailed(self.stream.ended.result(PATIENCE), "the stream has ended", None)
            call_id = next(self._ids)
            self._waiting[call_id] = (method, named(method, request), future)
        self.stream.send(_frame(call_id, method, encode(request)))
        return SessionPending(future)

    def call(self, method: str, request: Request, timeout: float = PATIENCE) -> Any:
        """See `Caller`."""
        return self.start(method, request).result(timeout)

    def close(self) -> None:
        """See `Caller`."""
        self.stream.cancel()
        self._thread.join(PATIENCE)

    def _dispatch(self) -> None:
        for response in self.stream:
            with self._lock:
                method, name, future = self._waiting.pop(response.call_id)
            which = response.WhichOneof("result")
            if which == "error":
                future.set_exception(of_status(response.error, name))
            elif which == method.lower():
                future.set_result(getattr(response, which))
            else:
                future.set_exception(AssertionError(f"{which} in answer to {method}"))
        with self._lock:
            self._over = True
            orphans, self._waiting = list(self._waiting.values()), {}
        for _, _, future in orphans:
            future.set_exception(CallFailed(self.stream.ended.result(), "the stream ended", None))


def _frame(call_id: int, method: str, payload: bytes) -> bytes:
    """A SessionRequest around a request that may be anything at all."""
    number = pb.SessionRequest.DESCRIPTOR.fields_by_name[method.lower()].number
    return b"\x08" + varint(call_id) + bytes((number << 3 | 2,)) + varint(len(payload)) + payload


class BatchPending:
    """A batch of one, on its way."""

    def __init__(self, method: str, name: str, pending: UnaryPending) -> None:
        self._method = method
        self._name = name
        self._pending = pending

    def result(self, timeout: float = PATIENCE) -> Any:
        """See `Pending`."""
        try:
            answer = self._pending.result(timeout)
        except CallFailed as error:
            error.call = self._name
            raise
        if self._method == "Reserve":
            (response,) = answer.responses
            return response
        (result,) = answer.results
        if result.WhichOneof("result") == "error":
            raise of_status(result.error, self._name)
        return result.response

    def done(self) -> bool:
        """See `Pending`."""
        return self._pending.done()

    def cancel(self) -> None:
        """Tell the store that nobody waits any more."""
        self._pending.cancel()


class BatchCaller(UnaryCaller):
    """Reserve, Put and Get go as batches of one item: batches have the semantics of their items."""

    name = "batch"

    def start(self, method: str, request: Request, timeout: float | None = PATIENCE) -> Any:
        """See `Caller`."""
        if method not in {"Reserve", "Put", "Get"}:
            return super().start(method, request, timeout)
        payload = encode(request)
        item = b"\x0a" + varint(len(payload)) + payload  # in all three, field 1 has the items
        pending = super().start("Batch" + method, item, timeout)
        return BatchPending(method, named(method, request), pending)


CALLERS: dict[str, type[UnaryCaller] | type[SessionCaller]] = {
    kind.name: kind for kind in (UnaryCaller, SessionCaller, BatchCaller)
}
