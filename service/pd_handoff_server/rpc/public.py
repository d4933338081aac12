"""What is open to everybody, on either transport: gRPC's own health and reflection services.

They stand behind readers that bound what strangers can make them remember, and that take bytes which are no messages
for requests about nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from .gate import ADMIN, STORE

HEALTH: Final = health.SERVICE_NAME
WATCHED: Final = ("", STORE, ADMIN)
"""The services whose health is told."""
REFLECTED: Final = (STORE, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME)

_UNKNOWN: Final = "?"
M = TypeVar("M", bound=Message)


def read_health(data: bytes) -> health_pb2.HealthCheckRequest:
    """A health request. All services that are not there go by one name: the health service never forgets one."""
    request = _lenient(health_pb2.HealthCheckRequest, data)
    if request is None or request.service not in WATCHED:
        return health_pb2.HealthCheckRequest(service=_UNKNOWN)
    return request


def read_reflection(data: bytes) -> reflection_pb2.ServerReflectionRequest:
    """A reflection request; one that is none asks for nothing, and is told so."""
    request = _lenient(reflection_pb2.ServerReflectionRequest, data)
    return reflection_pb2.ServerReflectionRequest() if request is None else request


def _lenient(message: type[M], data: bytes) -> M | None:
    try:
        return message.FromString(data)
    except DecodeError:
        return None


def health_handlers(check: Any, watch: Any) -> grpc.GenericRpcHandler:
    """Handlers of the health service."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.unary_unary_rpc_method_handler(check, read_health, _serialize),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, read_health, _serialize),
    }
    return grpc.method_handlers_generic_handler(HEALTH, methods)


def reflection_handlers(info: Callable[[Any, Any], Any]) -> grpc.GenericRpcHandler:
    """Handlers of the reflection service."""
    handler = grpc.stream_stream_rpc_method_handler(info, read_reflection, _serialize)
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": handler})


def _serialize(response: Message) -> bytes:
    return response.SerializeToString()
