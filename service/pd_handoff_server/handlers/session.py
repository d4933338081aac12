"""Many single calls over one stream, whatever transport carries it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import Approach
from pd_handoff_server.access.roles import Principal
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Parked

from .call import Handler, StatedCall
from .status import INTERNAL, to_status
from .store import Calls

MAX_IN_FLIGHT: Final = 1024
MAX_UNSENT: Final = 256
MAX_UNSENT_BYTES: Final = 1 << 20
"""Answers, and bytes of them, that may wait for a slow reader before a transport stops taking its requests."""

_METHODS: Final = {2: "Reserve", 3: "Put", 4: "Get", 5: "Release", 6: "Abort", 7: "Capabilities"}
_FIELDS: Final = {"reserve": 2, "put": 3, "get": 4, "release": 5, "abort": 6, "capabilities": 7}
_NUMBERS: Final = frozenset(number << 3 | 2 for number in _METHODS)
_ERROR: Final = 8


Refused = Callable[[str, Refusal], None]
"""Is told the method of a call in a Session, and why it was refused."""


class Request(StatedCall):
    """A call of a Session; when it has to wait, also what is told its answer.

    Attributes:
        call_id: the client's.
        number: of its method.
        early: the answer, when it came before the call was noted as parked.
    """

    __slots__ = ("_session", "call_id", "early", "number")

    def __init__(self, session: Session, call_id: int, number: int) -> None:
        super().__init__(None, *session.caller)
        self.call_id = call_id
        self.number = number
        self.early: Any = None
        self._session = session

    def __call__(self, result: Any) -> None:
        self._session.complete(self, result)


class Session:
    """The server's side of one stream. `send` takes serialized SessionResponses, from any thread.

    Attributes:
        caller: what its calls know of it: peer, principal, approach.
    """

    def __init__(
        self,
        calls: Calls,
        send: Callable[[bytes], None],
        peer: str = "",
        principal: Principal | None = None,
        approach: Approach | None = None,
        refused: Refused = lambda method, refused: None,
    ) -> None:
        """`principal` and `approach` are those of the stream; each call in it is judged by them."""
        self._handlers = {number: calls.handlers[name] for number, name in _METHODS.items()}
        self._read, self._answer = calls.reader.session, calls.reader.answer
        self._send = send
        self.caller: Final = (peer, principal, approach)
        self._refused = refused
        self._lock = threading.Lock()
        self._parked: dict[int, Parked] = {}
        self._owed = 0  # answers of calls that were parked
        self._finished: Callable[[], None] | None = None
        self._closed = False
        self._calls = calls
        calls.sessions += 1

    def receive(self, data: bytes) -> bytes | None:
        """Carry out one SessionRequest; returns its answer, for whoever calls to send, or None when it comes later."""
        read = self._read(data)
        call_id, number, payload = split(data) if read is None else read
        handler = self._handlers.get(number)
        parked = self._parked
        if handler is None or (parked and (call_id in parked or len(parked) >= MAX_IN_FLIGHT)):
            return self._turn_away(call_id, handler)
        request = Request(self, call_id, number)
        try:
            answer = handler(payload, request, request)
        except Refusal as refused:
            return self._refusal(call_id, refused, number)
        if answer.__class__ is bytes:
            return self._answer(call_id, number, answer)
        return self._park(request, answer)  # type: ignore[arg-type]

    def _turn_away(self, call_id: int, handler: Handler | None) -> bytes:
        """Refuse what does not get as far as a handler, which would count it."""
        if call_id in self._parked:
            what = [("call_id", f"{call_id} is still unanswered; use another")]
            refused = refusal.invalid("INVALID_REQUEST", what)
        elif handler is None:
            refused = refusal.invalid("INVALID_REQUEST", [("call", "is required")])
        else:
            refused = refusal.too_many_waiters(MAX_IN_FLIGHT)
        if self._calls.note_refused is not None:
            self._calls.note_refused("Session", refused.reason)
        return self._refusal(call_id, refused)

    def _park(self, request: Request, parked: Parked) -> bytes | None:
        with self._lock:
            early = request.early
            if early is None and not self._closed:
                self._parked[request.call_id] = parked
                self._owed += 1
                return None
        if early is not None:
            return self._framed(request, early)
        parked.cancel()
        return None

    def complete(self, request: Request, result: Any) -> None:
        """A call that may be parked has its answer, from any thread."""
        with self._lock:
            if self._parked.pop(request.call_id, None) is None:
                request.early = result
                return
        self._send(self._framed(request, result))
        self._settle()

    def _settle(self) -> None:
        """One parked call less is without its answer."""
        with self._lock:
            self._owed -= 1
            if self._owed or self._finished is None:
                return
            finished, self._finished = self._finished, None
        finished()

    def finish(self, finished: Callable[[], None]) -> None:
        """The caller has said all: `finished` is called once every answer has been sent, which may be now."""
        with self._lock:
            if self._owed:
                self._finished = finished
                return
        finished()

    def _framed(self, request: Request, result: Any) -> bytes:
        if isinstance(result, Refusal):
            return self._refusal(request.call_id, result, request.number)
        return self._answer(request.call_id, request.number, result)

    def _refusal(self, call_id: int, refused: Refusal, number: int = 0) -> bytes:
        self._refused(_METHODS.get(number, "Session"), refused)
        return self._failed(call_id, refused)

    def _failed(self, call_id: int, refused: Refusal) -> bytes:
        return self._answer(call_id, _ERROR, to_status(refused).SerializeToString())

    def fail(self, data: bytes) -> bytes:
        """The answer to a request whose handling failed unexpectedly, which the transport tells of."""
        return self._failed(split(data)[0], INTERNAL)

    def close(self) -> None:
        """The stream has ended: drop what still waits."""
        with self._lock:
            if not self._closed:
                self._calls.sessions -= 1
            self._closed, self._finished = True, None
            parked, self._parked = dict(self._parked), {}
        for waiting in parked.values():
            waiting.cancel()


def split(data: bytes) -> tuple[int, int, bytes]:
    """(call id, field number of the call, its serialized request) of a SessionRequest; number 0 when it has none.

    The usual order - call id, then one call - is cut by hand, so that the request is parsed once, by its handler.
    """
    try:
        at = call_id = 0
        if data[0] == 0x08:
            call_id, at = data[1], 2
            if call_id > 0x7F:
                call_id, at = _varint(data, 1)
                call_id &= 0xFFFFFFFFFFFFFFFF
        tag = data[at]
        size, start = data[at + 1], at + 2
        if size > 0x7F:
            size, start = _varint(data, at + 1)
        if start + size == len(data) and tag in _NUMBERS:
            return call_id, tag >> 3, data[start:]
    except IndexError:
        pass
    try:
        request = pb.SessionRequest.FromString(data)
    except DecodeError:
        return 0, 0, b""
    name = request.WhichOneof("call")
    if name is None:
        return request.call_id, 0, b""
    return request.call_id, _FIELDS[name], getattr(request, name).SerializeToString()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
