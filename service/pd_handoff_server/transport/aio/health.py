"""Health and reflection on the `grpc.aio` transport: streams that their callers leave open, ended with the server.

gRPC's own services know no end: an open watch, or a reflection that asks no more, would hold a drain up for all of its
grace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from pd_handoff_server import refusal
from pd_handoff_server.handlers.call import StatedCall
from pd_handoff_server.handlers.send_budget import Unread
from pd_handoff_server.handlers.status import ending
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.transport.builtin_services import health_listing
from pd_handoff_server.transport.reflection import Reflector

from .calls import Context, Streams

_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

M = TypeVar("M")


async def _refused(context: Context, refused: Refusal) -> None:
    """End a stream."""
    await context.abort(*ending(refused))


class Health:
    """The status of each service, told to whoever asks or watches. Lives in one event loop."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._told: dict[str, health_pb2.HealthCheckResponse.ServingStatus] = {}
        self._watchers: set[asyncio.Event] = set()

    def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Change a status, and wake those who watch."""
        self._told[service] = status
        for changed in self._watchers:
            changed.set()

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """The handler of Check."""
        status = self._told.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
            raise AssertionError("abort returned")
        return health_pb2.HealthCheckResponse(status=status)

    async def listing(self, request: bytes, context: Context) -> Message:
        """The handler of List."""
        del request, context
        return health_listing(self._told)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """The handler of Watch: the status now and at each change, at last that the server stops."""
        changed, told = asyncio.Event(), None
        self._streams.enter(changed.set)
        self._watchers.add(changed)
        try:
            while True:
                status = self._told.get(request.service, _UNKNOWN)
                if status != told:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    told = status
                elif self._streams.stopping:
                    break
                else:
                    await changed.wait()
                    changed.clear()
        finally:
            self._watchers.discard(changed)
            self._streams.discard(changed.set)
        await _refused(context, refusal.draining())


class Reflection:
    """Reflection, until the server stops."""

    def __init__(self, streams: Streams, names: Iterable[str], unread: Unread) -> None:
        self._streams = streams
        self._unread = unread
        self._reflector = Reflector(names)

    async def info(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """The handler of ServerReflectionInfo."""
        stopped, unread, holder = asyncio.Event(), self._unread, StatedCall(None, context.peer())
        refused = None
        self._streams.enter(stopped.set)
        unread.begin(holder)
        try:
            async for request in _until(stopped, requests):
                answer = self._reflector.answer(request)
                refused = unread.over(holder)
                if refused is not None:
                    break
                unread.hold(holder, answer.ByteSize())
                yield answer
                unread.hold(holder, 0)
        finally:
            unread.end(holder)
            self._streams.discard(stopped.set)
        if refused is None and stopped.is_set():
            refused = refusal.draining()
        if refused is not None:
            await _refused(context, refused)


async def _until(stopped: asyncio.Event, requests: AsyncIterator[M]) -> AsyncIterator[M]:
    """Requests as they come, until it is set."""
    ending = asyncio.ensure_future(stopped.wait())
    try:
        while True:
            coming = asyncio.ensure_future(_next(requests))
            try:
                await asyncio.wait({coming, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
            if coming.cancelled() or not coming.done() or (request := coming.result()) is None:
                return
            yield request
    finally:
        ending.cancel()


async def _next(requests: AsyncIterator[M]) -> M | None:
    return await anext(requests, None)
