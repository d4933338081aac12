"""The arrows between the packages: what `lint-imports` refuses, shown by planting what it must refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CLIENT, SERVICE = ROOT / "clients/python/pd_handoff", ROOT / "service/pd_handoff_server"
SHARED = {"v1", "_version"}
"""What the service may import of the client."""

PLANTED = [
    ("lifecycle/machine.py", "import pd_handoff_server.telemetry.metrics"),
    ("store/embedded.py", "import pd_handoff_server.telemetry.metrics"),
    ("arena/layout.py", "import pd_handoff_server.lifecycle.model"),
    ("handlers/store.py", "import pd_handoff_server.transport.gate"),
]
"""Files of the service, and an import that has no business there."""


def _rooms(package: Path) -> set[str]:
    return {
        path.stem
        for path in package.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }


def _config() -> dict[str, object]:
    tables: dict[str, dict[str, dict[str, object]]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return tables["tool"]["importlinter"]


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What lint-imports says of a copy of both packages in which all of it is planted."""
    copy = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.binpb")
    shutil.copytree(CLIENT, copy / "pd_handoff", ignore=ignored)
    shutil.copytree(SERVICE, copy / "pd_handoff_server", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for file, line in PLANTED:
        path = copy / "pd_handoff_server" / file
        path.write_text(f"{path.read_text()}\n{line}\n")
    loaded = copy / "pd_handoff_server/refusal.py"
    lines = "".join(f"import pd_handoff.{room}\n" for room in sorted(_rooms(CLIENT) - SHARED))
    loaded.write_text(f"{loaded.read_text()}\n{lines}")
    (copy / "pd_handoff_server/attic.py").write_text("")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("file", "line"), PLANTED, ids=[file for file, _ in PLANTED])
def test_a_planted_import_of_a_higher_or_sibling_room_is_refused(verdict: str, file: str, line: str) -> None:
    importer = "pd_handoff_server." + file.removesuffix(".py").replace("/", ".")
    assert f"{importer} -> {line.removeprefix('import ')}" in verdict


@pytest.mark.parametrize("room", sorted(_rooms(CLIENT) - SHARED))
def test_the_service_imports_nothing_of_the_client_but_what_both_share(verdict: str, room: str) -> None:
    assert f"pd_handoff_server.refusal -> pd_handoff.{room} " in verdict


def test_a_room_without_a_place_is_refused(verdict: str) -> None:
    assert "pd_handoff_server.attic" in verdict


def test_every_module_of_the_client_is_closed_to_the_service() -> None:
    contracts = _config()["contracts"]
    assert isinstance(contracts, list)
    (closed,) = (set(one["forbidden_modules"]) for one in contracts if one["name"].startswith("the service shares"))
    assert closed == {f"pd_handoff.{room}" for room in _rooms(CLIENT) - SHARED}
