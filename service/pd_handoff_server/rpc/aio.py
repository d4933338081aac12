"""The `grpc.aio` transport: coroutines around the synchronous core."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from pd_handoff_server import refusal
from pd_handoff_server.refusal import Refusal

from .call import Call, Report
from .errors import INTERNAL
from .gate import ADMIN, ADMIN_UNARY, STORE, UNARY, Gate
from .guard import ContextApproach
from .session import MAX_UNSENT, MAX_UNSENT_BYTES, Session
from .unread import Unread

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
        name: grpc.unary_unary_rpc_method_handler(_unary(gate, name)) for name in UNARY
    }
    methods["Session"] = grpc.stream_stream_rpc_method_handler(_session(gate, streams, report))
    return grpc.method_handlers_generic_handler(STORE, methods)


def _unary(gate: Gate, name: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
    method, unread = f"/{STORE}/{name}", gate.unread

    async def behave(request: bytes, context: Context) -> bytes:
        approach = ContextApproach(context)
        principal = gate.admit(method, approach)
        call = Call(context.time_remaining(), context.peer(), principal, approach)
        completion = _Completion(unread, call)
        handler = gate.ready_calls().handlers[name]
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

    return behave


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
        holder = Call(None, context.peer(), principal, approach)
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


def admin_handlers(gate: Gate) -> grpc.GenericRpcHandler:
    """Handlers of MetadataStoreAdmin, as those of the store."""
    return grpc.method_handlers_generic_handler(
        ADMIN, {name: grpc.unary_unary_rpc_method_handler(_admin(gate, name)) for name in ADMIN_UNARY}
    )


def _admin(gate: Gate, name: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def behave(request: bytes, context: Context) -> bytes:
        approach = ContextApproach(context)
        principal = gate.admit(f"/{ADMIN}/{name}", approach)
        return gate.admin_answer(name, request, Call(None, context.peer(), principal, approach))

    return behave
