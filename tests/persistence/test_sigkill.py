"""A process that is really killed, again and again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waits import patient

from .kept import LONG

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 2_000 if LONG else 60


@pytest.mark.timeout(60 + ROUNDS)
def test_what_a_killed_process_had_noted_is_what_its_successor_knows(directory: Path) -> None:
    command = [sys.executable, "-m", "tests.persistence.victim", str(directory), str(ROUNDS), "1"]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=patient(60 + ROUNDS), check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not found["fault"], found
    assert found["kills"] == ROUNDS
    assert found["calls"] > ROUNDS
