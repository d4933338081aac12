"""Arena files of tests: in memory, and gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .kept import memory_directory


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An empty directory in memory."""
    with memory_directory(tmp_path) as path:
        yield path


@pytest.fixture
def path(directory: Path) -> Path:
    """Where an arena file may be made."""
    return directory / "arena"
