"""The server's extension in C: in every wheel that is built where a compiler is, and missed by nobody elsewhere."""

from __future__ import annotations

import re
import shutil
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import EXTENSION, NATIVE, ROOT, STALE, Build, build
from tools import hatch_build

pytestmark = pytest.mark.timeout(600)  # building the distribution is part of the first test that needs it

PURE = "-py3-none-any.whl"
TOLD = r"^pd-handoff: no C extension: .*{why}.* The server will read requests in pure Python\.{more}$"


def content(wheel: Path) -> dict[str, bytes]:
    """Its files by name, without those about the wheel itself."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_has_it_and_is_for_this_python_alone(wheel: Path) -> None:
    python = f"cp{sysconfig.get_config_var('py_version_nodot')}"
    assert re.search(rf"-{python}-{python}\w*-linux_\w+\.whl$", wheel.name)
    binaries = [name for name in content(wheel) if name.endswith((".so", ".c", ".h"))]
    assert binaries == [f"{NATIVE}/{EXTENSION}"]


def test_a_wheel_without_it_differs_in_nothing_else(wheel: Path, pure: Build) -> None:
    assert pure.wheel is not None
    assert pure.wheel.name.endswith(PURE)
    whole = content(wheel)
    del whole[f"{NATIVE}/{EXTENSION}"]
    assert content(pure.wheel) == whole
    assert re.search(TOLD.format(why="PD_HANDOFF_NATIVE is off", more=""), pure.said, re.MULTILINE)


def test_what_lies_in_the_tree_is_not_packed(source: Path, wheel: Path, tmp_path: Path) -> None:
    packed = build(source, tmp_path / "out", PD_HANDOFF_NATIVE="required").wheel
    assert packed is not None
    assert content(packed) == content(wheel)  # bit for bit, wherever it was built
    assert (source / "service" / NATIVE / EXTENSION).read_bytes() == STALE


HELP = " For the extension, install a C compiler and python3-dev, and build again."


def test_without_a_compiler_there_is_a_wheel_all_the_same(source: Path, no_compiler: str, tmp_path: Path) -> None:
    done = build(source, tmp_path / "out", PATH=no_compiler)
    assert done.wheel is not None
    assert done.wheel.name.endswith(PURE)
    assert re.search(TOLD.format(why="there is no C compiler", more=HELP), done.said, re.MULTILINE)


def test_with_a_broken_compiler_too(source: Path, tmp_path: Path) -> None:
    done = build(source, tmp_path / "out", CFLAGS="-DPy_PYTHON_H '-Dbool=#broken'")
    assert done.wheel is not None
    assert done.wheel.name.endswith(PURE)
    assert re.search(TOLD.format(why="failed with exit status [1-9]", more=HELP), done.said, re.MULTILINE)
    assert "error:" in done.said  # of the compiler


def test_without_headers_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = {"include": str(tmp_path), "platinclude": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    with pytest.raises(hatch_build.CannotBuildError, match=re.escape(f"Python.h is not in {tmp_path}")):
        hatch_build.build(ROOT, tmp_path / "out.so")


def test_where_it_is_required_a_missing_compiler_fails(source: Path, no_compiler: str, tmp_path: Path) -> None:
    done = build(source, tmp_path / "out", PATH=no_compiler, PD_HANDOFF_NATIVE="required")
    assert done.wheel is None
    assert done.said.startswith("pd-handoff: the C extension is required (PD_HANDOFF_NATIVE), but there is no C compil")


def test_where_it_is_required_a_failing_compiler_fails(source: Path, tmp_path: Path) -> None:
    done = build(source, tmp_path / "out", CC="false", PD_HANDOFF_NATIVE="required")
    assert done.wheel is None
    assert "the C compiler false failed with exit status 1" in done.said
    assert "Traceback" not in done.said


def test_a_misspelt_wish_fails(source: Path, tmp_path: Path) -> None:
    done = build(source, tmp_path / "out", PD_HANDOFF_NATIVE="yes")
    assert done.wheel is None
    assert "PD_HANDOFF_NATIVE is 'yes'; it can be auto, off, required" in done.said


def test_an_editable_install_has_it_beside_its_sources(source: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(source, tree)
    directory = tree / "service" / NATIVE
    (directory / EXTENSION).chmod(0o444)
    build(tree, tmp_path / "first", kind="editable", PD_HANDOFF_NATIVE="required")
    assert (directory / EXTENSION).read_bytes().startswith(b"\x7fELF")
    assert [path.name for path in directory.iterdir() if ".so" in path.name] == [EXTENSION]
    build(tree, tmp_path / "second", kind="editable", CC="false")
    assert not (directory / EXTENSION).exists()  # it might not be what the sources say


def test_the_image_is_built_from_enough(tmp_path: Path) -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text().split("\nFROM ")[1]
    tree = tmp_path / "tree"
    tree.mkdir()
    for names, target in re.findall(r"^COPY (.+) (\S+)$", text, re.MULTILINE):
        for name in names.split():
            into = tree / target
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, into, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            else:
                into.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, into)
    done = build(tree, tmp_path / "out", PD_HANDOFF_NATIVE="required")
    assert done.wheel is not None
    assert f"{NATIVE}/{EXTENSION}" in content(done.wheel)
    (install,) = re.findall(r"PD_HANDOFF_NATIVE=(\w+) \S+/pip install", text)
    assert install == "required"
