"""The gRPC server of the `grpc.aio` transport: ports, health, reflection, and a graceful end."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from pd_handoff_server.handlers.call import Report
from pd_handoff_server.transport.builtin_services import (
    REFLECTED,
    WATCHED,
    health_handlers,
    reflection_handlers,
)
from pd_handoff_server.transport.channel_options import CUT, ChannelArguments
from pd_handoff_server.transport.gate import Gate
from pd_handoff_server.transport.ports import Ports

from .calls import Streams, admin_handlers, store_handlers
from .health import Health, Reflection

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class AioServer:
    """Serves a Gate. NOT_SERVING until `ready`, and again from `drain` on.

    Attributes:
        name: of the transport.
    """

    name: Final = "aio"

    def __init__(self, ports: Ports, gate: Gate, arguments: ChannelArguments, report: Report) -> None:
        self._ports = ports
        self._server = grpc.aio.server(options=arguments)
        self._streams = Streams()
        self._health = Health(self._streams)
        self._server.add_generic_rpc_handlers(
            (store_handlers(gate, self._streams, report), admin_handlers(gate, report))
        )
        told = Reflection(self._streams, REFLECTED, gate.unread)
        self._server.add_generic_rpc_handlers(
            (
                health_handlers(self._health.check, self._health.watch, self._health.listing),
                *reflection_handlers(told.info),
            )
        )

    async def start(self) -> list[str]:
        """Bind and listen; returns the addresses, with the ports that were chosen for 0. Raises AddressError."""
        addresses = self._ports.bind(self._server)
        self._set(_NOT_SERVING)
        await self._server.start()
        return addresses

    async def ready(self) -> None:
        """The store takes calls from now on."""
        self._set(_SERVING)

    async def drain(self) -> None:
        """Tell probes that it will not for long."""
        self._set(_NOT_SERVING)

    async def stop(self, grace: float, cut: float = CUT) -> None:
        """See `Transport`."""
        self._streams.stop()
        stopping = asyncio.ensure_future(self._server.stop(grace))
        await asyncio.wait({stopping}, timeout=grace + cut)
        self._ports.release()

    def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in WATCHED:
            self._health.set(name, status)
