"""Fixtures around `local` and `process`; a conftest imports those it wants."""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
from pd_handoff_server.lifecycle import Failure, SystemClock

from tests.support.waits import at_once

from . import namespaces, needs
from .caller import CALLERS
from .given import Given, GivenStore
from .local import DEFAULTS, LocalStore, Loop, fresh_directory, settings_for
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


@pytest.fixture(scope="session")
def each_transport(request: pytest.FixtureRequest) -> str:
    """What `needs.spread` chooses: each transport in turn; of a store that runs elsewhere, its own."""
    return str(request.param)


@pytest.fixture(scope="session")
def transport(each_transport: str) -> str:
    """Each transport in turn, unless a test or a module says which."""
    return each_transport


@pytest.fixture(scope="session")
def given(sockets: Path, request: pytest.FixtureRequest) -> Iterator[Given | None]:
    """The store that the options of this run give, None without such an option."""
    if not needs.is_given(request.config):
        yield None
        return
    option = request.config.getoption
    elsewhere = Given(option("--store"), option("--store-command"), fresh_directory(sockets))
    yield elsewhere
    elsewhere.close()


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
def store(transport: str, given: Given | None, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The store of the test: in this process, or the given one.

    `@pytest.mark.settings(slots=1, ...)` sets it, `real_time=True` its clock. It offers what the test's mark says that
    the test needs, and no more.
    """
    marker = request.node.get_closest_marker("settings")
    settings = dict(marker.kwargs) if marker else {}
    if given is None:
        local: LocalStore = request.getfixturevalue("start")(**settings)
        local.offers = next(
            (mark.name for mark in request.node.iter_markers() if mark.name in needs.NEEDS), "internals"
        )
        yield local
        return
    settings.pop("real_time", None)
    with namespaces.scope() as scope:
        remote = given.open(**settings)
        yield remote
        remote.close(scope)


@pytest.fixture
def steps(store: LocalStore, kind: str) -> Steps:
    """Short forms of the single calls, over each kind of caller in turn."""
    return store.steps(kind)


@pytest.fixture
def unary(store: LocalStore) -> Steps:
    """Short forms over unary calls alone."""
    return store.steps()


@pytest.fixture(scope="session")
def shared_store(
    loop_thread: Loop, sockets: Path, transport: str, given: Given | None
) -> Iterator[LocalStore | GivenStore]:
    """One store for all tests that leave nothing behind and look at nothing but what they made."""
    if given is not None:
        yield given.open(keep=True, slots=64)
        return
    store = LocalStore(loop_thread, fresh_directory(sockets), **settings_for(transport, slots=64))
    store.start()
    yield store
    store.close()


@pytest.fixture(scope="session")
def shared(shared_store: LocalStore, kind: str) -> Steps:
    """Short forms on the shared store, over each kind of caller in turn."""
    return shared_store.steps(kind)


@pytest.fixture
def room(shared_store: LocalStore | GivenStore) -> Iterator[int]:
    """A room of the shared store that no other test uses, emptied afterwards."""
    number = next(_rooms)
    if isinstance(shared_store, LocalStore):
        yield number
        shared_store.core.abort(("", number, 0), Failure(500, "TEST_ENDED", ""), b"", None, at_once)
        return
    with namespaces.scope() as scope:
        yield number
        GivenStore(shared_store.target).close(scope)


# Requests that are bytes keep their namespace: in a store that outlives the run, their rooms must be new as well.
_rooms = itertools.count(secrets.randbits(24) << 20)


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
