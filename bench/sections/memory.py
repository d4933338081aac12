"""What a store holds, idle and full, and how long it takes to start: beside its imports alone, and beside its plan."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from bench import http2, records, servers
from bench.scene import NARROW, Scene
from bench.sections.load import STORE
from bench.servers import Process

SECTION = "start-up and idle memory"
_FLOOR = "import torch, grpc, sys; print('serving', flush=True); sys.stdin.read()"
_MIB = float(1 << 20)
ROW = "memory a row, of rows just wide enough for 15.9 KB"
SLOTS = (1024, 8192)


def run(scene: Scene) -> None:
    """In turns between a process that only imports, and stores of two sizes; what a row takes is their difference."""
    planned = _planned()
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
            full = {}
            for count in SLOTS:
                began = time.perf_counter()
                with servers.store(f"unix:{directory}/{round_}-{count}", slots=count, bare=True, **NARROW) as process:
                    seconds = time.perf_counter() - began
                    _note(scene, f"store of {count:,} rows", process, seconds, process.told["arena_bytes"])
                    _fill(process, scene.rooms(), count)
                    full[count] = process.resident()
                    scene.report.add(
                        SECTION, f"store of {count:,} rows", "resident when full", "MiB", full[count] / _MIB
                    )
            few, many = SLOTS
            held = (full[many] - full[few]) / (many - few)
            scene.report.add(ROW, "resident, the store being full", "a row", "bytes", held)
            scene.report.add(ROW, "pd-handoff plan", "a row", "bytes", planned)


def _planned() -> float:
    """Bytes a row, as `pd-handoff plan` has it."""
    flags = [part for name, value in NARROW.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "pd_handoff.cli", "plan", "--json", "--slots", "1024", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return float(json.loads(done.stdout)["row_bytes"])


def _fill(process: Process, first: int, rows: int) -> None:
    """Put a large record into every row; nobody reads them."""
    record = records.record(records.LARGE)
    for at in range(first, first + rows, 1024):
        messages = records.one_shot_puts(range(at, at + 1024), record)
        if http2.drive(process.address, STORE + "Put", messages, in_flight=64).errors:
            raise RuntimeError(f"a store of {rows:,} rows did not take {rows:,} records")


def _note(scene: Scene, subject: str, process: Process, seconds: float, arena: int) -> None:
    add = scene.report.add
    add(SECTION, subject, "start", "s", seconds)
    add(SECTION, subject, "resident", "MiB", process.resident() / _MIB)
    add(SECTION, subject, "arena", "MiB", arena / _MIB)
    floor = scene.report.row(SECTION, "floor: import torch and grpc", "resident")
    if arena and floor is not None:
        add(SECTION, subject, "above arena and floor", "MiB", (process.resident() - arena) / _MIB - floor.median)
