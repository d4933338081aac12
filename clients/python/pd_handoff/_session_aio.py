"""Calls of tasks over one Session, or alone (see `_adaptive`)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from pd_handoff import _channel, _frames, errors
from pd_handoff._adaptive import PROBE_SECONDS, Adaptive, SessionMode
from pd_handoff._mux import MOST
from pd_handoff._session import FRESH, PROBE
from pd_handoff._transport import GrpcAioTransport
from pd_handoff._wire import Status, WireEnded
from pd_handoff.v1 import metadata_store_pb2 as pb

_SLICE = 5.0  # seconds


class AsyncMux:
    """The calls of one stream, of one event loop."""

    def __init__(self, call: Any, metadata: Any) -> None:
        """`call` is a stream of bytes; `metadata` what it was opened with."""
        self.metadata = metadata
        self.born = time.monotonic()
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self._received = 0
        self._retired = False
        self._ended: WireEnded | None = None
        self._unsent: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._reader = self._loop.create_task(self._read(), name="pd-handoff-session")

    @property
    def usable(self) -> bool:
        """Whether another call may go over it."""
        return self._ended is None and not self._retired

    @property
    def full(self) -> bool:
        """Whether it carries all that it may."""
        return len(self._waiting) >= MOST

    async def call(self, body: bytes, timeout: float) -> Message:
        """One call; `timeout` in seconds. Raises HandoffError for a refusal, TimeoutError, WireEnded."""
        if self._ended is not None:
            raise WireEnded(self._ended.status)
        call_id = self._last = self._last + 1
        future = self._waiting[call_id] = self._loop.create_future()
        timer = self._loop.call_later(timeout, _time_out, future)
        self._unsent.append(_frames.frame_of(call_id, body))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        try:
            answer = await future
        finally:
            timer.cancel()
            self._waiting.pop(call_id, None)
            if self._retired and not self._waiting:
                self._call.cancel()
        if isinstance(answer, Message):
            return answer
        raise answer

    def idle_since(self, received: int) -> bool:
        """Whether nothing has come since `received` was read."""
        return received == self._received

    @property
    def received(self) -> int:
        """Answers so far."""
        return self._received

    async def _write(self) -> None:
        # A task of its own: to cancel a write is to cancel the stream.
        try:
            while self._unsent:
                await self._call.write(self._unsent.popleft())
        except (grpc.RpcError, asyncio.InvalidStateError):
            self._unsent.clear()  # the reader learns why
        finally:
            self._writer = None

    async def _read(self) -> None:
        status: Any = Status(0, "", ())
        try:
            while True:  # ends with the stream
                frame = await self._call.read()
                if frame is grpc.aio.EOF:
                    status = Status(
                        (await self._call.code()).value[0],
                        await self._call.details() or "",
                        await self._call.trailing_metadata(),
                    )
                    break
                self._hand_over(frame)
        except grpc.RpcError as error:
            status = error
        except ValueError:
            self._call.cancel()
        except asyncio.CancelledError:
            status = Status(1, "", ())
        self._end(WireEnded(status))

    def _hand_over(self, frame: bytes) -> None:
        self._received += 1
        call_id, answer = _frames.answer_of(frame)
        future = self._waiting.pop(call_id, None)
        if future is not None and not future.done():  # else it gave up
            future.set_result(answer)

    def _end(self, ended: WireEnded) -> None:
        self._ended = ended
        for future in self._waiting.values():
            if not future.done():
                future.set_result(WireEnded(ended.status))
        self._waiting.clear()

    def retire(self) -> None:
        """No more calls: the stream ends with those under way."""
        self._retired = True
        if not self._waiting:
            self._call.cancel()

    async def close(self) -> None:
        """Ends the stream, and what is under way on it."""
        self._retired = True
        self._call.cancel()
        await asyncio.wait([self._reader])


class AsyncSessionTransport(GrpcAioTransport):
    """Single calls over one stream when it pays and works; the others, and batches, each alone on the same channel."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: _channel.CallMetadata,
        options: Iterable[_channel.Option],
        session: SessionMode,
    ) -> None:
        super().__init__(target, credentials, metadata, options)
        self._adaptive = Adaptive(session, differs=metadata.differs)
        self._mux: AsyncMux | None = None
        self._opening: asyncio.Task[AsyncMux | None] | None = None

    async def call(self, method: str, request: Message, timeout: float) -> Message:
        """See AsyncTransport."""
        if not _frames.carries(method) or _queues(request):
            return await super().call(method, request, timeout)
        began = time.monotonic()
        mux = await self._stream(timeout)
        if mux is None or mux.full or request.ByteSize() > _frames.LARGEST:
            return await super().call(method, request, timeout)
        received = mux.received
        try:
            return await _carry(mux, method, request, timeout - (time.monotonic() - began))
        except TimeoutError:
            raise errors.no_answer(self._target) from None
        except WireEnded as ended:
            self._lost(mux)
            if self._closed:
                raise errors.ClientClosed("this client was closed") from None
            elapsed = time.monotonic() - began
            if not (mux.idle_since(received) and elapsed < min(FRESH, timeout)):
                raise ended.error(self._target) from None
        return await super().call(method, request, timeout - elapsed)

    async def _stream(self, timeout: float) -> AsyncMux | None:
        """The stream to use, opened if need be; None to call alone."""
        mux = self._mux
        if mux is not None and mux.usable and mux.metadata == self._metadata.credentials():
            return mux
        if not self._adaptive.wants():
            return None
        credentials = self._metadata.credentials()
        if self._opening is None:
            if mux is not None:
                mux.retire()
            self._opening = asyncio.create_task(self._open(credentials, timeout))
            self._opening.add_done_callback(_look)  # should all who wait for it be cancelled
        elif not self._adaptive.always:
            return None  # another task is at it
        # A task of its own: who is cancelled here must not take the stream from the others.
        return await asyncio.shield(self._opening)

    async def _open(self, credentials: _channel.Metadata | None, timeout: float) -> AsyncMux | None:
        """A stream that has answered once. Raises HandoffError where calls may not go alone instead."""
        try:
            if self._closed:
                raise errors.ClientClosed("this client was closed")
            always = self._adaptive.always
            method: Any = self._opened().stream_stream(_frames.METHOD)
            mux = AsyncMux(method(metadata=self._metadata()), credentials)
            error: errors.HandoffError | None = None
            try:
                await mux.call(PROBE, timeout if always else min(timeout, PROBE_SECONDS))
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
            if error is not None:
                self._adaptive.refused(error)
                if always:
                    raise error
            return None
        finally:
            self._opening = None

    def _lost(self, mux: AsyncMux) -> None:
        if self._mux is mux and not self._closed:
            self._mux = None
            self._adaptive.ended(time.monotonic() - mux.born)

    async def close(self) -> None:
        """See AsyncTransport."""
        self._closed = True
        if self._mux is not None:
            await self._mux.close()
        await super().close()


async def _carry(mux: AsyncMux, method: str, request: Message, timeout: float) -> Message:
    """One call. A task can be cancelled, and a Session has no way to tell the store: so a Get waits there for a few
    seconds at a time, and what a cancelled one leaves behind is gone as soon."""
    if not (isinstance(request, pb.GetRequest) and _seconds(request) > _SLICE):
        return await mux.call(_frames.body_of(method, request), timeout)
    deadline = time.monotonic() + timeout
    until = time.monotonic() + _seconds(request)
    part = pb.GetRequest()
    part.CopyFrom(request)
    while True:  # ends with the Get's own wait
        wait = min(_SLICE, max(until - time.monotonic(), 0.001))
        last = wait < _SLICE
        part.max_wait.FromNanoseconds(round(wait * 1e9))
        try:
            return await mux.call(_frames.body_of(method, part), max(deadline - time.monotonic(), 0.0))
        except errors.RecordNotReady:
            if last:
                raise


def _seconds(request: pb.GetRequest) -> float:
    return request.max_wait.seconds + request.max_wait.nanos / 1e9


def _queues(request: Message) -> bool:
    """Whether it may wait in line for a slot: there it can neither be cut into parts, which would lose its place, nor
    be left behind when its task is cancelled."""
    return not isinstance(request, pb.GetRequest) and _frames.waits(request)


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _time_out(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(TimeoutError())
