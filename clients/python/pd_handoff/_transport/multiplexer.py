"""Many calls of many threads over one stream, without a thread of its own.

One of the waiting threads reads the stream for all (it leads); the others sleep until it hands them their answer, or
the lead. With one call in flight its own thread reads, and no answer changes threads.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, TypeAlias

from google.protobuf.message import Message

from pd_handoff import errors
from pd_handoff._transport import session_frames
from pd_handoff._transport.stream import Wire, WireEnded
from pd_handoff._transport.watchdog import Alarm

MOST = 1000
"""Calls in flight; a store takes 1,024 a stream."""


class MuxEnded(Exception):  # noqa: N818  # an end, not always an error
    """The stream ended before the call's answer. `idle` when nothing had come over it since the call was sent: it may
    have been dead before."""

    def __init__(self, ended: WireEnded, idle: bool) -> None:
        super().__init__(ended)
        self.ended = ended
        self.idle = idle


_Outcome: TypeAlias = "Message | errors.HandoffError | WireEnded | None"


class _Waiter:
    """Who does not lead."""

    __slots__ = ("answer", "gate", "leads")

    def __init__(self) -> None:
        self.answer: _Outcome = None
        self.leads = False
        self.gate = threading.Lock()
        self.gate.acquire()


class Mux:
    """The calls of one stream.

    Attributes:
        metadata: what the stream was opened with.
        born: when it was, in `time.monotonic` seconds.
        usable: whether another call may go over it.
        deadline: of the call that reads, in `time.monotonic` seconds; infinite while none does.
    """

    def __init__(self, wire: Wire, alarm: Alarm, metadata: Any = None) -> None:
        """`metadata` is what the stream was opened with."""
        self.metadata = metadata
        self.born = time.monotonic()
        self.usable = True
        self.deadline = math.inf
        self._wire = wire
        self._alarm = alarm
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiter] = {}  # all but the one that leads
        self._last = 0
        self._received = 0
        self._led = False
        self._retired = False
        self._ended: WireEnded | None = None
        alarm.watch(self)

    @property
    def full(self) -> bool:
        """Whether it carries all that it may."""
        return len(self._waiting) >= MOST

    def wake(self) -> None:
        """See Wakeable."""
        self._wire.wake()

    def call(self, tag: bytes, request: bytes, deadline: float) -> Message:
        """One call, by the tag of its method; `deadline` in `time.monotonic` seconds. Raises HandoffError for a
        refusal, TimeoutError, MuxEnded."""
        leads, call_id, waiter = False, 0, None
        try:
            with self._lock:
                if self._ended is not None:
                    raise MuxEnded(self._ended, idle=True)
                self._last = call_id = self._last + 1
                received = self._received
                if self._led:
                    waiter = self._waiting[call_id] = _Waiter()
                else:
                    leads = self._led = True
            head = session_frames.head_of(call_id, tag)
            frame = session_frames.frame_of(head, request)
            if waiter is None:
                answer = self._lead(call_id, head, tag, deadline, frame)
            else:
                answer = self._follow(waiter, frame, deadline)
                if answer is None and waiter.leads:
                    leads = True
                    answer = self._lead(call_id, head, tag, deadline, None)
        finally:
            if leads or waiter is not None:
                self._leave(call_id, leads, waiter)
        if isinstance(answer, Message):
            return answer
        if isinstance(answer, WireEnded):
            raise MuxEnded(answer, idle=received == self._received)
        if answer is None:
            raise TimeoutError
        raise answer

    def _follow(self, waiter: _Waiter, frame: bytes, deadline: float) -> _Outcome:
        """Wait for what whoever leads hands over."""
        self._wire.send(frame)
        waiter.gate.acquire(timeout=min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX))
        return waiter.answer

    def _lead(self, call_id: int, head: bytes, tag: bytes, deadline: float, frame: bytes | None) -> _Outcome:
        """Send the frame, if any, and read until there is its answer, or its time is over."""
        try:
            self.deadline = deadline
            self._alarm.expect(deadline)
            found = self._wire.receive() if frame is None else self._wire.exchange(frame)
            while True:  # each turn takes a message, or is woken
                if found is not None:
                    self._received += 1
                    answer = self._read(found, call_id, head, tag)
                    if answer is not None:
                        return answer
                elif time.monotonic() >= deadline:
                    return None
                found = self._wire.receive()
        except WireEnded as ended:
            self._end(ended)
            return ended
        finally:
            self.deadline = math.inf

    def _read(self, frame: bytes, own: int, head: bytes, tag: bytes) -> Message | errors.HandoffError | None:
        """The answer to the call that leads; another one is handed over to whom it belongs."""
        try:
            mine = session_frames.own_answer_of(frame, head, tag)
            if mine is not None:
                return mine
            call_id, answer = session_frames.answer_of(frame)
        except ValueError:
            self._wire.cancel()
            return None
        if call_id == own:
            return answer
        with self._lock:
            waiter = self._waiting.pop(call_id, None)
            if waiter is not None:  # else it gave up
                waiter.answer = answer
                waiter.gate.release()
        return None

    def _end(self, ended: WireEnded) -> None:
        with self._lock:
            self.usable = False
            self._ended = ended
            for waiter in self._waiting.values():
                waiter.answer = ended
                waiter.gate.release()
            self._waiting.clear()
        self._alarm.forget(self)

    def _leave(self, call_id: int, leads: bool, waiter: _Waiter | None) -> None:
        """The call is over, however: pass on the lead, if it has it."""
        with self._lock:
            if waiter is not None:
                self._waiting.pop(call_id, None)
                leads = waiter.leads
            if not leads:
                return
            if self._waiting:
                other = self._waiting.pop(next(iter(self._waiting)))
                other.leads = True
                other.gate.release()
                return
            self._led = False
            finish = self._retired and self._ended is None
        if finish:
            self._finish()

    def retire(self) -> None:
        """No more calls: the stream ends with those under way."""
        with self._lock:
            self.usable = False
            self._retired = True
            if self._led or self._ended is not None:
                return
        self._finish()

    def close(self) -> None:
        """Ends the stream, and what is under way on it."""
        self._wire.cancel()
        self.retire()

    def _finish(self) -> None:
        """Cancel an idle stream, and take what comes of it, which frees it."""
        with self._lock:
            if self._led or self._ended is not None:
                return
            self._led = True
        self._wire.cancel()
        try:
            while True:  # a cancelled stream ends at once
                self._wire.receive()
        except WireEnded as ended:
            self._end(ended)
