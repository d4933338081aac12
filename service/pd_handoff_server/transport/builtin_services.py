"""What is open to everybody, on either transport: the health and reflection services.

They stand behind readers that bound what strangers can make them remember, and that take bytes which are no messages
for requests about nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2

from . import reflection
from .gate import ADMIN, STORE

HEALTH: Final = health.SERVICE_NAME
WATCHED: Final = ("", STORE, ADMIN)
"""The services whose health is told."""
REFLECTED: Final = (STORE, ADMIN, health.SERVICE_NAME, reflection.V1, reflection.V1ALPHA)
LISTS: Final = hasattr(health_pb2, "HealthListRequest")
"""Whether this release of gRPC's health service has `List`."""

_UNKNOWN: Final = "?"
M = TypeVar("M", bound=Message)


def read_health(data: bytes) -> health_pb2.HealthCheckRequest:
    """A health request. All services that are not there go by one name: the health service never forgets one."""
    request = _lenient(health_pb2.HealthCheckRequest, data)
    if request is None or request.service not in WATCHED:
        return health_pb2.HealthCheckRequest(service=_UNKNOWN)
    return request


def _lenient(message: type[M], data: bytes) -> M | None:
    try:
        return message.FromString(data)
    except DecodeError:
        return None


def health_listing(told: Mapping[str, int]) -> Message:
    """A HealthListResponse of these statuses by service. To be used where `LISTS` says so."""
    response: Message = health_pb2.HealthListResponse()
    for service, status in told.items():
        response.statuses[service].status = status  # type: ignore[attr-defined]
    return response


def health_handlers(check: Any, watch: Any, listing: Any) -> grpc.GenericRpcHandler:
    """Handlers of the health service. The request of `listing` is bytes: it says nothing."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.unary_unary_rpc_method_handler(check, read_health, _serialize),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, read_health, _serialize),
    }
    if LISTS:
        methods["List"] = grpc.unary_unary_rpc_method_handler(listing, None, _serialize)
    return grpc.method_handlers_generic_handler(HEALTH, methods)


def reflection_handlers(info: Callable[[Any, Any], Any]) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handlers of the reflection service, in both versions."""
    handler = grpc.stream_stream_rpc_method_handler(info, reflection.read_request, _serialize)
    return tuple(
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in (reflection.V1, reflection.V1ALPHA)
    )


def _serialize(response: Message) -> bytes:
    return response.SerializeToString()
