"""A unary call on the serving thread: received, carried out and answered where it arrived."""

from __future__ import annotations

from typing import Any, Final

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import Denied
from pd_handoff_server.handlers.call import Answer, Call
from pd_handoff_server.handlers.status import INTERNAL
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Parked

from . import grpc_internals
from .context import Front
from .grpc_internals import Arrival, Step, Tag

_RUNNING: Final = 0  # its handler has not returned, or what it returned waits to be sent
_EARLY: Final = 1  # it was to be parked, and its answer came before that
_PARKED: Final = 2
_ANSWERING: Final = 3  # its last batch is under way
_GONE: Final = 4  # its caller left while it was parked


class Unforeseen:
    """In the place of an answer: an error of a handler."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Unary(Call, Tag):
    """Also the tag of its own batches, which complete on the serving thread."""

    __slots__ = ("_answer", "_call", "_due", "_event", "_front", "_method", "_returned", "_state", "brings")

    def __init__(self, front: Front, method: str, event: grpc_internals.Event) -> None:
        super().__init__()
        self.brings = False
        self._event = event
        self._call = event.call
        self._front = front
        self._method = method
        self._state = _RUNNING
        self._returned: Any = None  # by the handler, until it is sent
        self._answer: Any = None  # that came EARLY, or the Parked
        self._due = 1  # batches to complete once the answer is on its way

    @property
    def approach(self) -> Arrival:  # type: ignore[override]
        """See `Call`."""
        return Arrival(self._event)

    @property
    def remaining(self) -> float | None:  # type: ignore[override]
        """See `Call`."""
        return Arrival(self._event).remaining()

    @property
    def peer(self) -> str:  # type: ignore[override]
        """See `Call`."""
        return Arrival(self._event).peer()

    def begin(self) -> None:
        """Let the caller in, and receive its message."""
        guard = self._front.gate.guard
        if guard is not None:
            approach = self.approach
            try:
                self.principal = guard(approach.method(), approach)
            except Denied as denied:
                self._state = _ANSWERING
                self._send_status(denied.code.value[0], denied.message, None)
                return
            except Exception as error:
                self._refuse(INTERNAL, error)
                return
        self.brings = True
        grpc_internals.start_receive(self._call, self)

    def carry_out(self, event: grpc_internals.Event) -> None:
        """See `Tag`."""
        self.brings = False
        data = grpc_internals.received(event)
        if data is None:  # cancelled, or over the size limit, before its message was here
            return
        try:
            self._returned = answer = self._handle(data)
        except Refusal as refused:
            self._returned = refused
        except Exception as error:
            self._returned = Unforeseen(error)
        else:
            if answer.__class__ is bytes:  # it counts from here on, since others are carried out before it is sent
                unread = self._front.unread
                self.unread = size = len(answer)
                unread.direct += size
                if unread.books is not None:
                    unread.book(self)

    def send_off(self) -> None:
        """See `Tag`."""
        returned, self._returned = self._returned, None
        if returned.__class__ is bytes:
            self._state = _ANSWERING
            grpc_internals.start_answer(self._call, returned, self)
        elif returned is None:
            self._state = _GONE
            grpc_internals.start_watch(self._call, self)
        elif isinstance(returned, Refusal):
            self._refuse(returned, None)
        elif isinstance(returned, Unforeseen):
            self._refuse(INTERNAL, returned.error)
        else:
            self._park(returned)

    def complete(self, event: grpc_internals.Event) -> Unary | None:
        """See `Tag`."""
        del event
        self._due -= 1
        if self._due:
            return None
        size = self.unread
        if size:
            self.unread = 0
            unread = self._front.unread
            unread.direct -= size
            if unread.books is not None:
                unread.book(self)
        return self

    def _handle(self, data: bytes) -> Answer:
        calls = self._front.gate.calls
        if calls is None:
            raise refusal.draining()
        return calls.handlers[self._method](data, self, self._complete)

    # -- parked --------------------------------------------------------------------------------------------------------

    def _park(self, parked: Parked) -> None:
        self._due = 2
        grpc_internals.start_watch(self._call, Step(self._over))
        with self._front.lock:
            if self._state != _EARLY:
                self._answer = parked
                self._state = _PARKED
                return
            self._state = _ANSWERING
            early, self._answer = self._answer, None
        self._send(early)

    def _complete(self, result: Any) -> None:
        """The store's answer, from whatever thread."""
        self._front.unread.hold(self, len(result) if isinstance(result, bytes) else 0)
        with self._front.lock:
            if self._state != _PARKED:
                if self._state == _RUNNING:
                    self._answer = result
                    self._state = _EARLY
                return
            self._state = _ANSWERING
            self._answer = None  # it leads back to this call
        self._send(result)

    def _over(self, event: grpc_internals.Event) -> Unary | None:
        """The watched call is over: because it was answered, or because its caller left."""
        with self._front.lock:
            gone = self._state == _PARKED
            if gone:
                self._state = _GONE
                parked, self._answer = self._answer, None
        if gone:
            parked.cancel()
            self._front.unread.end(self)
            return self
        return self.complete(event)

    # -- the last batch ------------------------------------------------------------------------------------------------

    def _send(self, result: Any) -> None:
        if isinstance(result, Refusal):
            self._front.refused(self._method, self.approach, result, None)
            self._refusal_status(result)
        else:
            grpc_internals.start_watched_answer(self._call, result, self)

    def _refuse(self, refused: Refusal, error: BaseException | None) -> None:
        self._state = _ANSWERING
        self._front.refused(self._method, self.approach, refused, error)
        self._refusal_status(refused)

    def _refusal_status(self, refused: Refusal) -> None:
        self._send_status(*self._front.status(refused))

    def _send_status(self, code: int, message: str, trailing: Any) -> None:
        watched = self._due == 2
        grpc_internals.start_status(self._call, code, message.encode(), trailing, self, watched=watched, begun=False)
