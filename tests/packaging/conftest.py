"""The built distribution, fresh environments with it, and a store outside of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.process import ProcessStore
from tests.support.waits import patient

ROOT = Path(__file__).resolve().parents[2]

# Runtimes that the client has to run on, as requirements: the oldest that pyproject.toml allows, the last of protobuf 6
# with the grpcio of its time, and protobuf 7.
RUNTIMES = {
    "oldest": ["protobuf==6.31.1", "grpcio==1.75.1", "grpcio-status==1.75.1", "googleapis-common-protos==1.70.0"],
    "protobuf-6.33": ["protobuf==6.33.*", "grpcio==1.75.*", "grpcio-status==1.75.*"],
    "protobuf-7": ["protobuf>=7,<8"],
}


EXTENSION = f"_scan{sysconfig.get_config_var('EXT_SUFFIX')}"
NATIVE = "pd_handoff_server/parser"
STALE = b"left over from another build"


def without_settings(more: Mapping[str, str]) -> dict[str, str]:
    """The environment without what steers a build of the extension, and with `more`."""
    steering = ("PD_HANDOFF_NATIVE", "CC", "CPPFLAGS", "CFLAGS", "LDFLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in steering}
    return {**kept, **more}


def run(*command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Its standard output; fails the test with all it printed when its exit status is not 0."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=without_settings(environment or {}),
        timeout=patient(300),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Build:
    """What a build ended with: its wheel, if there is one, and what it printed."""

    wheel: Path | None
    said: str


def build(source: Path, out: Path, *, kind: str = "wheel", **environment: str) -> Build:
    """Ask the build back end for a wheel of `source`, or for an "editable" one, as an installer would."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", f"import hatchling.build, sys; hatchling.build.build_{kind}(sys.argv[1])", str(out)],
        cwd=source,
        env=without_settings(environment),
        timeout=patient(300),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    wheels = list(out.glob("*.whl"))
    assert len(wheels) == (done.returncode == 0), done.stdout
    return Build(wheels[0] if wheels else None, done.stdout)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, built from the tree, and the wheel with the extension, built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=out, environment={"PD_HANDOFF_NATIVE": "required"})
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """The wheel, with the extension."""
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def source(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, in which somebody left an extension of another time lying about."""
    (path,) = dist.glob("*.tar.gz")
    out = tmp_path_factory.mktemp("source")
    with tarfile.open(path) as archive:
        archive.extractall(out)
    (top,) = out.iterdir()
    (top / "service" / NATIVE / EXTENSION).write_bytes(STALE)
    return top


@pytest.fixture(scope="session")
def pure(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build without the extension, on request."""
    return build(source, tmp_path_factory.mktemp("pure"), PD_HANDOFF_NATIVE="off")


@pytest.fixture
def no_compiler(tmp_path: Path) -> str:
    """A PATH with everything on it but compilers."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for path in map(Path, os.get_exec_path()):
        for tool in path.iterdir() if path.is_dir() else ():
            if not tool.name.endswith(("cc", "gcc", "clang")) and not os.path.lexists(directory / tool.name):
                (directory / tool.name).symlink_to(tool)
    return str(directory)


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


@contextlib.contextmanager
def store_of(wheel: Path, native: str) -> Iterator[str]:
    """Where a store of the wheel listens: a Unix socket, as a target. Its dependencies are the development's."""
    # Not below pytest's own directory: a socket's path is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pdh") as directory:
        installed = Path(directory, "installed")
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed, wheel)
        environment = {"PYTHONPATH": str(installed), "PD_HANDOFF_NATIVE": native}
        told = run(
            sys.executable, "-c", "import pd_handoff_server; print(pd_handoff_server.__file__)", environment=environment
        )
        assert Path(told.strip()).is_relative_to(installed)
        with ProcessStore(f"unix:{directory}/store.sock", environment=environment, slots=8) as process:
            yield process.wait().target
            assert process.stop() == 0, process.events


@pytest.fixture(scope="session")
def store(wheel: Path) -> Iterator[str]:
    """A store that insists on its extension."""
    with store_of(wheel, "required") as target:
        yield target


@pytest.fixture(scope="session")
def pure_store(pure: Build) -> Iterator[str]:
    """A store without it."""
    assert pure.wheel is not None
    with store_of(pure.wheel, "auto") as target:
        yield target
