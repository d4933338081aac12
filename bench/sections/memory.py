"""What an idle store holds and how long it takes to start, beside what its imports alone come to."""

from __future__ import annotations

import subprocess
import sys
import time

from bench import servers
from bench.scene import NARROW, Scene
from bench.servers import Process

SECTION = "start-up and idle memory"
_FLOOR = "import torch, grpc, sys; print('serving', flush=True); sys.stdin.read()"
_MIB = float(1 << 20)


def run(scene: Scene) -> None:
    """In turns between a process that only imports, and stores of two sizes."""
    slots = (1024, 8192)
    with servers.directory() as directory:
        for round_ in range(max(scene.amount.rounds // 2, 1)):
            began = time.perf_counter()
            floor = subprocess.Popen(
                [sys.executable, "-c", _FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert floor.stdout is not None
            floor.stdout.readline()
            _note(scene, "floor: import torch and grpc", Process(floor, ""), time.perf_counter() - began, 0)
            assert floor.stdin is not None
            floor.stdin.close()
            floor.wait()
            for count in slots:
                began = time.perf_counter()
                with servers.store(f"unix:{directory}/{round_}-{count}", slots=count, bare=True, **NARROW) as process:
                    seconds = time.perf_counter() - began
                    _note(scene, f"store of {count:,} rows", process, seconds, process.told["arena_bytes"])


def _note(scene: Scene, subject: str, process: Process, seconds: float, arena: int) -> None:
    add = scene.report.add
    add(SECTION, subject, "start", "s", seconds)
    add(SECTION, subject, "resident", "MiB", process.resident() / _MIB)
    add(SECTION, subject, "arena", "MiB", arena / _MIB)
    floor = scene.report.row(SECTION, "floor: import torch and grpc", "resident")
    if arena and floor is not None:
        add(SECTION, subject, "above arena and floor", "MiB", (process.resident() - arena) / _MIB - floor.median)
