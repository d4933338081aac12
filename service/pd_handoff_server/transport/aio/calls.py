"""The `grpc.aio` transport: coroutines around the synchronous core."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import ContextApproach, Denied
from pd_handoff_server.handlers.call import Call, Handler, Report, StatedCall
from pd_handoff_server.handlers.send_budget import Unread
from pd_handoff_server.handlers.session import MAX_UNSENT, MAX_UNSENT_BYTES, Session
from pd_handoff_server.handlers.status import INTERNAL, ending
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.transport.gate import ADMIN, ADMIN_UNARY, STORE, UNARY, Gate

Context = grpc.aio.ServicerContext[Any, Any]


class _Completion:
    """Brings a completion, from whatever thread, to the coroutine that awaits it."""

    __slots__ = ("_call", "_future", "_loop", "_thread", "_unread")

    def __init__(self, unread: Unread, call: Call) -> None:
        self._unread = unread
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._thread = threading.get_ident()

    def __call__(self, result: Any) -> None:
        # Here and not by the coroutine: thousands may be completed before the first of them goes on.
        self._unread.hold(self._call, 0 if isinstance(result, Refusal) else len(result))
        if threading.get_ident() == self._thread:
            self._set(result)
        else:
            try:
                self._loop.call_soon_threadsafe(self._set, result)
            except RuntimeError:  # the loop has closed: nobody awaits any more
                return

    def _set(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def __await__(self) -> Any:
        return self._future.__await__()


class Streams:
    """The streams that are open; `stop` ends them, which would else last as long as their callers like."""

    def __init__(self) -> None:
        self._ends: set[Callable[[], None]] = set()
        self.stopping = False

    def add(self, end: Callable[[], None]) -> None:
        """One more, with what ends it. Raises Refusal DRAINING once they are stopped."""
        if self.stopping:
            raise refusal.draining()
        self._ends.add(end)

    def enter(self, end: Callable[[], None]) -> None:
        """As `add`, for one that looks at `stopping` itself: it is ended at once when they are stopped."""
        self._ends.add(end)
        if self.stopping:
            end()

    def discard(self, end: Callable[[], None]) -> None:
        """One less."""
        self._ends.discard(end)

    def stop(self) -> None:
        """End all."""
        self.stopping = True
        for end in list(self._ends):
            end()


def store_handlers(gate: Gate, streams: Streams, report: Report) -> grpc.GenericRpcHandler:
    """Handlers of MetadataStore: serialized messages in and out, Refusals raised."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: _unary(gate, f"/{STORE}/{name}", partial(gate.handler, name), report) for name in UNARY
    }
    methods["Session"] = grpc.stream_stream_rpc_method_handler(_mapped_stream(_session(gate, streams, report), report))
    return grpc.method_handlers_generic_handler(STORE, methods)


def _unary(gate: Gate, method: str, find: Callable[[], Handler], report: Report) -> grpc.RpcMethodHandler[Any, Any]:
    """A call of this full method name; `find` raises Refusal while the store is not ready."""
    unread = gate.unread

    async def behave(request: bytes, context: Context) -> bytes:
        approach = ContextApproach(context)
        principal = gate.admit(method, approach)
        call = StatedCall(context.time_remaining(), context.peer(), principal, approach)
        completion = _Completion(unread, call)
        handler = find()
        unread.begin(call)
        approach.when_over(partial(unread.end, call))
        answer = handler(request, call, completion)
        if isinstance(answer, bytes):
            unread.hold(call, len(answer))
            return answer
        try:
            result = await completion
        except asyncio.CancelledError:
            answer.cancel()  # the caller is gone: leave nothing behind
            raise
        if isinstance(result, Refusal):
            raise result
        return bytes(result)

    return grpc.unary_unary_rpc_method_handler(_mapped(behave, report, method.rpartition("/")[2]))


def _mapped(
    behave: Callable[[bytes, Context], Awaitable[bytes]], report: Report, method: str
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Refusals become statuses, unforeseen errors INTERNAL."""

    async def mapped(request: bytes, context: Context) -> bytes:
        try:
            return await behave(request, context)
        except Exception as error:
            await _end(report, method, context, error)

    return mapped


def _mapped_stream(
    behave: Callable[[Any, Context], AsyncIterator[bytes]], report: Report
) -> Callable[[Any, Context], AsyncIterator[bytes]]:
    """As `_mapped`, for a Session."""

    async def mapped(requests: Any, context: Context) -> AsyncIterator[bytes]:
        try:
            async for answer in behave(requests, context):
                yield answer
        except Exception as error:
            await _end(report, "Session", context, error)

    return mapped


async def _end(report: Report, method: str, context: Context, error: Exception) -> NoReturn:
    """End a call with the status of this error. Raises AbortError, as `context.abort` does."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, Denied):
        await context.abort(error.code, error.message)
    else:
        refused = error if isinstance(error, Refusal) else INTERNAL
        report(method, ContextApproach(context), refused, None if refused is error else error)
        await context.abort(*ending(refused))
    raise AssertionError("abort returned")


class _Answers:
    """What a Session has to send, brought from whatever thread to the coroutine that sends it."""

    def __init__(self, unread: Unread, holder: Call) -> None:
        """`holder` stands for the stream where it is counted what is kept for callers that do not read."""
        self._unread = unread
        self._holder = holder
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def put(self, answer: bytes | None) -> None:
        """One more, from any thread; None after the last. They come out in this order."""
        self._unread.hold_more(self._holder, len(answer or b""))
        if threading.get_ident() == self._thread:
            self._keep(answer)
        else:
            self._loop.call_soon_threadsafe(self._keep, answer)

    def _keep(self, answer: bytes | None) -> None:
        self._bytes += len(answer or b"")
        self._queue.put_nowait(answer)

    def close(self) -> None:
        """What is here, and what comes yet, has nobody to go to."""
        self._unread.end(self._holder)

    async def each(self) -> AsyncIterator[bytes]:
        """Until None."""
        while (answer := await self._queue.get()) is not None:
            yield answer
            self._bytes -= len(answer)
            self._unread.hold_more(self._holder, -len(answer))
            if not self._piled():
                self._room.set()

    async def not_piled(self) -> None:
        """Wait while too many of them wait for a slow reader."""
        if self._piled():
            self._room.clear()
            await self._room.wait()

    def _piled(self) -> bool:
        waiting = self._queue.qsize()
        if waiting and self._unread.pressing:  # else thousands of streams would collect refusals
            return True
        return waiting > MAX_UNSENT or self._bytes > MAX_UNSENT_BYTES


def _session(
    gate: Gate, streams: Streams, report: Report
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]:
    async def behave(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        approach = ContextApproach(context)
        principal = gate.admit(f"/{STORE}/Session", approach)
        holder = StatedCall(None, context.peer(), principal, approach)
        answers = _Answers(gate.unread, holder)

        def refused(method: str, refusal_: Refusal) -> None:
            report(method, approach, refusal_, None)

        session = Session(gate.ready_calls(), answers.put, holder.peer, principal, approach, refused)

        def end() -> None:
            answers.put(None)

        async def receive() -> None:
            try:
                async for request in requests:
                    try:
                        answer = session.receive(request)
                    except Exception as error:
                        report("Session", approach, INTERNAL, error)
                        answer = session.fail(request)
                    if answer is not None:
                        answers.put(answer)
                    await answers.not_piled()
            except BaseException:
                end()
                raise
            session.finish(end)

        streams.add(end)
        gate.unread.begin(holder)
        receiving = asyncio.ensure_future(receive())
        try:
            async for answer in answers.each():
                yield answer
            if streams.stopping:
                raise refusal.draining()
        finally:
            streams.discard(end)
            session.close()
            receiving.cancel()
            answers.close()

    return behave


def admin_handlers(gate: Gate, report: Report) -> grpc.GenericRpcHandler:
    """Handlers of MetadataStoreAdmin, as those of the store."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: _unary(gate, f"/{ADMIN}/{name}", partial(gate.admin_handler, name), report) for name in ADMIN_UNARY
    }
    return grpc.method_handlers_generic_handler(ADMIN, methods)
