"""The calls that the fast server leaves to its thread pool: the admin service."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from pd_handoff_server.refusal import Refusal
from pd_handoff_server.rpc.call import Call, Report
from pd_handoff_server.rpc.errors import CODES, INTERNAL, trailing
from pd_handoff_server.rpc.gate import ADMIN, ADMIN_UNARY, Gate
from pd_handoff_server.rpc.guard import ContextApproach, Denied

Context = grpc.ServicerContext


def admin_handlers(gate: Gate, report: Report, pool: futures.ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    """Handlers of MetadataStoreAdmin, with the guard and the error mapping around them, run in a pool of their own."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for name in ADMIN_UNARY:
        behave = _mapped(name, gate, report)
        behave.experimental_thread_pool = pool  # type: ignore[attr-defined]  # how gRPC chooses a pool for a method
        handlers[name] = grpc.unary_unary_rpc_method_handler(behave)
    return grpc.method_handlers_generic_handler(ADMIN, handlers)


def _mapped(name: str, gate: Gate, report: Report) -> Callable[[bytes, Context], bytes]:
    def behave(request: bytes, context: Context) -> bytes:
        cause: BaseException | None = None
        approach = ContextApproach(context)
        try:
            principal = gate.admit(f"/{ADMIN}/{name}", approach)
            return gate.admin_answer(name, request, Call(None, context.peer(), principal, approach))
        except Denied as denied:
            told: Denied | Refusal = denied
        except Refusal as refused:
            told = refused
        except Exception as error:
            told, cause = INTERNAL, error
        # Out here, since `abort` leaves by an exception that the clauses above would catch.
        if isinstance(told, Denied):
            context.abort(told.code, told.message)
        else:
            report(name, approach, told, cause)
            if details := trailing(told):
                context.set_trailing_metadata(details)
            context.abort(CODES[told.reason], told.message)
        raise AssertionError("abort returned")

    return behave
