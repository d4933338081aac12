"""What carries one call to the store and back: here plain gRPC calls. Another transport (many calls over one stream)
fits under the same clients by having these methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from pd_handoff import _channel, errors
from pd_handoff._unary import CallFailed, open_unary


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
        metadata: _channel.CallMetadata,
        options: Iterable[_channel.Option],
    ) -> None:
        self._target = _channel.target_of(target)
        settings = _channel.options_of(options)
        self._channel = _channel.open_channel(self._target, credentials, settings)
        self._unary = open_unary(self._channel)
        self._metadata = metadata
        self._closed = False

    def call(self, method: str, request: Message, timeout: float) -> Message:
        """See Transport."""
        try:
            return self._unary.call(method, request, timeout, self._metadata())
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
        self._channel.close()


class GrpcAioTransport:
    """One unary call each, over one channel, which belongs to the event loop of the first call."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        metadata: _channel.CallMetadata,
        options: Iterable[_channel.Option],
    ) -> None:
        self._target = _channel.target_of(target)
        self._credentials = credentials
        self._settings = _channel.options_of(options)
        self._metadata = metadata
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._methods: dict[str, Callable[..., Any]] = {}
        self._closed = False

    async def call(self, method: str, request: Message, timeout: float) -> Message:
        """See AsyncTransport."""
        if self._closed:
            raise errors.ClientClosed("this client was closed")
        self._opened()
        try:
            answer: Message = await self._methods[method](request, timeout=timeout, metadata=self._metadata())
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

    def _opened(self) -> grpc.aio.Channel:
        if self._channel is not None:
            check_loop(self._loop)
            return self._channel
        # Not before the first call: a channel binds to the running loop, a client may be made without one.
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self._target, self._settings)
        else:
            self._channel = grpc.aio.secure_channel(self._target, self._credentials, self._settings)
        self._methods = _channel.methods_of(self._channel)
        self._loop = asyncio.get_running_loop()
        return self._channel

    async def close(self) -> None:
        """See AsyncTransport."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()


def check_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raises RuntimeError outside of this loop."""
    if asyncio.get_running_loop() is not loop:
        raise RuntimeError("this client belongs to the event loop of its first call; make one client an event loop")


def _cancelling() -> bool:
    task = asyncio.current_task()
    # Python 3.10 cannot tell; taking it for a cancellation of the task is the safe side.
    return task is None or not hasattr(task, "cancelling") or task.cancelling() > 0
