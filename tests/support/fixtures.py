"""Fixtures around `local` and `process`; a conftest imports those it wants."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
from pd_handoff_server.lifecycle import Failure, SystemClock

from .caller import CALLERS
from .local import DEFAULTS, LocalStore, Loop, fresh_directory, settings_for, transports
from .process import ProcessStore
from .steps import Steps


class Start(Protocol):
    """Makes and starts stores."""

    def __call__(self, *, real_time: bool = False, started: bool = True, **settings: Any) -> LocalStore:
        """A store in this process on the transport of the test; `real_time` gives it the machine's clock."""


@pytest.fixture(scope="session")
def sockets() -> Iterator[Path]:
    """A directory with a short path for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="pdh") as directory:
        yield Path(directory)


_failures: list[str] = []


def _note_failures(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    del logger, name
    if event.get("event") == "failed":
        _failures.append(str(event.get("exception")))
    return event


@pytest.fixture(autouse=True)
def failures() -> Iterator[list[str]]:
    """Tracebacks of errors that a store in this process did not foresee; a test that provokes some clears them."""
    _failures.clear()
    yield _failures
    assert not _failures, _failures[0]


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[Loop]:
    """The event loop of all stores in this process."""
    # One line an event, tracebacks without locals: the default for consoles would print whole records.
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _note_failures, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    loop = Loop()
    yield loop
    loop.close()
    structlog.reset_defaults()


@pytest.fixture(scope="session", params=transports())
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    return str(request.param)


@pytest.fixture(scope="session", params=list(CALLERS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of caller in turn."""
    return str(request.param)


@pytest.fixture
def start(loop_thread: Loop, sockets: Path, transport: str) -> Iterator[Start]:
    """Makes stores, and ends them after the test."""
    stores: list[LocalStore] = []

    def make(*, real_time: bool = False, started: bool = True, **settings: Any) -> LocalStore:
        clock = SystemClock() if real_time else None
        store = LocalStore(loop_thread, fresh_directory(sockets), clock=clock, **settings_for(transport, **settings))
        stores.append(store)
        if started:
            store.start()
        return store

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(start: Start, request: pytest.FixtureRequest) -> LocalStore:
    """A store in this process; `@pytest.mark.settings(slots=1, ...)` sets it, `real_time=True` its clock."""
    marker = request.node.get_closest_marker("settings")
    return start(**(marker.kwargs if marker else {}))


@pytest.fixture
def steps(store: LocalStore, kind: str) -> Steps:
    """Short forms of the single calls, over each kind of caller in turn."""
    return store.steps(kind)


@pytest.fixture
def unary(store: LocalStore) -> Steps:
    """Short forms over unary calls alone."""
    return store.steps()


@pytest.fixture(scope="session")
def shared_store(loop_thread: Loop, sockets: Path, transport: str) -> Iterator[LocalStore]:
    """One store for all tests that leave nothing behind and look at nothing but what they made."""
    store = LocalStore(loop_thread, fresh_directory(sockets), **settings_for(transport, slots=64))
    store.start()
    yield store
    store.close()


@pytest.fixture(scope="session")
def shared(shared_store: LocalStore, kind: str) -> Steps:
    """Short forms on the shared store, over each kind of caller in turn."""
    return shared_store.steps(kind)


@pytest.fixture
def room(shared_store: LocalStore) -> Iterator[int]:
    """A room of the shared store that no other test uses, emptied afterwards."""
    number = next(_rooms)
    yield number
    shared_store.core.abort(("", number, 0), Failure(500, "TEST_ENDED", ""), b"", None)


_rooms = itertools.count(1_000_000)


class Launch(Protocol):
    """Starts stores in processes of their own."""

    def __call__(self, listen: str | None = None, *, wait: bool = True, **settings: Any) -> ProcessStore:
        """A store on a Unix socket, unless `listen` says where; `wait` until it serves."""


@pytest.fixture
def launch(sockets: Path) -> Iterator[Launch]:
    """Starts stores on the default transport, unless told which, and ends them after the test."""
    stores: list[ProcessStore] = []

    def make(listen: str | None = None, *, wait: bool = True, **settings: Any) -> ProcessStore:
        where = listen or f"unix:{fresh_directory(sockets) / 's'}"
        store = ProcessStore(where, **{**DEFAULTS, **settings})
        stores.append(store)
        return store.wait() if wait else store

    yield make
    for store in stores:
        store.close()
