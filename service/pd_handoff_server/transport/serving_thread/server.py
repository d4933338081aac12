"""The server of the fast transport: the public `grpc.server` with another serving thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from concurrent import futures
from typing import Final

import grpc
from grpc_health.v1 import health_pb2

from pd_handoff_server.handlers.call import Call, Report
from pd_handoff_server.transport.builtin_services import (
    HEALTH,
    LISTS,
    REFLECTED,
    WATCHED,
    reflection_handlers,
)
from pd_handoff_server.transport.channel_options import CUT, ChannelArguments
from pd_handoff_server.transport.gate import STORE, UNARY, Gate
from pd_handoff_server.transport.ports import Ports
from pd_handoff_server.transport.reflection import Reflector

from .admin import admin_routes
from .context import Front
from .grpc_internals import Loop, Route
from .health import Check, Health, Listing, Watch
from .stream import Stream
from .unary import Unary

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

_WORKERS: Final = 16  # of reflection; each stream takes one for as long as its caller likes
_ADMIN_WORKERS: Final = 4


class FastServer:
    """Serves a Gate. NOT_SERVING until `ready`, and again from `drain` on.

    Attributes:
        name: of the transport.
    """

    name: Final = "fast"

    def __init__(self, ports: Ports, gate: Gate, arguments: ChannelArguments, report: Report) -> None:
        self._ports = ports
        self._pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="pd-handoff-worker")
        self._admin_pool = futures.ThreadPoolExecutor(_ADMIN_WORKERS, thread_name_prefix="pd-handoff-admin")
        self._server = grpc.server(self._pool, options=arguments)
        self._health = Health()
        self._front = Front(gate, report)
        # Only generic handlers: calls of registered ones would never come by the routes.
        self._server.add_generic_rpc_handlers(reflection_handlers(Reflector(REFLECTED).info))
        self._loop = Loop(self._server, self._routes(), self._front.failed)
        gate.unread.watch(self._holders)

    def _routes(self) -> dict[bytes, Route]:
        return {
            **routes(self._front),
            **admin_routes(self._front, self._admin_pool),
            f"/{HEALTH}/Check".encode(): functools.partial(Check, self._front, self._health),
            **({f"/{HEALTH}/List".encode(): functools.partial(Listing, self._front, self._health)} if LISTS else {}),
            f"/{HEALTH}/Watch".encode(): functools.partial(Watch, self._front, self._health),
        }

    def _holders(self) -> Iterator[Call]:
        for served in self._loop.alive():
            if isinstance(served, Unary):
                yield served
            elif isinstance(served, Stream):
                yield served.holder

    async def start(self) -> list[str]:
        """Bind and listen; returns the addresses, with the ports that were chosen for 0. Raises AddressError."""
        addresses = self._ports.bind(self._server)
        self._set(_NOT_SERVING)
        self._loop.start()
        return addresses

    async def ready(self) -> None:
        """The store takes calls from now on."""
        self._set(_SERVING)

    async def drain(self) -> None:
        """Tell probes that it will not for long."""
        self._set(_NOT_SERVING)

    async def stop(self, grace: float, cut: float = CUT) -> None:
        """See `Transport`."""
        self._front.stop()
        stopped = self._server.stop(grace)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, stopped.wait, grace + cut)
        self._pool.shutdown(wait=False)
        self._admin_pool.shutdown(wait=False)
        self._ports.release()

    def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in WATCHED:
            self._health.set(name, status)


def routes(front: Front) -> dict[bytes, Route]:
    """What is answered on the serving thread, by full method name."""
    found: dict[bytes, Route] = {f"/{STORE}/{name}".encode(): functools.partial(Unary, front, name) for name in UNARY}
    found[f"/{STORE}/Session".encode()] = functools.partial(Stream, front)
    return found
