"""Many calls of many threads over one stream, without a thread of its own.

One of the waiting threads reads the stream for all (it leads); the others sleep until it hands them their answer, or
the lead. With one call in flight its own thread reads, and no answer changes threads.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from google.protobuf.message import Message

from pd_handoff import _frames, errors
from pd_handoff._alarm import Alarm
from pd_handoff._wire import Wire, WireEnded

MOST = 1000
"""Calls in flight; a store takes 1,024 a stream."""


class MuxEnded(Exception):  # noqa: N818  # an end, not always an error
    """The stream ended before the call's answer. `idle` when nothing had come over it since the call was sent: it may
    have been dead before."""

    def __init__(self, ended: WireEnded, idle: bool) -> None:
        super().__init__(ended)
        self.ended = ended
        self.idle = idle


class _Waiter:
    __slots__ = ("answer", "gate", "leads", "received")

    def __init__(self, leads: bool, received: int) -> None:
        self.answer: Message | errors.HandoffError | WireEnded | None = None
        self.leads = leads
        self.received = received
        if not leads:
            self.gate = threading.Lock()
            self.gate.acquire()


class Mux:
    """The calls of one stream."""

    def __init__(self, wire: Wire, alarm: Alarm, metadata: Any = None) -> None:
        """`metadata` is what the stream was opened with."""
        self.metadata = metadata
        self.born = time.monotonic()
        self._wire = wire
        self._alarm = alarm
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiter] = {}
        self._last = 0
        self._received = 0
        self._led = False
        self._retired = False
        self._ended: WireEnded | None = None

    @property
    def usable(self) -> bool:
        """Whether another call may go over it."""
        return self._ended is None and not self._retired

    @property
    def full(self) -> bool:
        """Whether it carries all that it may."""
        return len(self._waiting) >= MOST

    def wake(self) -> None:
        """See Wakeable."""
        self._wire.wake()

    def call(self, body: bytes, timeout: float) -> Message:
        """One call; `timeout` in seconds. Raises HandoffError for a refusal, TimeoutError, MuxEnded."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._ended is not None:
                raise MuxEnded(self._ended, idle=True)
            call_id = self._last = self._last + 1
            waiter = self._waiting[call_id] = _Waiter(not self._led, self._received)
            self._led = True
        try:
            self._wire.send(_frames.frame_of(call_id, body))
            if not waiter.leads:
                waiter.gate.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            if waiter.answer is None and waiter.leads:
                self._lead(waiter, deadline)
        finally:
            self._leave(call_id, waiter)
        answer = waiter.answer
        if isinstance(answer, Message):
            return answer
        if isinstance(answer, WireEnded):
            raise MuxEnded(answer, idle=waiter.received == self._received)
        if answer is None:
            raise TimeoutError
        raise answer

    def _lead(self, waiter: _Waiter, deadline: float) -> None:
        """Read until there is an answer for `waiter`, or its time is over."""
        self._alarm.set(self, deadline)
        try:
            while waiter.answer is None:
                frame = self._wire.receive()
                if frame is not None:
                    self._hand_over(frame)
                elif time.monotonic() >= deadline:
                    return
        except WireEnded as ended:
            self._end(ended)
        finally:
            self._alarm.drop(self)

    def _hand_over(self, frame: bytes) -> None:
        self._received += 1
        try:
            call_id, answer = _frames.answer_of(frame)
        except ValueError:
            self._wire.cancel()
            return
        with self._lock:
            waiter = self._waiting.pop(call_id, None)
            if waiter is not None:  # else it gave up
                waiter.answer = answer
                if not waiter.leads:
                    waiter.gate.release()

    def _end(self, ended: WireEnded) -> None:
        with self._lock:
            self._ended = ended
            for waiter in self._waiting.values():
                waiter.answer = ended
                if not waiter.leads:
                    waiter.gate.release()
            self._waiting.clear()

    def _leave(self, call_id: int, waiter: _Waiter) -> None:
        """The call is over, however: pass on the lead, if it has it."""
        with self._lock:
            self._waiting.pop(call_id, None)
            if not waiter.leads:
                return
            for other in self._waiting.values():
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
