"""A store in this process with a real clock, and clients of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pd_handoff import DecodeClient, PrefillClient
from pd_handoff.retries import NO_RETRIES
from pd_handoff_server.lifecycle import SystemClock

from tests.support.fixtures import loop_thread, sockets
from tests.support.local import LocalStore, Loop, fresh_directory, settings_for, transports

__all__ = ["loop_thread", "sockets"]

_rooms = itertools.count(1)


@pytest.fixture(scope="module")
def store(loop_thread: Loop, sockets: Any) -> Iterator[LocalStore]:
    """A store; tests use rooms of their own."""
    made = LocalStore(
        loop_thread,
        fresh_directory(sockets),
        clock=SystemClock(),
        **settings_for(transports()[0], slots=64, max_engine_state_bytes=4096),
    )
    made.start()
    yield made
    made.close()


@pytest.fixture
def room() -> int:
    """A room that no other test uses."""
    return next(_rooms)


@pytest.fixture
def environment(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Settings of the adapter: the store, and what the test gives."""

    def set_(**settings: object) -> None:
        for name, value in settings.items():
            monkeypatch.setenv(f"PD_HANDOFF_{name.upper()}", str(value))

    set_(target=store.target)
    return set_


@pytest.fixture
def prefill(store: LocalStore) -> Iterator[PrefillClient]:
    """The producer's client."""
    client = PrefillClient(store.target, retries=NO_RETRIES)
    yield client
    client.close()


@pytest.fixture
def decode(store: LocalStore) -> Iterator[DecodeClient]:
    """The reader's client."""
    client = DecodeClient(store.target, retries=NO_RETRIES)
    yield client
    client.close()
