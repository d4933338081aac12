"""A process with the patched SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 240.0  # of a busy machine, for an end of what hangs


def environment(patched: Path) -> dict[str, str]:
    """In which `sglang` is the patched one."""
    path = os.pathsep.join((str(patched), str(ROOT), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}


def run(patched: Path, *command: str) -> str:
    """Python with these arguments, to its end; what it printed. Raises AssertionError with its log when it failed."""
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(patched),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
