"""Many single calls over one stream, whatever transport carries it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Parked

from . import wire
from .call import Call, Handler
from .calls import Calls
from .errors import INTERNAL, to_status
from .guard import Approach
from .principal import Principal

MAX_IN_FLIGHT: Final = 1024
MAX_UNSENT: Final = 256
MAX_UNSENT_BYTES: Final = 1 << 20
"""Answers, and bytes of them, that may wait for a slow reader before a transport stops taking its requests."""

_METHODS: Final = {2: "Reserve", 3: "Put", 4: "Get", 5: "Release", 6: "Abort", 7: "Capabilities"}
_FIELDS: Final = {"reserve": 2, "put": 3, "get": 4, "release": 5, "abort": 6, "capabilities": 7}
_ERROR: Final = 8


Refused = Callable[[str, Refusal], None]
"""Is told the method of a call in a Session, and why it was refused."""


class Session:
    """The server's side of one stream. `send` takes serialized SessionResponses, from any thread."""

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
        self._send = send
        self._peer = peer
        self._principal = principal
        self._approach = approach
        self._refused = refused
        self._lock = threading.Lock()
        self._parked: dict[int, Parked] = {}
        self._owed = 0  # answers of calls that were parked
        self._finished: Callable[[], None] | None = None
        self._closed = False
        self._calls = calls
        calls.sessions += 1

    def receive(self, data: bytes) -> None:
        """Carry out one SessionRequest; its answer is sent now or later."""
        call_id, number, payload = split(data)
        handler = self._handlers.get(number)
        if handler is None or call_id in self._parked or len(self._parked) >= MAX_IN_FLIGHT:
            self._turn_away(call_id, handler)
            return
        answered: list[Any] = []

        def done(result: Any) -> None:
            with self._lock:
                if self._parked.pop(call_id, None) is None:
                    answered.append(result)  # it came before `receive` noted the call as parked
                    return
            self._answer(call_id, number, result)
            self._settle()

        try:
            answer = handler(payload, Call(None, self._peer, self._principal, self._approach), done)
        except Refusal as refused:
            self._refuse(call_id, refused, number)
            return
        if isinstance(answer, bytes):
            self._answer(call_id, number, answer)
            return
        self._park(call_id, number, answer, answered)

    def _turn_away(self, call_id: int, handler: Handler | None) -> None:
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
        self._refuse(call_id, refused)

    def _park(self, call_id: int, number: int, parked: Parked, answered: list[Any]) -> None:
        with self._lock:
            if not answered and not self._closed:
                self._parked[call_id] = parked
                self._owed += 1
                return
        if answered:
            self._answer(call_id, number, answered[0])
        else:
            parked.cancel()

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

    def _answer(self, call_id: int, number: int, result: Any) -> None:
        if isinstance(result, Refusal):
            self._refuse(call_id, result, number)
        else:
            self._send(b"\x08" + wire.varint(call_id) + wire.framed(number, result))

    def _refuse(self, call_id: int, refused: Refusal, number: int = 0) -> None:
        self._refused(_METHODS.get(number, "Session"), refused)
        self._tell(call_id, refused)

    def _tell(self, call_id: int, refused: Refusal) -> None:
        status = to_status(refused).SerializeToString()
        self._send(b"\x08" + wire.varint(call_id) + wire.framed(_ERROR, status))

    def fail(self, data: bytes) -> None:
        """Answer a request whose handling failed unexpectedly, which the transport tells of."""
        self._tell(split(data)[0], INTERNAL)

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
            call_id, at = _varint(data, 1)
            call_id &= 0xFFFFFFFFFFFFFFFF
        tag = data[at]
        size, start = _varint(data, at + 1)
        if tag & 7 == 2 and start + size == len(data) and tag >> 3 in _METHODS:
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
