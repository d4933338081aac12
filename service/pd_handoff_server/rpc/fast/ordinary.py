"""The calls that the fast server leaves to its thread pool: the admin service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from pd_handoff.v1 import admin_pb2

from pd_handoff_server.refusal import Refusal
from pd_handoff_server.rpc.errors import CODES, DETAILS_KEY, INTERNAL, to_status
from pd_handoff_server.rpc.gate import ADMIN, Gate, Report
from pd_handoff_server.rpc.guard import ContextApproach, Denied

Context = grpc.ServicerContext


def admin_handlers(gate: Gate, report: Report) -> grpc.GenericRpcHandler:
    """Handlers of MetadataStoreAdmin, with the guard and the error mapping around them."""
    answers: dict[str, tuple[type[Message], Callable[[Any], Message]]] = {
        "ListHandoffs": (admin_pb2.ListHandoffsRequest, lambda request: gate.ready_admin().list_handoffs(request)),
        "GetHandoff": (admin_pb2.GetHandoffRequest, lambda request: gate.ready_admin().get_handoff(request)),
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(
            _mapped(name, answer, gate, report),
            request_deserializer=message.FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
        for name, (message, answer) in answers.items()
    }
    return grpc.method_handlers_generic_handler(ADMIN, handlers)


def _mapped(
    name: str, answer: Callable[[Any], Message], gate: Gate, report: Report
) -> Callable[[Any, Context], Message]:
    def behave(request: Any, context: Context) -> Message:
        cause: BaseException | None = None
        try:
            gate.admit(f"/{ADMIN}/{name}", ContextApproach(context))
            return answer(request)
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
            report(name, context.peer(), told, cause)
            context.set_trailing_metadata(((DETAILS_KEY, to_status(told).SerializeToString()),))
            context.abort(CODES[told.reason], told.message)
        raise AssertionError("abort returned")

    return behave
