"""A store in this process: the whole application, served over real gRPC, with a clock that the test turns."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import grpc
from pd_handoff.v1 import admin_pb2
from pd_handoff_server.app import App
from pd_handoff_server.config import Settings
from pd_handoff_server.lifecycle import Clock

from . import requests
from .caller import CALLERS, Caller, UnaryCaller
from .clock import FakeClock
from .steps import Steps
from .waits import PATIENCE, eventually

T = TypeVar("T")

DEFAULTS: dict[str, Any] = {"slots": 8, "drain_notice": 0.0, "grace": 5.0}
"""Settings of a test's store, where the test does not say otherwise."""


def transports() -> tuple[str, ...]:
    """The transports that this version of the store has, by the name of its setting."""
    for spec in fields(Settings):
        if spec.name == "transport":
            return tuple(choice for choice in spec.metadata["choices"] if choice != "auto")
    return ("aio",)


def settings_for(transport: str, **given: Any) -> dict[str, Any]:
    """Settings of a store on this transport."""
    chosen = {"transport": transport} if any(spec.name == "transport" for spec in fields(Settings)) else {}
    return {**DEFAULTS, **chosen, **given}


class Loop:
    """One event loop in a thread, shared by all stores of a test run: gRPC's asyncio side wants no second one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stores", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 60) -> T:
        """Run a coroutine there and wait for it, at most so many seconds."""
        return self.begin(work).result(seconds)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


class LocalStore:
    """A store in this process, started by `start` or on entering the context.

    Attributes:
        clock: the fake clock, unless another was given.
        target: where it listens, for `grpc.insecure_channel`.
        app: the application; `app.store` is its core once it has started.
        offers: what the test may use of it, one of the marks of `needs`.
    """

    offers = "internals"

    def __init__(self, loop: Loop, directory: Path, *, clock: Clock | None = None, **settings: Any) -> None:
        self._loop = loop
        self._clock = clock or FakeClock()
        native = os.environ.get("PD_HANDOFF_NATIVE", "auto")  # as a store reads it that is started as a process
        self._settings = Settings(**{"listen": (f"unix:{directory / 's'}",), "native": native, **settings})
        self.target = self._settings.listen[0]
        self._app = loop.run(self._make())
        self.addresses: list[str] = []
        self._channels: list[grpc.Channel] = []
        self._callers: list[Caller] = []
        self._running = False

    async def _make(self) -> App:
        return App(self._settings, self._clock)  # inside the loop, where a grpc.aio server has to be made

    def start(self) -> None:
        """Listen and be SERVING."""
        self.addresses = self.begin().result(60)
        if not self.addresses[0].startswith("unix:"):
            self.target = self.addresses[0]

    def begin(self) -> Future[list[str]]:
        """Begin to start, and do not wait for it."""
        self._running = True
        return self._loop.begin(self._app.start())

    def _check(self, need: str) -> None:
        order = ("wire", "clock", "internals")
        assert order.index(need) <= order.index(self.offers), f"marked {self.offers}, but needs {need}"

    @property
    def app(self) -> App:
        """See the class."""
        self._check("internals")
        return self._app

    @property
    def settings(self) -> Settings:
        """The settings as the store has them."""
        self._check("internals")
        return self._settings

    @property
    def clock(self) -> Any:
        """See the class."""
        self._check("clock")
        return self._clock

    def drain(self) -> None:
        """Stop as on SIGTERM; returns once the store has ended."""
        self.begin_drain().result(60)

    def begin_drain(self) -> Future[None]:
        """Begin to stop, and do not wait for it."""
        self._check("internals")
        return self._end()

    def _end(self) -> Future[None]:
        self._running = False
        return self._loop.begin(self._app.stop())

    def give_notice(self) -> None:
        """The first half of a drain, without the second: probes and callers are told, the server still answers."""
        self._check("internals")
        self._loop.run(self._app.server.drain())
        self._core.drain()

    def close(self) -> None:
        """Drop all callers and channels, and end."""
        self.close_channels()
        if self._running:
            self._end().result(60)

    def close_channels(self) -> None:
        """Drop all callers and channels: their calls are given up."""
        for caller in self._callers:
            caller.close()
        for channel in self._channels:
            channel.close()
        self._callers.clear()
        self._channels.clear()

    def channel(self, *options: tuple[str, Any]) -> grpc.Channel:
        """A connection of its own, closed with the store."""
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options]
        channel = grpc.insecure_channel(self.target, own)
        self._channels.append(channel)
        return channel

    def caller(self, kind: str = UnaryCaller.name) -> Caller:
        """A caller of this kind on a connection of its own, closed with the store."""
        caller = CALLERS[kind](self.channel())
        self._callers.append(caller)
        return caller

    def steps(self, kind: str = UnaryCaller.name) -> Steps:
        """A caller's short forms."""
        return Steps(self.caller(kind))

    # -- time and what waits -------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, and let the store's timer look."""
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(seconds)
        self._core.tick()

    @property
    def core(self) -> Any:
        """The store behind the transport."""
        self._check("internals")
        return self._core

    @property
    def _core(self) -> Any:
        assert self._app.store is not None
        return self._app.store

    @property
    def waiting(self) -> int:
        """How many calls wait in the store."""
        self._check("internals")
        return int(self._core.waiting)

    def until_waiting(self, count: int) -> None:
        """Return once exactly so many calls wait in the store."""
        eventually(lambda: self._core.waiting == count, f"{count} calls wait")

    def sight(self, which: requests.Key) -> admin_pb2.Handoff:
        """What the admin service shows of a key's newest attempt."""
        request = admin_pb2.GetHandoffRequest(key=requests.key(which))
        answer: admin_pb2.GetHandoffResponse = self._admin().call("GetHandoff", request)
        return answer.handoff

    def listing(self, **fields_: Any) -> list[admin_pb2.Handoff]:
        """What the admin service lists, first page."""
        answer: admin_pb2.ListHandoffsResponse = self._admin().call(
            "ListHandoffs", admin_pb2.ListHandoffsRequest(**fields_)
        )
        return list(answer.handoffs)

    def _admin(self) -> Caller:
        return self._callers[0] if self._callers and self._callers[0].name == "unary" else self.caller()


_serials = itertools.count()


def fresh_directory(base: Path) -> Path:
    """A new directory with a short path: a Unix socket's path has at most 107 bytes."""
    path = base / str(next(_serials))
    path.mkdir()
    return path
