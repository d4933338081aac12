"""The promises of docs/protocol.md, through real gRPC, over every transport and kind of caller."""

from __future__ import annotations

import pytest

from tests.support.fixtures import (
    each_transport,
    failures,
    given,
    kind,
    launch,
    loop_thread,
    room,
    shared,
    shared_store,
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
    "launch",
    "loop_thread",
    "room",
    "shared",
    "shared_store",
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
