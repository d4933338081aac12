"""The installed SGLang, imported on a machine without GPUs, as it is or with the example's patch."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATCH = Path(__file__).with_name("sglang-0.5.23.patch")
MASKS = "SGLANG_ENABLE_DISAGG_SAMPLING_MASK"


def load(name: str) -> Any:
    """A module of SGLang's, such as `srt.disaggregation.utils`."""
    _stand_in_for_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kernels that want a GPU say so
        return importlib.import_module(f"sglang.{name}")


@contextmanager
def sampling_masks(enabled: bool = True) -> Iterator[None]:
    """While SGLang's own buffers are constructed: with rows for sampling masks, or without."""
    before = os.environ.get(MASKS)
    os.environ[MASKS] = "1" if enabled else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[MASKS]
        else:
            os.environ[MASKS] = before


def patched_copy(folder: Path) -> None:
    """Makes `folder` a place to import the patched SGLang from: links to the installed one, and the patched files.

    Raises ValueError, naming file and lines, when the patch does not fit the installed SGLang.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("sglang is not installed here")
    installed = Path(spec.submodule_search_locations[0])
    for path in installed.rglob("*"):
        if path.is_dir():
            continue
        target = folder / "sglang" / path.relative_to(installed)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    for name, hunks in _parse(PATCH.read_text(encoding="utf-8")).items():
        target = folder / name
        lines = target.read_text(encoding="utf-8").split("\n")
        for start, old, new in reversed(hunks):
            if lines[start : start + len(old)] != old:
                raise ValueError(f"{PATCH.name} does not fit the installed SGLang: {name}, from line {start + 1}")
            lines[start : start + len(old)] = new
        target.unlink()
        target.write_text("\n".join(lines), encoding="utf-8")


def _parse(patch: str) -> dict[str, list[tuple[int, list[str], list[str]]]]:
    """File -> hunks: first line from 0, the lines that are there, the lines that shall be."""
    files: dict[str, list[tuple[int, list[str], list[str]]]] = {}
    for line in patch.splitlines():
        if line.startswith("+++ "):
            hunks = files.setdefault(line[4:].partition("/")[2], [])
        elif line.startswith("@@"):
            hunks.append((int(line.split()[1].lstrip("-").partition(",")[0]) - 1, [], []))
        elif not line.startswith("--- "):
            _, old, new = hunks[-1]
            if line[0] in " -":
                old.append(line[1:])
            if line[0] in " +":
                new.append(line[1:])
    return files


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    """Finds torchvision, of which SGLang's image processors want names at import, and the disaggregation code
    nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _stand_in_for_torchvision() -> None:
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    logging.getLogger("transformers").setLevel(logging.ERROR)
    # transformers remembers that there is none, and must not take the stand-in for one.
    importlib.import_module("transformers.utils").is_torchvision_available()
    sys.meta_path.append(_Finder())
