"""The reader in C, built as for use, and with sanitizers, which end a process that reads outside an input."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.waits import patient
from tools import hatch_build

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / hatch_build.SOURCES
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Werror", f"-I{SOURCES}")
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")

LONG = os.environ.get("PD_HANDOFF_TEST_PROFILE", "quick") == "long"


def count(quick: int) -> int:
    """How many inputs to try: this many, or a hundred times as many where the profile is long."""
    return quick * 100 if LONG else quick


def compile_c(*arguments: str | Path) -> None:
    """Run the C compiler; fails the test with what it said."""
    command = [*hatch_build.compiler(), *STRICT, *map(str, arguments)]
    done = subprocess.run(
        command, timeout=patient(300), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    hint = "gcc with its libasan and libubsan is needed" if "san" in done.stdout else ""
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}; {hint}\n{done.stdout}"


def framed(inputs: Sequence[bytes]) -> bytes:
    """Inputs as the driver and `under_sanitizers.py` read them."""
    return b"".join(part for data in inputs for part in (len(data).to_bytes(4, sys.byteorder), data))


@pytest.fixture(scope="session")
def scan(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The extension as its sources are now, whether the environment has one or not."""
    path = tmp_path_factory.mktemp("native") / hatch_build.file_name()
    hatch_build.build(HERE.parents[1], path)
    spec = importlib.util.spec_from_file_location("_scan", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs each function over each input."""
    path = tmp_path_factory.mktemp("native") / "driver"
    compile_c(*SANITIZED, "-Wconversion", HERE / "driver.c", SOURCES / "scan.c", "-o", path)
    return path


@pytest.fixture(scope="session")
def sanitized_extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension, for a Python with the sanitizers' library preloaded."""
    path = tmp_path_factory.mktemp("native") / hatch_build.file_name()
    headers = [f"-I{directory}" for directory in hatch_build.headers()]
    compile_c(*SANITIZED, "-shared", "-fPIC", *headers, SOURCES / "module.c", SOURCES / "scan.c", "-o", path)
    return path
