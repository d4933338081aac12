"""A Session on the serving thread: requests carried out where they arrive, answers sent one after the other."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import Denied
from pd_handoff_server.handlers.call import StatedCall
from pd_handoff_server.handlers.session import MAX_UNSENT, MAX_UNSENT_BYTES, Session
from pd_handoff_server.handlers.status import INTERNAL
from pd_handoff_server.refusal import Refusal

from . import grpc_internals
from .context import Front
from .grpc_internals import Arrival, Event, Step, Tag

_METHOD = "Session"
_WAITS = 16 << 10  # bytes of a request that may wait while the next is received, and of the answers that are expected
_SPACING = 63  # times at most that there is no look for the next request, after none was found
_RIDES = 4096  # bytes of an answer that may go out with the next receive, whose end does not say whether it is out


def _refused(front: Front, arrival: Arrival, method: str, refused: Refusal) -> None:
    front.refused(method, arrival, refused, None)


class Stream(Tag):
    """One stream, and the tag of its batches that receive. Batches complete on the serving thread; answers of parked
    calls come from any thread.

    Attributes:
        holder: stands for the stream where it is counted what is kept for callers that do not read.
    """

    __slots__ = (
        "_answers",
        "_arrival",
        "_begun",
        "_call",
        "_due",
        "_ended",
        "_front",
        "_looked",
        "_on_sent",
        "_open",
        "_outcome",
        "_receiving",
        "_riding",
        "_said_all",
        "_sending",
        "_sending_bytes",
        "_session",
        "_skip",
        "_small",
        "_spacing",
        "_unsent",
        "_unsent_bytes",
        "_watched",
        "holder",
    )
    brings = True
    lasts = True

    def __init__(self, front: Front, event: Event) -> None:
        self._arrival = Arrival(event)
        self._call = event.call
        self.holder = StatedCall()
        self._front = front
        self._session: Any = None
        self._on_sent: Any = Step(self._sent)
        self._answers: list[bytes | None] = []  # to requests that were carried out, until they are sent
        self._said_all = False  # the caller has, and that is to be seen to
        self._looked = False  # whether the next request was there before the last one was carried out
        self._small = False  # whether the last answer was
        self._skip = 0  # so many times there is no look for it
        self._spacing = 0  # grows while looks are in vain
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._due = 0  # batches under way; changed under the front's lock
        self._open = 0  # requests whose answers have not been handed over
        self._sending = False
        self._sending_bytes = 0
        self._riding = False  # that answer went out in one batch with the next receive
        self._receiving = 0  # receives that were started, and not sent off yet; one more once the caller has said all
        self._watched = False
        self._begun = False
        self._outcome: tuple[int, str, Any] | None = None  # the status to end with, once all answers are out
        self._ended = False  # the status is on its way

    # -- its life ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the caller in, and receive."""
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
        self._watched = self._begun = True
        self._receiving = 1
        self._front.streams.add(self)
        grpc_internals.start_watch(self._call, Step(self._over))
        grpc_internals.start_initial_and_receive(self._call, self)

    def _enter(self) -> Any:
        """Whoever takes the requests. Raises Denied and Refusal."""
        arrival = self._arrival
        principal = self._front.gate.admit(arrival.method(), arrival)
        calls = self._front.session_calls()
        refused = functools.partial(_refused, self._front, arrival)
        holder = self.holder = StatedCall(None, arrival.peer(), principal, arrival)
        return Session(calls, self._send, holder.peer, principal, arrival, refused)

    def stop(self) -> None:
        """The server stops: end the stream once all answers are out."""
        if self._session is not None:
            self._session.close()
        self._end(*self._front.status(refusal.draining()))

    def _refuse(self, refused: Refusal, error: BaseException | None) -> None:
        self._front.refused(_METHOD, self._arrival, refused, error)
        self._end(*self._front.status(refused))

    def _end(self, code: int, message: str, trailing: Any) -> None:
        with self._front.lock:
            if self._outcome is None:
                self._outcome = (code, message, trailing)
        self._go_on()

    def _end_well(self) -> None:
        self._end(0, "", None)

    def _over(self, event: Event) -> Stream | None:
        """The call is over, whether we ended it or its caller left."""
        left = grpc_internals.cancelled(event)
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
        return self._at_last()

    def _at_last(self) -> Stream | None:
        """Itself once nothing is under way and nothing will be."""
        if not self._ended:  # whoever ends it starts a batch, whose completion leads here again
            return None
        with self._front.lock:
            if self._due:
                return None
            self._hold(-self.holder.unread)
        self._book()
        self._front.streams.discard(self)
        # Both lead back here. A stream must not wait for the search for cycles, which is rare: see `process`.
        self._session = self._on_sent = None
        return self

    # -- requests ------------------------------------------------------------------------------------------------------

    def look_ahead(self, event: Event) -> None:
        """See `Tag`. A caller with one request at a time has none: then an answer goes out together with a receive,
        which is cheaper; so it is seldom looked for in vain."""
        if self._skip or not self._small:
            self._skip = max(self._skip - 1, 0)
            return
        data = grpc_internals.received(event)
        if data is None or len(data) > _WAITS:
            return
        with self._front.lock:
            if self._ended or self._outcome is not None or self._piled():
                return
            self._due += 1
            self._receiving += 1
            self._looked = True
            grpc_internals.start_receive(self._call, self)

    def carry_out(self, event: Event) -> None:
        """See `Tag`."""
        data = grpc_internals.received(event)
        if data is None:
            self._said_all = True
            return
        try:
            answer = self._session.receive(data)
        except Exception as error:
            self._front.refused(_METHOD, self._arrival, INTERNAL, error)
            answer = self._session.fail(data)
        size = 0 if answer is None else len(answer)
        self._small = size <= _WAITS
        if size > _RIDES:
            self._count(size)
        self._answers.append(answer)

    def send_off(self) -> Stream | None:
        """See `Tag`. Answers all that was carried out, and is called again for the others."""
        answers, self._answers = self._answers, []
        with self._front.lock:
            self._due -= 1
            self._receiving -= 1
            if self._riding:  # with the batch that brought this
                self._sending = self._riding = False
            if (
                len(answers) == 1
                and (answer := answers[0]) is not None
                and len(answer) <= _RIDES
                and not (self._receiving or self._open or self._sending or self._unsent or self._outcome or self._ended)
            ):
                # No other answer can come before the next request does: one batch for both saves a round. It is started
                # under the lock, lest a stop comes in between and ends the call first.
                self._due += 1
                self._receiving = 1
                self._sending = self._riding = True
                grpc_internals.start_send_and_receive(self._call, answer, self)
                return None
            for answer in answers:
                self._keep(answer)
            if self._looked and answers:
                self._spacing = self._skip = min(2 * self._spacing + 1, _SPACING) if len(answers) == 1 else 0
                self._looked = False
            said_all, self._said_all = self._said_all, False
            nothing = self._receiving and not answers and not said_all
            if said_all:
                self._receiving += 1
        if nothing:  # what this brought went out with another one of its group
            return self._at_last()
        self._book()
        if said_all:
            self._finish()
        self._go_on()
        return self._at_last()

    def _keep(self, answer: bytes | None) -> None:
        """To be sent when its turn comes. Under the front's lock."""
        if answer is None:
            self._open += 1
        elif not self._ended:
            self._unsent.append(answer)
            self._unsent_bytes += len(answer)
            if len(answer) <= _RIDES:  # else it counts already
                self._hold(len(answer))

    def _finish(self) -> None:
        """The caller has said all: end once it has its answers."""
        if self._session is not None:
            self._session.finish(self._end_well)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _send(self, answer: bytes) -> None:
        """An answer that comes later, from any thread."""
        with self._front.lock:
            self._open -= 1
            if self._ended:
                return
            size = len(answer)
            self._hold(size)
            self._unsent.append(answer)
            self._unsent_bytes += size
            if not self._sending:
                self._sending = True
                self._due += 1
                grpc_internals.start_send(self._call, self._next(), self._on_sent)
        self._book()

    def _count(self, size: int) -> None:
        with self._front.lock:
            self._hold(size)
        self._book()

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
            self._hold(-self._sending_bytes)
            another = self._unsent and self._receiving and not self._ended
            if another:
                grpc_internals.start_send(self._call, self._next(), self._on_sent)
            else:
                self._sending = False
                self._sending_bytes = 0
        self._book()
        if another:
            return None
        self._go_on()
        return self._completed()

    def _next(self) -> bytes:
        """The next answer, from now on on its way. Under the front's lock."""
        answer = self._unsent.popleft()
        self._sending_bytes = len(answer)
        self._unsent_bytes -= self._sending_bytes
        return answer

    def _piled(self) -> bool:
        """Whether so many answers wait that no more requests are taken. Under the front's lock."""
        return bool(self._unsent) and (
            len(self._unsent) > MAX_UNSENT
            or self._unsent_bytes > MAX_UNSENT_BYTES
            or self._front.unread.pressing  # else thousands of streams would collect refusals
        )

    def _go_on(self) -> None:
        """Start what can be started: the next answer, else the end; and the next request, unless answers pile up."""
        answer = outcome = None
        with self._front.lock:
            if self._ended:
                return
            if self._unsent:
                if not self._sending:
                    answer = self._next()
                    self._sending = True
                    self._due += 1
            elif self._outcome is not None and (self._riding or not self._sending):
                outcome = self._outcome
                self._ended = True
                self._due += 1
            receive = not (self._receiving or self._outcome or self._piled())
            if receive:
                self._receiving = 1
                self._due += 1
        call = self._call
        if answer is not None:
            grpc_internals.start_send(call, answer, self._on_sent)
        elif outcome is not None:
            code, message, trailing = outcome
            tag = Step(self._status_sent)
            grpc_internals.start_status(
                call, code, message.encode(), trailing, tag, watched=self._watched, begun=self._begun
            )
        if receive:
            grpc_internals.start_receive(call, self)

    def _status_sent(self, event: Event) -> Stream | None:
        del event
        return self._completed()
