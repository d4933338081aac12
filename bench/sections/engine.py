"""What the hand-off takes from SGLang's scheduler, in an environment that has SGLang (see bench/sglang_loop.py)."""

from __future__ import annotations

import json
import subprocess

from bench.scene import QUICK, Scene
from bench.sections.floor import SGLANG

_SECONDS = 600.0  # most of which SGLang's imports may take on a busy machine


def run(scene: Scene) -> None:
    """All of it, or why not; nothing in the quick form."""
    what = "what the hand-off takes from SGLang's scheduler"
    if not SGLANG.exists():
        scene.report.lacks(f"{what} (make it with tools/test-sglang.sh --only-setup)")
        return
    if scene.amount == QUICK:  # SGLang's imports alone take a quarter of its minute and a half
        scene.report.lacks(f"{what} (only in `make bench`)")
        return
    command = [str(SGLANG), "-W", "ignore", "-m", "bench.sglang_loop", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        scene.report.lacks(f"{what} (no answer within {_SECONDS:.0f} s)")
        return
    if done.returncode:
        scene.report.lacks(f"{what} ({' '.join(done.stderr.strip().splitlines()[-1:])})")
        return
    for line in done.stdout.splitlines():
        figure = json.loads(line)
        section = f"SGLang: {figure['subject']}"
        scene.report.add(section, figure["circumstance"], figure["quantity"], "µs", *figure["values"])
