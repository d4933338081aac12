"""Which transport carries the calls: the fast one where it works, else `grpc.aio`."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from pd_handoff_server.handlers.call import Report

from .aio.server import AioServer
from .channel_options import CUT, ChannelArguments
from .gate import Gate
from .ports import Ports
from .serving_thread.selftest import probe
from .serving_thread.server import FastServer


class TransportError(Exception):
    """The transport that was asked for does not work here; the message says why."""


class Transport(Protocol):
    """A server of either transport.

    Attributes:
        name: fast or aio.
    """

    @property
    def name(self) -> str:
        """Of the transport."""

    async def start(self) -> list[str]:
        """Bind and listen, NOT_SERVING; returns the addresses. Raises AddressError."""

    async def ready(self) -> None:
        """SERVING from now on."""

    async def drain(self) -> None:
        """NOT_SERVING again."""

    async def stop(self, grace: float, cut: float = CUT) -> None:
        """Take no more calls, end lasting streams, and let calls in flight finish within `grace` seconds.

        Those that are left are cut off then, and get at most `cut` seconds more to end.
        """


def make_transport(
    wanted: str, ports: Ports, gate: Gate, arguments: ChannelArguments, report: Report, log: Any
) -> Transport:
    """`wanted` is auto, fast or aio. Tells the log what is in force.

    Raises TransportError: the fast one was asked for by name and does not work here.
    """
    if wanted == "aio":
        log.info("transport", transport="aio", grpcio=grpc.__version__)
        return AioServer(ports, gate, arguments, report)
    verdict = probe()
    if verdict.problem is None:
        log.info("transport", transport="fast", grpcio=grpc.__version__, polling=verdict.polling)
        return FastServer(ports, gate, arguments, report)
    if wanted == "fast":
        raise TransportError(f"the fast transport does not work here ({verdict.problem}); use --transport auto or aio")
    log.warning("transport_fallback", transport="aio", grpcio=grpc.__version__, problem=verdict.problem)
    return AioServer(ports, gate, arguments, report)
