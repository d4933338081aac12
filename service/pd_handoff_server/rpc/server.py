"""The gRPC server of the `grpc.aio` transport: ports, health, reflection, and a graceful end."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from .aio import ADMIN, STORE, Gate, admin_handlers, store_handlers
from .interceptor import ErrorMapping, Report
from .sockets import AddressError, SocketLock, explain

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def channel_arguments(max_message: int) -> list[tuple[str, int]]:
    """Settings of the server's channels."""
    return [
        ("grpc.so_reuseport", 0),  # else two stores would share a port and split its connections
        ("grpc.max_receive_message_length", max_message),
        ("grpc.max_send_message_length", max_message),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.max_concurrent_streams", 4096),
        # Engines ping every few seconds to notice a dead store; the default policy would answer with GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),  # half-open peers are noticed within 50 s
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


class Server:
    """Serves a Gate. NOT_SERVING until `ready`, and again from `drain` on."""

    def __init__(self, listen: Sequence[str], gate: Gate, max_message: int, report: Report) -> None:
        self._listen = listen
        self._server = grpc.aio.server(interceptors=[ErrorMapping(report)], options=channel_arguments(max_message))
        self._health = health.aio.HealthServicer()
        self._locks: list[SocketLock] = []
        self._server.add_generic_rpc_handlers((store_handlers(gate), admin_handlers(gate)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [STORE, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> list[str]:
        """Bind and listen; returns the addresses, with the ports that were chosen for 0. Raises AddressError."""
        addresses = [self._bind(address) for address in self._listen]
        await self._set(_NOT_SERVING)
        await self._server.start()
        return addresses

    def _bind(self, address: str) -> str:
        if address.startswith("unix:"):
            self._locks.append(SocketLock(address.removeprefix("unix:").removeprefix("//")))
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise AddressError(explain(address))
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    async def ready(self) -> None:
        """The store takes calls from now on."""
        await self._set(_SERVING)

    async def drain(self) -> None:
        """Tell probes that it will not for long."""
        await self._set(_NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Take no more calls, let those in flight finish within `grace` seconds, and end."""
        await self._server.stop(grace)
        for lock in self._locks:
            lock.release()

    async def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", STORE, ADMIN):
            await self._health.set(name, status)
