"""Bounds: on slots of a namespace, on who may wait, on memory, and on what is written down."""

from __future__ import annotations

import pytest
from pd_handoff_server import config
from pd_handoff_server.build import build_store
from pd_handoff_server.lifecycle import Observer
from pd_handoff_server.store.embedded import EmbeddedStore

from tests.support.clock import FakeClock
from tests.support.fixtures import (
    each_transport,
    failures,
    given,
    kind,
    loop_thread,
    sockets,
    start,
    steps,
    store,
    transport,
    unary,
)

__all__ = [
    "each_transport",
    "failures",
    "given",
    "kind",
    "loop_thread",
    "sockets",
    "start",
    "steps",
    "store",
    "transport",
    "unary",
]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture `store`."""
    config.addinivalue_line("markers", "settings(**settings): settings of the test's store; real_time=True: its clock")


def core(clock: FakeClock, *observers: Observer, **given: object) -> EmbeddedStore:
    """A store without a transport or a timer."""
    settings = config.load(
        {name: value if isinstance(value, list) else str(value) for name, value in given.items()}, {}
    )
    return build_store(settings, clock, observers)[0]
