"""What a store holds, idle and full, and how long it takes to start: beside its imports alone, and beside its plan."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import http2, records, servers
from bench.scene import NARROW, Scene
from bench.sections.load import STORE
from bench.servers import Process

SECTION = "start-up and idle memory"
_FLOOR = "import torch, grpc, sys; print('serving', flush=True); sys.stdin.read()"
_MIB = float(1 << 20)
ROW = "memory a row, of rows just wide enough for 15.9 KB"
SLOTS = (1024, 8192)


class Memory(NamedTuple):
    """Bytes of a process: all that is resident, and how much of it no file stands behind."""

    resident: int
    anonymous: int

    @classmethod
    def of(cls, process: Process) -> Memory:
        """As the kernel counts it now. The kernel's running totals lag behind; this adds up the pages themselves."""
        rollup = Path(f"/proc/{process.popen.pid}/smaps_rollup").read_text()
        return cls(*(int(rollup.partition(f"\n{name}:")[2].split()[0]) * 1024 for name in ("Rss", "Anonymous")))


def run(scene: Scene) -> None:
    """In turns between a process that only imports, and stores of two sizes; what a row takes is their difference."""
    planned = _planned()
    with servers.directory() as directory:
        _warm(f"unix:{directory}/warm")
        for round_ in range(scene.amount.rounds):
            floor = _floor(scene)
            full = {}
            for count in SLOTS:
                began = time.perf_counter()
                with servers.store(f"unix:{directory}/{round_}-{count}", slots=count, **NARROW) as process:
                    seconds = time.perf_counter() - began
                    subject, memory = f"store of {count:,} rows", Memory.of(process)
                    arena = process.told["arena_bytes"]
                    _note(scene, subject, memory, seconds, arena)
                    _note_above(scene, subject, memory, floor, arena)
                    if round_ % 2 == 0:  # it takes longest, and varies least
                        _fill(process, scene.rooms(), count)
                        full[count] = Memory.of(process).resident
                        scene.report.add(SECTION, subject, "resident when full", "MiB", full[count] / _MIB)
            if full:
                few, many = SLOTS
                held = (full[many] - full[few]) / (many - few)
                scene.report.add(ROW, "resident, the store being full", "a row", "bytes", held)
                scene.report.add(ROW, "pd-handoff plan", "a row", "bytes", planned)


def _warm(where: str) -> None:
    """Start each once: then all files are in the page cache, and Python's own are compiled.

    A process that finds a file in the cache maps several of its pages at a time, so the first ones hold fewer.
    """
    with _imports():
        pass
    with servers.store(where, slots=SLOTS[0], **NARROW):
        pass


@contextmanager
def _imports() -> Iterator[Process]:
    """The floor, once it has imported."""
    popen = subprocess.Popen([sys.executable, "-c", _FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert popen.stdout is not None
        if popen.stdout.readline() != "serving\n":
            raise RuntimeError("torch and grpc cannot be imported")
        yield Process(popen, "")
    finally:
        popen.communicate(timeout=60)


def _floor(scene: Scene) -> Memory:
    began = time.perf_counter()
    with _imports() as process:
        seconds = time.perf_counter() - began
        memory = Memory.of(process)
    _note(scene, "floor: import torch and grpc", memory, seconds, 0)
    return memory


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


def _note(scene: Scene, subject: str, memory: Memory, seconds: float, arena: int) -> None:
    add = scene.report.add
    add(SECTION, subject, "start", "s", seconds)
    add(SECTION, subject, "resident", "MiB", memory.resident / _MIB)
    add(SECTION, subject, "anonymous", "MiB", memory.anonymous / _MIB)
    add(SECTION, subject, "arena", "MiB", arena / _MIB)


def _note_above(scene: Scene, subject: str, memory: Memory, floor: Memory, arena: int) -> None:
    """Of one pair. Anonymous is what a store adds to a machine: pages of files are there once for all processes."""
    for measure, more in (
        ("above arena and floor", memory.resident - floor.resident),
        ("of it anonymous", memory.anonymous - floor.anonymous),
    ):
        scene.report.add(SECTION, subject, measure, "MiB", (more - arena) / _MIB)
