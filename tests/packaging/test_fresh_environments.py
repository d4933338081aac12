"""The wheel, installed where nothing else is, on the oldest and the newest runtimes."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.packaging.conftest import EXTENSION, NATIVE, RUNTIMES, run
from tests.support.waits import patient

pytestmark = pytest.mark.timeout(900)  # making the environments is part of the first test that needs them


def test_hands_off_through_a_store_elsewhere(fresh_bin: Path, store: str, tmp_path: Path) -> None:
    scenario = Path(__file__).with_name("scenario.py")
    told = json.loads(run(fresh_bin / "python", "-I", scenario, store, cwd=tmp_path))
    runtime = fresh_bin.parent.name
    assert Path(told["package"]).is_relative_to(fresh_bin.parent)
    assert told["reasons"] == 23
    pinned = RUNTIMES[runtime][0].removeprefix("protobuf").lstrip("=>").partition(",")[0].rstrip(".*")
    assert f"{told['protobuf']}.".startswith(f"{pinned}.")


def test_hands_off_through_a_store_without_the_extension(
    environments: dict[str, Future[Path]], pure_store: str, tmp_path: Path
) -> None:
    scenario = Path(__file__).with_name("scenario.py")
    run(environments["protobuf-7"].result(600) / "python", "-I", scenario, pure_store, cwd=tmp_path)


def test_the_extension_can_be_imported(fresh_bin: Path) -> None:
    told = run(fresh_bin / "python", "-I", "-c", f"from {NATIVE.replace('/', '.')} import _scan; print(_scan.__file__)")
    path = Path(told.strip())
    assert path.is_relative_to(fresh_bin.parent)
    assert path.name == EXTENSION


def test_the_command_works_as_a_client(fresh_bin: Path, store: str, tmp_path: Path) -> None:
    told = json.loads(run(fresh_bin / "pd-handoff", "capabilities", "--target", store, "--json", cwd=tmp_path))
    assert told["slots_total"] == 8


def test_the_command_says_what_serve_needs(fresh_bin: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [fresh_bin / "pd-handoff", "serve"],
        cwd=tmp_path,
        timeout=patient(60),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, -6, -11)
    assert "pd-handoff[server]" in done.stderr
    assert "Traceback" not in done.stderr


def test_dependencies_agree(fresh_bin: Path) -> None:
    run(fresh_bin / "python", "-m", "pip", "check")
