"""Error mapping of the `grpc.aio` transport: refusals become statuses, unforeseen errors become INTERNAL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from pd_handoff_server.refusal import Refusal

from .call import Report
from .errors import CODES, INTERNAL, trailing
from .guard import ContextApproach, Denied


class ErrorMapping(grpc.aio.ServerInterceptor):
    """Wraps every handler of every service on the server."""

    def __init__(self, report: Report) -> None:
        self._report = report

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Give the handler found a body that maps its errors."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        if handler.stream_stream is not None and method == "Session":
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream), handler.request_deserializer, handler.response_serializer
            )
        return handler

    def _unary(self, method: str, behave: Any) -> Any:
        async def mapped(request: Any, context: Any) -> Any:
            try:
                return await behave(request, context)
            except Refusal as refused:
                await self._abort(method, context, refused, None)
            except Denied as denied:
                await context.abort(denied.code, denied.message)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(method, context, INTERNAL, error)

        return mapped

    def _stream(self, method: str, behave: Any) -> Any:
        async def mapped(requests: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for answer in behave(requests, context):
                    yield answer
            except Refusal as refused:
                await self._abort(method, context, refused, None)
            except Denied as denied:
                await context.abort(denied.code, denied.message)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(method, context, INTERNAL, error)

        return mapped

    async def _abort(self, method: str, context: Any, refused: Refusal, error: BaseException | None) -> NoReturn:
        self._report(method, ContextApproach(context), refused, error)
        await context.abort(CODES[refused.reason], refused.message, trailing(refused))
        raise AssertionError("abort returned")
