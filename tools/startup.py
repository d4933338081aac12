"""How long `pd-handoff serve` takes to SERVING, and what an idle store holds, beside what imports alone cost.

    .venv/bin/python tools/startup.py [--rows 4096] [--runs 5]

The floor is a process that imports torch and grpc and does nothing else: no store of this design can start faster
or hold less. Times are medians with the range; memory is the resident set in MiB, and its anonymous part: how many
pages of the libraries' files count as resident depends on the page cache, which all processes share.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pd_handoff import DecodeClient

_FLOOR = "import torch, grpc, sys; print('imported', flush=True); sys.stdin.read()"
_MIB = 2**20
_PATIENCE = 60.0
_MEASURES = ("seconds", "resident", "anonymous")


@dataclass(frozen=True)
class Sample:
    """One start: seconds until it was ready, and MiB resident then, of which no file stands behind `anonymous`."""

    seconds: float
    resident: float
    anonymous: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="slots of the store (4096)")
    parser.add_argument("--runs", type=int, default=5, help="starts of each (5)")
    arguments = parser.parse_args()
    start_floor(), start_store(arguments.rows)  # warms the page cache
    floors, stores, arena = [], [], 0
    for _ in range(arguments.runs):  # in turns, so that a slow spell of the machine hits both
        floors.append(start_floor())
        sample, arena = start_store(arguments.rows)
        stores.append(sample)
    arena_mib = arena / _MIB
    print(
        f"{arguments.rows:,} rows, an arena of {arena_mib:.1f} MiB, {arguments.runs} starts each, "
        f"Python {sys.version.split()[0]}, torch {version('torch')}, grpcio {version('grpcio')}"
    )
    print("|  | time to ready, s | resident, MiB | anonymous, MiB |\n|---|---|---|---|")
    for subject, samples in (
        ("floor: import torch and grpc", floors),
        ("`pd-handoff serve`, SERVING and idle", stores),
    ):
        print(f"| {subject} | {' | '.join(spread(samples, name) for name in _MEASURES)} |")
    seconds, resident, anonymous = (middle(stores, name) - middle(floors, name) for name in _MEASURES)
    print(f"| above the floor | {seconds:.2f} | {resident:.1f} | {anonymous:.1f} |")
    print(f"| above the floor and the whole arena |  | {resident - arena_mib:.1f} | {anonymous - arena_mib:.1f} |")


def middle(samples: list[Sample], name: str) -> float:
    """The median of one measure."""
    return float(statistics.median(getattr(sample, name) for sample in samples))


def spread(samples: list[Sample], name: str) -> str:
    """Median and range of one measure."""
    values = sorted(getattr(sample, name) for sample in samples)
    digits = 2 if name == "seconds" else 1
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"


def start_floor() -> Sample:
    """A process that only imports."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", _FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None or process.stdout.readline() != "imported\n":
            raise RuntimeError("torch and grpc cannot be imported")
        sample = Sample(time.perf_counter() - started, *memory(process.pid))
        process.communicate()
    return sample


def start_store(rows: int) -> tuple[Sample, int]:
    """A store with default limits; returns its sample and the bytes of its arena."""
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as directory:
        target = f"unix:{directory}/store.sock"
        command = [str(Path(sysconfig.get_path("scripts")) / "pd-handoff"), "serve", "--listen", target]
        started = time.perf_counter()
        with (
            (Path(directory) / "log").open("w") as log,
            subprocess.Popen([*command, "--slots", str(rows)], stdout=log, stderr=log) as process,
        ):
            try:
                wait_until_serving(process, target)
                sample = Sample(time.perf_counter() - started, *memory(process.pid))
                with DecodeClient(target) as client:
                    return sample, client.capabilities().arena_bytes
            finally:
                process.terminate()


def wait_until_serving(process: subprocess.Popen[bytes], target: str) -> None:
    """Watch its health, which it answers while it still loads. Raises RuntimeError when it ends or takes too long."""
    deadline = time.perf_counter() + _PATIENCE
    options = [("grpc.initial_reconnect_backoff_ms", 5), ("grpc.max_reconnect_backoff_ms", 5)]
    with grpc.insecure_channel(target, options) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while time.perf_counter() < deadline and process.poll() is None:
            try:
                # Watched, not polled: questions without a pause would slow the start that is measured.
                for answer in health.Watch(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.RpcError:
                continue  # not listening yet
    raise RuntimeError("the store is not serving")


def memory(pid: int) -> tuple[float, float]:
    """MiB of the resident set and of its anonymous part, as the kernel counts them."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB$", status, re.MULTILINE))
    if len(found) != 2:
        raise RuntimeError(f"no VmRSS and RssAnon of process {pid}")
    return int(found["VmRSS"]) / 1024, int(found["RssAnon"]) / 1024


if __name__ == "__main__":
    main()
