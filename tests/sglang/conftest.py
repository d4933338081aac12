"""A store, and SGLang's modules, for all tests of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pd_handoff.engines.sglang import StoreLink
from pd_handoff.engines.sglang.upstream import VERSION, differences

from examples.demo.store import Store
from examples.sglang.engine import load, patched_copy
from tests.sglang.sides import Sides

settings.register_profile(
    "sglang", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("sglang")


def pytest_sessionstart() -> None:
    """Another SGLang than the one that the tests are for fails them all over, in words that say little: so what it has
    changed is said first, in full, and nothing else is run."""
    try:
        found = differences(load("srt.disaggregation.utils"))
    except ImportError as error:
        found = [f"sglang.srt.disaggregation.utils cannot be imported: {error}"]
    if found:
        pytest.exit("\n".join((f"SGLang {version('sglang')} differs from {VERSION}:", *found)), returncode=1)


@pytest.fixture(scope="session")
def upstream() -> Any:
    """The module of the real class."""
    return load("srt.disaggregation.utils")


@pytest.fixture(scope="session")
def target() -> Iterator[str]:
    """A store's address."""
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as folder:
        store = Store(Path(folder), "--slots", "64", "--max-hidden-state-bytes", "4096")
        try:
            store.wait_until_serving(60)
            yield store.target
        finally:
            status = store.stop()
        assert status == 0


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where SGLang can be imported from with the example's lines applied; for processes of their own."""
    folder = tmp_path_factory.mktemp("patched")
    patched_copy(folder)
    return folder


@pytest.fixture
def sides(target: str) -> Iterator[Sides]:
    """Prefill's and decode's buffers of one deployment."""
    both = Sides(target)
    yield both
    both.close()


@pytest.fixture
def link(target: str) -> Iterator[StoreLink]:
    """A connection of its own."""
    connection = StoreLink(target)
    yield connection
    connection.close()
