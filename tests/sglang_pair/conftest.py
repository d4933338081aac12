"""The servers, once for all tests of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang_pair.servers import Server, servers

KIT = Path(os.environ.get("PD_TEST_KIT", ""))
"""Model and libraries, as tools/test-sglang-pair.sh makes them."""


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Store, undivided engine, prefill and decode, serving. All end with the run, also when a test failed."""
    folder = Path(os.environ.get("PD_TEST_LOGS") or tmp_path_factory.mktemp("logs"))
    folder.mkdir(parents=True, exist_ok=True)
    libraries = ":".join(str(path) for path in sorted(KIT.glob("deb/root/**/x86_64-linux-gnu")))
    found = servers(folder, KIT / "model", libraries)
    try:
        for server in found.values():
            server.start()
        for server in found.values():
            server.wait()
        yield found
    finally:
        for server in reversed(found.values()):
            server.stop()


@pytest.fixture(autouse=True)
def all_serve(deployment: dict[str, Server]) -> Iterator[None]:
    """Each test finds all servers, and leaves them, alive."""
    yield
    for server in deployment.values():
        assert server.runs(), f"{server.name} ended: {server.tail()}"
        assert server.healthy(), f"{server.name} does not answer: {server.tail()}"
