"""A Session on the serving thread: requests carried out where they arrive, answers sent one after the other."""

from __future__ import annotations

import functools
import threading
from collections import deque
from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.rpc.call import Call
from pd_handoff_server.rpc.errors import INTERNAL
from pd_handoff_server.rpc.guard import Denied
from pd_handoff_server.rpc.session import MAX_UNSENT, MAX_UNSENT_BYTES, Session

from . import internals
from .front import Front
from .internals import Arrival, Event, Step

_METHOD = "Session"
_RIDES = 4096  # bytes of an answer that may go out with the next receive, whose end does not say whether it is out


def _refused(front: Front, arrival: Arrival, method: str, refused: Refusal) -> None:
    front.refused(method, arrival, refused, None)


class Stream:
    """One stream. Batches complete on the serving thread; answers of parked calls come from any thread.

    Attributes:
        holder: stands for the stream where it is counted what is kept for callers that do not read.
    """

    __slots__ = (
        "_arrival",
        "_begun",
        "_call",
        "_direct",
        "_due",
        "_ended",
        "_front",
        "_on_both",
        "_on_received",
        "_on_sent",
        "_open",
        "_outcome",
        "_receiving",
        "_riding",
        "_sending",
        "_sending_bytes",
        "_session",
        "_thread",
        "_unsent",
        "_unsent_bytes",
        "_watched",
        "holder",
    )

    def __init__(self, front: Front, event: Event) -> None:
        self._arrival = Arrival(event)
        self._call = event.call
        self.holder = Call()
        self._front = front
        self._session: Any = None
        self._on_received: Any = Step(self._received)
        self._on_sent: Any = Step(self._sent)
        self._on_both: Any = Step(self._answered_and_received)
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._direct: list[bytes] | None = None  # collects what the serving thread itself answers to one request
        self._thread = 0
        self._due = 0  # batches under way; changed under the front's lock
        self._open = 0  # requests whose answers have not been handed over
        self._sending = False
        self._sending_bytes = 0
        self._riding = False  # that answer went out in one batch with the next receive
        self._receiving = False
        self._watched = False
        self._begun = False
        self._outcome: tuple[int, str, Any] | None = None  # the status to end with, once all answers are out
        self._ended = False  # the status is on its way

    # -- its life ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the caller in, and receive."""
        self._thread = threading.get_ident()
        try:
            self._session = self._enter()
        except Denied as denied:
            self._end(denied.code.value[0], denied.message, None)
            return
        except Refusal as refused:
            self._refuse(refused, None)
            return
        except Exception as error:
            self._refuse(INTERNAL, error)
            return
        self._due = 2
        self._watched = self._begun = self._receiving = True
        self._front.streams.add(self)
        internals.start_watch(self._call, Step(self._over))
        internals.start_initial_and_receive(self._call, self._on_received)

    def _enter(self) -> Any:
        """Whoever takes the requests. Raises Denied and Refusal."""
        arrival = self._arrival
        principal = self._front.gate.admit(arrival.method(), arrival)
        calls = self._front.session_calls()
        refused = functools.partial(_refused, self._front, arrival)
        holder = self.holder = Call(None, arrival.peer(), principal, arrival)
        return Session(calls, self._send, holder.peer, principal, arrival, refused)

    def stop(self) -> None:
        """The server stops: end the stream once all answers are out."""
        if self._session is not None:
            self._session.close()
        code, trailing = self._front.status(refusal.draining())
        self._end(code, refusal.draining().message, trailing)

    def _refuse(self, refused: Refusal, error: BaseException | None) -> None:
        self._front.refused(_METHOD, self._arrival, refused, error)
        code, trailing = self._front.status(refused)
        self._end(code, refused.message, trailing)

    def _end(self, code: int, message: str, trailing: Any) -> None:
        with self._front.lock:
            if self._outcome is None:
                self._outcome = (code, message, trailing)
        self._go_on()

    def _end_well(self) -> None:
        self._end(0, "", None)

    def _over(self, event: Event) -> Stream | None:
        """The call is over, whether we ended it or its caller left."""
        left = internals.cancelled(event)
        with self._front.lock:
            if left:
                self._hold(-self._unsent_bytes)
                self._unsent.clear()
                self._unsent_bytes = 0
                self._ended = True
        self._book()
        if self._session is not None:
            self._session.close()
        return self._completed()

    def _completed(self) -> Stream | None:
        with self._front.lock:
            self._due -= 1
            if self._due or not self._ended:
                return None
            self._hold(-self.holder.unread)
        self._book()
        self._front.streams.discard(self)
        # All of these lead back here. A stream must not wait for the search for cycles, which is rare: see `process`.
        self._session = self._on_received = self._on_sent = self._on_both = None
        return self

    # -- requests ------------------------------------------------------------------------------------------------------

    def _received(self, event: Event) -> Stream | None:
        """A request is here - and, when an answer went out in the same batch, that is sent."""
        with self._front.lock:
            self._receiving = False
        data = internals.received(event)
        if data is None:
            if self._session is not None:
                self._session.finish(self._end_well)
        else:
            self._carry_out(data)
        return self._completed()

    def _answered_and_received(self, event: Event) -> Stream | None:
        with self._front.lock:
            self._sending = self._riding = False
        return self._received(event)

    def _carry_out(self, data: bytes) -> None:
        session = self._session
        if session is None:
            return
        direct: list[bytes] = []
        self._direct = direct
        try:
            session.receive(data)
        except Exception as error:
            self._front.refused(_METHOD, self._arrival, INTERNAL, error)
            session.fail(data)
        self._direct = None
        with self._front.lock:
            self._open += 1 - len(direct)
            alone = (
                len(direct) == 1
                and len(direct[0]) <= _RIDES
                and not (self._open or self._sending or self._unsent or self._outcome or self._ended)
            )
            if alone:
                # No other answer can come before the next request does: one batch for both saves a round.
                self._sending = self._riding = self._receiving = True
                self._due += 1
            elif not self._ended:
                self._unsent.extend(direct)
                size = sum(map(len, direct))
                self._unsent_bytes += size
                self._hold(size)
        self._book()
        if alone:
            internals.start_send_and_receive(self._call, direct[0], self._on_both)
        else:
            self._go_on()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _send(self, answer: bytes) -> None:
        if self._direct is not None and threading.get_ident() == self._thread:
            self._direct.append(answer)
            return
        with self._front.lock:
            self._open -= 1
            if self._ended:
                return
            self._unsent.append(answer)
            self._unsent_bytes += len(answer)
            self._hold(len(answer))
        self._book()
        self._go_on()

    def _hold(self, change: int) -> None:
        """So many bytes more, or less, are not out. Under the front's lock; `_book` must follow without it."""
        self.holder.unread += change
        self._front.unread.elsewhere += change

    def _book(self) -> None:
        unread = self._front.unread
        if unread.books is not None:
            unread.book(self.holder)

    def _sent(self, event: Event) -> Stream | None:
        del event
        with self._front.lock:
            self._sending = False
            self._hold(-self._sending_bytes)
            self._sending_bytes = 0
        self._book()
        self._go_on()
        return self._completed()

    def _go_on(self) -> None:
        """Start what can be started: the next answer, else the end; and the next request, unless answers pile up."""
        answer = outcome = None
        with self._front.lock:
            if self._ended:
                return
            if self._unsent:
                if not self._sending:
                    answer = self._unsent.popleft()
                    self._sending_bytes = len(answer)
                    self._unsent_bytes -= self._sending_bytes
                    self._sending = True
                    self._due += 1
            elif self._outcome is not None and (self._riding or not self._sending):
                outcome = self._outcome
                self._ended = True
                self._due += 1
            piled = self._unsent and (
                len(self._unsent) > MAX_UNSENT
                or self._unsent_bytes > MAX_UNSENT_BYTES
                or self._front.unread.pressing  # else thousands of streams would collect refusals
            )
            receive = not (self._receiving or self._outcome or piled)
            if receive:
                self._receiving = True
                self._due += 1
        call = self._call
        if answer is not None:
            internals.start_send(call, answer, self._on_sent)
        elif outcome is not None:
            code, message, trailing = outcome
            tag = Step(self._status_sent)
            internals.start_status(
                call, code, message.encode(), trailing, tag, watched=self._watched, begun=self._begun
            )
        if receive:
            internals.start_receive(call, self._on_received)

    def _status_sent(self, event: Event) -> Stream | None:
        del event
        return self._completed()
