"""Every package of an environment has the version that the constraints name, so that no foreign release changes a run.

    python tests/sglang/pins.py

Checks the environment that it runs in; imports nothing of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("constraints.txt", "constraints-sglang.txt")
FREE = frozenset({"pd-handoff", "pip", "setuptools", "wheel"})  # the project, and what installs it


def plain(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Package -> the one version that is taken of it."""
    found = {}
    for file in FILES:
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            name, exact, version = line.partition("#")[0].strip().partition("==")
            if exact:
                found[plain(name)] = version
    return found


def installed() -> dict[str, str]:
    """Package -> version, without the part that says how it was built."""
    return {plain(each.metadata["Name"]): each.version.partition("+")[0] for each in distributions()}


def strays(present: Mapping[str, str], pins: Mapping[str, str]) -> list[str]:
    """A line for each package that is not pinned, or is there in another version."""
    return [
        f"{name} {version} is installed, {pins.get(name) or 'no version of it'} is pinned"
        for name, version in sorted(present.items())
        if name not in FREE and pins.get(name) != version
    ]


if __name__ == "__main__":
    found = strays(installed(), pinned())
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
