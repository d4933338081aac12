"""Property tests look as long as the profile says."""

from __future__ import annotations

import pytest

from tests.property import profiles
from tests.support.fixtures import each_transport, failures, given, loop_thread, sockets, start, store, transport, unary

__all__ = ["each_transport", "failures", "given", "loop_thread", "sockets", "start", "store", "transport", "unary"]

profiles.load()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture `store`."""
    config.addinivalue_line("markers", "settings(**settings): settings of the test's store; real_time=True: its clock")
