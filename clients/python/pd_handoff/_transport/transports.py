"""What carries one call to the store and back: here plain gRPC calls. Another transport (many calls over one stream)
fits under the same clients by having these methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from pd_handoff import errors
from pd_handoff._transport import channel, session_frames
from pd_handoff._transport.parking import OF_ITS_OWN, Parking
from pd_handoff._transport.unary import CallFailed, Unary, open_unary


class Transport(Protocol):
    """For blocking clients; used by many threads at once."""

    def call(self, method: str, request: Message, timeout: float) -> Message:
        """One call by its method's name; `timeout` in seconds. Raises HandoffError."""

    def close(self) -> None:
        """Ends what is under way. Idempotent."""


class AsyncTransport(Protocol):
    """For asyncio clients; used by many tasks of one event loop."""

    async def call(self, method: str, request: Message, timeout: float) -> Message:
        """One call by its method's name; `timeout` in seconds. Raises HandoffError."""

    async def close(self) -> None:
        """Ends what is under way. Idempotent."""


class GrpcTransport:
    """One unary call each, over one channel."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
    ) -> None:
        self._target = channel.target_of(target)
        settings = channel.options_of(options)
        self._channel = channel.open_channel(self._target, credentials, settings)
        self._unary = open_unary(self._channel)
        self._parking = Parking(
            (self._channel, self._unary), partial(_open_parked, self._target, credentials, settings)
        )
        self._metadata = metadata
        self._closed = False

    def call(self, method: str, request: Message, timeout: float) -> Message:
        """See Transport."""
        if not session_frames.waits(request):
            return self._call(self._unary, method, request, timeout)
        place = self._parking.enter()
        try:
            return self._call(place.way[1], method, request, timeout)
        finally:
            self._parking.leave(place)

    def _call(self, unary: Unary, method: str, request: Message, timeout: float) -> Message:
        try:
            return unary.call(method, request, timeout, self._metadata())
        except CallFailed as failed:
            if self._closed:
                raise errors.ClientClosed("this client was closed") from None
            raise errors.from_rpc(failed.status, self._target) from None
        except ValueError:
            if self._closed:  # grpc: cannot invoke on a closed channel
                raise errors.ClientClosed("this client was closed") from None
            raise

    def close(self) -> None:
        """See Transport."""
        self._closed = True
        for opened, _ in self._parking.others:
            opened.close()
        self._channel.close()


def _open_parked(
    target: str, credentials: grpc.ChannelCredentials | None, settings: Sequence[channel.Option]
) -> tuple[grpc.Channel, Unary]:
    opened = channel.open_channel(target, credentials, (*settings, *OF_ITS_OWN))
    return opened, open_unary(opened)


class _Opened(NamedTuple):
    channel: grpc.aio.Channel
    methods: dict[str, Callable[..., Any]]


class GrpcAioTransport:
    """One unary call each, over one channel, which belongs to the event loop of the first call."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: channel.CallMetadata,
        options: Iterable[channel.Option],
    ) -> None:
        self._target = channel.target_of(target)
        self._credentials = credentials
        self._settings = channel.options_of(options)
        self._metadata = metadata
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parking: Parking[_Opened] | None = None
        self._closed = False

    async def call(self, method: str, request: Message, timeout: float) -> Message:
        """See AsyncTransport."""
        if self._closed:
            raise errors.ClientClosed("this client was closed")
        parking = self._opened()
        if not session_frames.waits(request):
            return await self._call(parking.first, method, request, timeout)
        place = parking.enter()
        try:
            return await self._call(place.way, method, request, timeout)
        finally:
            parking.leave(place)

    async def _call(self, way: _Opened, method: str, request: Message, timeout: float) -> Message:
        try:
            answer: Message = await way.methods[method](request, timeout=timeout, metadata=self._metadata())
            return answer
        except grpc.RpcError as error:
            if self._closed:
                raise errors.ClientClosed("this client was closed") from None
            raise errors.from_rpc(error, self._target) from None
        except asyncio.CancelledError:
            # Closing the channel cancels the call, not the task: the task learns why instead of dying of it.
            if self._closed and not _cancelling():
                raise errors.ClientClosed("this client was closed") from None
            raise

    def _opened(self) -> Parking[_Opened]:
        if self._parking is not None:
            check_loop(self._loop)
            return self._parking
        # Not before the first call: a channel binds to the running loop, a client may be made without one.
        self._parking = Parking(
            self._open_alone(self._settings), lambda: self._open_alone((*self._settings, *OF_ITS_OWN))
        )
        self._loop = asyncio.get_running_loop()
        return self._parking

    def _open_alone(self, settings: Sequence[channel.Option]) -> _Opened:
        if self._credentials is None:
            opened = grpc.aio.insecure_channel(self._target, settings)
        else:
            opened = grpc.aio.secure_channel(self._target, self._credentials, settings)
        return _Opened(opened, channel.methods_of(opened))

    async def close(self) -> None:
        """See AsyncTransport."""
        self._closed = True
        if self._parking is not None:
            for opened in (*self._parking.others, self._parking.first):
                await opened.channel.close()


def check_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raises RuntimeError outside of this loop."""
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError("this client belongs to the event loop of its first call; make one client an event loop")


def _cancelling() -> bool:
    task = asyncio.current_task()
    # Python 3.10 cannot tell; taking it for a cancellation of the task is the safe side.
    return task is None or not hasattr(task, "cancelling") or task.cancelling() > 0
