"""Builds the server's extension in C, `pd_handoff_server.parser._scan`, as a step of making a wheel.

The environment variable PD_HANDOFF_NATIVE says what a build has to do: `auto` (default: build the extension where a
C compiler and the headers of this Python are at hand, else make a wheel without it), `off` (make one without it) or
`required` (fail where it cannot be built). CC, CPPFLAGS, CFLAGS and LDFLAGS have their usual meaning.

A wheel for installing gets the extension from a temporary directory, never one that lies in the tree. An editable
install has it beside its sources.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("service/pd_handoff_server/parser")
PLACE = "pd_handoff_server/parser"
MODES = ("auto", "off", "required")
HOW = "For the extension, install a C compiler and python3-dev, and build again."

COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-shared", "-fPIC", "-O2", "-g0", "-DNDEBUG", "-Wall", "-Wextra", "-fvisibility=hidden"),
    # The level is undefined first: some systems' compilers set one of their own.
    *("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
)
COMPILE_SECONDS = 300


class CannotBuildError(Exception):
    """Why there can be no extension: a clause for people, and on lines of its own what a compiler said."""


def file_name() -> str:
    """The name under which this Python, and no other version, finds the module."""
    return f"_scan{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiler() -> list[str]:
    """The command to compile with: $CC, else the one that Python was built with, else a common one."""
    named = os.environ.get("CC")
    usual = [sysconfig.get_config_var("CC") or "", *COMPILERS]
    for candidate in [named] if named else usual:
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            return command
    raise CannotBuildError(f"there is no C compiler ({named or ', '.join(COMPILERS)})")


def headers() -> list[Path]:
    """Where this Python's headers are."""
    paths = sysconfig.get_paths()
    found = [Path(directory) for directory in dict.fromkeys((paths["include"], paths["platinclude"]))]
    if not any((directory / "Python.h").is_file() for directory in found):
        raise CannotBuildError(f"Python.h is not in {paths['include']}")
    return found


def build(root: Path, out: Path) -> None:
    """Compile the sources below `root` to the file `out`. Raises CannotBuildError with the compiler's message."""
    if sys.implementation.name != "cpython":
        raise CannotBuildError(f"it is written for CPython, and this is {sys.implementation.name}")
    command = [*compiler(), *FLAGS, *(f"-I{directory}" for directory in headers())]
    for variable in ("CPPFLAGS", "CFLAGS"):
        command += shlex.split(os.environ.get(variable, ""))
    command += [*sorted(path.name for path in (root / SOURCES).glob("*.c")), "-o", str(out)]
    command += shlex.split(os.environ.get("LDFLAGS", ""))
    try:
        done = subprocess.run(
            command,
            cwd=root / SOURCES,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise CannotBuildError(f"{command[0]} could not be run: {failed}") from failed
    if done.returncode or not out.is_file():
        said = f"{shlex.join(command)}\n{done.stdout}".rstrip()
        raise CannotBuildError(f"the C compiler {command[0]} failed with exit status {done.returncode}\n{said}")
    if done.stdout:
        print(done.stdout, file=sys.stderr)


class ExtensionHook(BuildHookInterface[BuilderConfig]):
    """Adds the extension to wheels."""

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, and say where it goes. `version` is the kind of wheel: standard or editable."""
        mode = os.environ.get("PD_HANDOFF_NATIVE") or "auto"
        if mode not in MODES:
            self.app.abort(f"pd-handoff: PD_HANDOFF_NATIVE is {mode!r}; it can be {', '.join(MODES)}")
        if self.target_name != "wheel":
            return
        in_tree = Path(self.root, SOURCES, file_name())
        self._scratch = tempfile.TemporaryDirectory(prefix="pd-handoff-")
        built = Path(self._scratch.name, file_name())
        try:
            if mode == "off":
                raise CannotBuildError("PD_HANDOFF_NATIVE is off")
            build(Path(self.root), built)
        except CannotBuildError as why:
            if mode == "required":
                self.app.abort(f"pd-handoff: the C extension is required (PD_HANDOFF_NATIVE), but {why}\n{HOW}")
            if version == "editable":
                in_tree.unlink(missing_ok=True)  # of a former build: it may not be what the sources say now
            self._tell_without(str(why), by_choice=mode == "off")
            return
        if version == "editable":
            # In one step: a running store may have the former one open.
            beside = in_tree.with_name(f".{in_tree.name}.new")
            shutil.copy(built, beside)
            beside.replace(in_tree)
        else:
            build_data["force_include"][str(built)] = f"{PLACE}/{file_name()}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built in between."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _tell_without(self, why: str, *, by_choice: bool) -> None:
        reason, _, details = why.partition("\n")
        how = "" if by_choice else f" {HOW}"
        self.app.display_warning(
            f"pd-handoff: no C extension: {reason}. The server will read requests in pure Python.{how}"
        )
        if details:
            self.app.display_warning(details)
