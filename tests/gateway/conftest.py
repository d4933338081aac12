"""A store as operators start it, and FastAPI servers under uvicorn that stand in for engines, with a Gateway around."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx2
import openai
import pytest
import uvicorn
from pd_handoff.gateway import Gateway
from pd_handoff.gateway._types import App

from tests.gateway.engine import Engine
from tests.support.fixtures import launch, sockets
from tests.support.local import Loop
from tests.support.process import ProcessStore
from tests.support.waits import PATIENCE, eventually

__all__ = ["launch", "sockets"]

LIMIT = 8
"""What the store takes."""


class Server:
    """An app under uvicorn.

    Attributes:
        url: where it listens.
        http: a client.
    """

    def __init__(self, loop: Loop, app: App, **options: Any) -> None:
        self._loop = loop
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, **options)
        self._server = uvicorn.Server(config)
        self._serving: Future[None] = loop.begin(self._server.serve(sockets=[self._socket]))
        self.http = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)
        eventually(lambda: self._server.started or self._serving.done(), "uvicorn has started")
        assert self._server.started

    def openai(self) -> openai.OpenAI:
        """OpenAI's own client library."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=httpx2.Client(trust_env=False)
        )

    def close(self) -> None:
        """End it, and what it serves."""
        self.http.close()
        self._server.should_exit = True
        self._serving.result(PATIENCE)
        self._socket.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[Loop]:
    """The event loop of all servers: gRPC's asyncio side wants no second one."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def store(sockets: Any) -> Iterator[ProcessStore]:
    """One store for all tests; each uses rooms of its own."""
    with ProcessStore(f"unix:{sockets}/gateway", slots=64, max_top_logprobs=LIMIT) as started:
        yield started.wait()


_rooms = itertools.count(1_000)


@pytest.fixture
def room() -> int:
    """A room that no other test uses."""
    return next(_rooms)


Serve = Callable[..., Server]


@pytest.fixture
def serve(servers: Loop, store: ProcessStore) -> Iterator[Serve]:
    """Serves an app with a Gateway around it, on the shared store unless told otherwise."""
    started: list[Server] = []

    def make(app: Any = None, *, uvicorn_options: dict[str, Any] | None = None, **settings: Any) -> Server:
        app = Engine().app if app is None else app
        app.add_middleware(Gateway, **{"target": store.target, **settings})
        server = Server(servers, app, **(uvicorn_options or {}))
        started.append(server)
        return server

    yield make
    for server in started:
        server.close()


@pytest.fixture
def engine() -> Engine:
    """What the Gateway is put around."""
    return Engine()


async def nothing() -> None:
    """For a coroutine where one is wanted."""
    await asyncio.sleep(0)
