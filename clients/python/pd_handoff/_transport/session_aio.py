"""Calls of tasks over one Session, or alone (see `session_policy`)."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import Message

from pd_handoff import errors
from pd_handoff._transport import channel, grpc_internals, session_frames
from pd_handoff._transport.multiplexer import MOST
from pd_handoff._transport.session import FRESH, PROBE, unopened
from pd_handoff._transport.session_policy import PROBE_SECONDS, Adaptive, SessionMode
from pd_handoff._transport.stream import Wire, WireEnded, open_wire
from pd_handoff._transport.transports import GrpcAioTransport, check_loop
from pd_handoff.v1 import metadata_store_pb2 as pb

_SLICE = 5.0  # seconds
_END_SECONDS = 5.0  # a cancelled stream ends at once


class AsyncMux:
    """The calls of one stream, of one event loop. A thread reads the stream and wakes the loop once for all that has
    come: for many calls in flight that takes half the time of a `grpc.aio` stream, and for one no more."""

    def __init__(self, wire: Wire, metadata: Any) -> None:
        """`metadata` is what the stream was opened with."""
        self.metadata = metadata
        self.born = time.monotonic()
        self.received = 0  # answers so far
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._retired = False
        self._ended: WireEnded | None = None
        self._over = self._loop.create_future()
        self._inbox: deque[bytes | WireEnded] = deque()
        reader = (wire, self._inbox, self._loop, weakref.ref(self))
        threading.Thread(target=_read, args=reader, name="pd-handoff-session", daemon=True).start()

    def __del__(self) -> None:
        """A client that was dropped without being closed leaves no thread behind."""
        self._wire.cancel()

    @property
    def usable(self) -> bool:
        """Whether another call may go over it."""
        return self._ended is None and not self._retired

    @property
    def full(self) -> bool:
        """Whether it carries all that it may."""
        return len(self._waiting) >= MOST

    async def call(self, tag: bytes, request: bytes, timeout: float) -> Message:
        """One call, by the tag of its method; `timeout` in seconds. Raises HandoffError for a refusal, TimeoutError,
        WireEnded."""
        check_loop(self._loop)
        if self._ended is not None:
            raise WireEnded(self._ended.status)
        call_id = self._last = self._last + 1
        future = self._waiting[call_id] = self._loop.create_future()
        timer = self._loop.call_later(timeout, _time_out, future)
        try:
            self._wire.send(session_frames.frame_of(session_frames.head_of(call_id, tag), request))
            answer = await future
        finally:
            timer.cancel()
            self._waiting.pop(call_id, None)
            if self._retired and not self._waiting:
                self._wire.cancel()
        if isinstance(answer, Message):
            return answer
        raise answer

    def deliver(self) -> None:
        """In the loop: hand over what the reader has put into the inbox."""
        while self._inbox:
            found = self._inbox.popleft()
            if isinstance(found, WireEnded):
                self._end(found)
                continue
            self.received += 1
            try:
                call_id, answer = session_frames.answer_of(found)
            except ValueError:
                self._wire.cancel()
                continue
            future = self._waiting.pop(call_id, None)
            if future is not None and not future.done():  # else it gave up
                future.set_result(answer)

    def _end(self, ended: WireEnded) -> None:
        self._ended = ended
        for future in self._waiting.values():
            if not future.done():
                future.set_result(WireEnded(ended.status))
        self._waiting.clear()
        if not self._over.done():
            self._over.set_result(None)

    def retire(self) -> None:
        """No more calls: the stream ends with those under way."""
        self._retired = True
        if not self._waiting:
            self._wire.cancel()

    async def close(self) -> None:
        """Ends the stream, and what is under way on it."""
        self._retired = True
        self._wire.cancel()
        await asyncio.wait([self._over], timeout=_END_SECONDS)


def _read(
    wire: Wire, inbox: deque[bytes | WireEnded], loop: asyncio.AbstractEventLoop, owner: weakref.ref[AsyncMux]
) -> None:
    found: bytes | WireEnded | None = None
    while not isinstance(found, WireEnded):
        try:
            found = wire.receive()
        except WireEnded as ended:
            found = ended
        if found is None:
            continue
        inbox.append(found)
        mux = owner()
        if mux is None:
            wire.cancel()
        elif len(inbox) == 1 or isinstance(found, WireEnded):  # else the loop is still at it
            try:
                loop.call_soon_threadsafe(mux.deliver)
            except RuntimeError:  # the loop was closed
                wire.cancel()
        mux = None


class AsyncSessionTransport(GrpcAioTransport):
    """Single calls over one stream when it pays and works; the others, and batches, each alone on the same channel."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
        session: SessionMode,
    ) -> None:
        super().__init__(target, credentials, metadata, options)
        self._adaptive = Adaptive(session, differs=metadata.differs)
        self._mux: AsyncMux | None = None
        self._opening: asyncio.Task[AsyncMux | None] | None = None
        self._stream_channel: grpc.Channel | None = None

    async def call(self, method: str, request: Message, timeout: float) -> Message:
        """See AsyncTransport."""
        tag = session_frames.TAGS.get(method)
        if tag is None or _queues(request):
            return await super().call(method, request, timeout)
        began = time.monotonic()
        mux = self._mux
        if mux is None or not mux.usable or self._metadata.changes:
            mux = await self._stream(timeout)
        if mux is None or mux.full or request.ByteSize() > session_frames.LARGEST:
            return await super().call(method, request, timeout)
        received = mux.received
        try:
            return await _carry(mux, tag, request, timeout - (time.monotonic() - began))
        except TimeoutError:
            raise errors.no_answer(self._target) from None
        except WireEnded as ended:
            self._lost(mux)
            if self._closed:
                raise errors.ClientClosed("this client was closed") from None
            elapsed = time.monotonic() - began
            if not (received == mux.received and elapsed < min(FRESH, timeout)):
                raise ended.error(self._target) from None
        return await super().call(method, request, timeout - elapsed)

    async def _stream(self, timeout: float) -> AsyncMux | None:
        """The stream to use, opened if need be; None to call alone."""
        mux = self._mux
        if mux is not None:
            if not mux.usable:
                self._lost(mux)
            elif mux.metadata == self._metadata.credentials():
                return mux
        if not self._adaptive.wants():
            return None
        credentials = self._metadata.credentials()
        if self._opening is None:
            if mux is not None and mux.usable:
                self._mux = None
                mux.retire()  # the token was renewed
            self._opening = asyncio.create_task(self._open(credentials, timeout))
            self._opening.add_done_callback(_look)  # should all who wait for it be cancelled
        elif not self._adaptive.always:
            return None  # another task is at it
        # A task of its own: who is cancelled here must not take the stream from the others.
        return await asyncio.shield(self._opening)

    async def _open(self, credentials: channel.Metadata | None, timeout: float) -> AsyncMux | None:
        """A stream that has answered once. Raises HandoffError where calls may not go alone instead."""
        try:
            if self._closed:
                raise errors.ClientClosed("this client was closed")
            always, given_up = self._adaptive.always, grpc_internals.given_up()
            mux = AsyncMux(open_wire(self._streams(), self._metadata()), credentials)
            error: errors.HandoffError | None = None
            try:
                await mux.call(*PROBE, timeout if always else min(timeout, PROBE_SECONDS))
            except errors.HandoffError:
                pass  # a refusal is an answer
            except TimeoutError:
                error = errors.no_answer(self._target)
            except WireEnded as ended:
                error = ended.error(self._target)
            if error is None and not self._closed:
                self._adaptive.opened()
                self._mux = mux
                return mux
            await mux.close()
            if self._closed:
                raise errors.ClientClosed("this client was closed")
            if grpc_internals.given_up() and not given_up:
                return await self._open(credentials, timeout)  # over a public stream
            if error is not None:
                self._adaptive.refused(error)
                if always:
                    raise unopened(error, self._target)
            return None
        finally:
            self._opening = None

    def _streams(self) -> grpc.Channel:
        if self._stream_channel is None:
            self._stream_channel = channel.open_channel(self._target, self._credentials, self._settings)
        return self._stream_channel

    def _lost(self, mux: AsyncMux) -> None:
        if self._mux is mux and not self._closed:
            self._mux = None
            self._adaptive.ended(time.monotonic() - mux.born)

    async def close(self) -> None:
        """See AsyncTransport."""
        self._closed = True
        if self._mux is not None:
            await self._mux.close()
        if self._stream_channel is not None:
            self._stream_channel.close()
        await super().close()


async def _carry(mux: AsyncMux, tag: bytes, request: Message, timeout: float) -> Message:
    """One call. A task can be cancelled, and a Session has no way to tell the store: so a Get waits there for a few
    seconds at a time, and what a cancelled one leaves behind is gone as soon."""
    if not (isinstance(request, pb.GetRequest) and _seconds(request) > _SLICE):
        return await mux.call(tag, request.SerializeToString(), timeout)
    deadline = time.monotonic() + timeout
    until = time.monotonic() + _seconds(request)
    part = pb.GetRequest()
    part.CopyFrom(request)
    while True:  # ends with the Get's own wait
        wait = min(_SLICE, max(until - time.monotonic(), 0.001))
        last = wait < _SLICE
        part.max_wait.FromNanoseconds(round(wait * 1e9))
        try:
            return await mux.call(tag, part.SerializeToString(), max(deadline - time.monotonic(), 0.0))
        except errors.RecordNotReady:
            if last:
                raise


def _seconds(request: pb.GetRequest) -> float:
    return request.max_wait.seconds + request.max_wait.nanos / 1e9


def _queues(request: Message) -> bool:
    """Whether it may wait in line for a slot: there it can neither be cut into parts, which would lose its place, nor
    be left behind when its task is cancelled."""
    return not isinstance(request, pb.GetRequest) and session_frames.waits(request)


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(TimeoutError())
