"""The built distribution, fresh environments with it, and a store outside of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.process import ProcessStore

ROOT = Path(__file__).resolve().parents[2]

# Runtimes that the client has to run on, as requirements: the oldest that pyproject.toml allows, the last of protobuf 6
# with the grpcio of its time, and protobuf 7.
RUNTIMES = {
    "oldest": ["protobuf==6.31.1", "grpcio==1.75.1", "grpcio-status==1.75.1", "googleapis-common-protos==1.70.0"],
    "protobuf-6.33": ["protobuf==6.33.*", "grpcio==1.75.*", "grpcio-status==1.75.*"],
    "protobuf-7": ["protobuf>=7,<8"],
}


def run(*command: str | Path, cwd: Path | None = None, seconds: float = 300) -> str:
    """Its standard output; fails the test with all it printed when its exit status is not 0."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, timeout=seconds, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, built from the tree, and the wheel, built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel."""
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def environments(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Path]]]:
    """The `bin` directory of an environment for each of RUNTIMES, with the wheel and nothing else in it."""
    directory = tmp_path_factory.mktemp("environments")

    def make(name: str) -> Path:
        home = directory / name
        run(sys.executable, "-m", "venv", home)
        run(home / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, *RUNTIMES[name])
        return home / "bin"

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(make, name) for name in RUNTIMES}


@pytest.fixture(params=list(RUNTIMES))
def fresh_bin(request: pytest.FixtureRequest, environments: dict[str, Future[Path]]) -> Path:
    """The `bin` directory of one of them after the other."""
    runtime: str = request.param
    return environments[runtime].result(600)


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """Where a store of the development environment listens: a Unix socket, as a target."""
    # Not below pytest's own directory: a socket's path is limited to 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="pdh") as directory,
        ProcessStore(f"unix:{directory}/store.sock", slots=8) as process,
    ):
        yield process.wait().target
        assert process.stop() == 0, process.events
