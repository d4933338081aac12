"""Server processes: started, watched from outside, and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_START = 120.0  # seconds


@dataclass(frozen=True)
class Usage:
    """What a process has used so far: CPU seconds, and how often its threads went to sleep of their own accord."""

    cpu: float
    switches: int

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.cpu - other.cpu, self.switches - other.switches)


class Process:
    """A running server.

    Attributes:
        address: unix:PATH or host:port.
        told: of a store, its `serving` event.
    """

    def __init__(self, popen: subprocess.Popen[str], address: str, told: dict[str, Any] | None = None) -> None:
        self.popen = popen
        self.address = address
        self.told = told or {}

    def usage(self) -> Usage:
        """Of all its threads."""
        cpu, switches = 0, 0
        for task in Path(f"/proc/{self.popen.pid}/task").iterdir():
            try:
                cpu += int((task / "schedstat").read_text().split()[0])
                status = (task / "status").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
            switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return Usage(cpu / 1e9, switches)

    def resident(self) -> int:
        """Bytes of memory in use."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(status.partition("\nVmRSS:")[2].split()[0]) * 1024

    def stop(self) -> None:
        """End it."""
        self.popen.terminate()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


@contextmanager
def directory() -> Iterator[Path]:
    """For sockets: their paths must be short."""
    with tempfile.TemporaryDirectory(prefix="pdb-") as name:
        yield Path(name)


@contextmanager
def store(
    where: str,
    *,
    transport: str = "fast",
    slots: int = 1024,
    plain: bool = False,
    **settings: Any,
) -> Iterator[Process]:
    """`pd-handoff serve`, once it is serving; `plain` with gRPC's settings as installed.

    Raises RuntimeError when it does not start.
    """
    options = {"transport": transport, "slots": slots, "log-format": "json", **settings}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    popen = subprocess.Popen(
        [sys.executable, "-m", "pd_handoff.cli", "serve", "--listen", where, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRPC_EXPERIMENTS": ""} if plain else None,
    )
    assert popen.stderr is not None
    seen: list[str] = []
    told: dict[str, Any] = {}
    watchdog = threading.Timer(_START, popen.kill)
    watchdog.start()
    for line in popen.stderr:
        seen.append(line)
        if '"event": "serving"' in line:
            told = json.loads(line)
            break
    watchdog.cancel()
    if not told:
        raise RuntimeError("the store did not start:\n" + "".join(seen[-20:]))
    threading.Thread(target=lambda: [None for _ in popen.stderr or ()], daemon=True).start()
    process = Process(popen, told["addresses"][0], told)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def echo(kind: str, where: str, put: int, get: int, command: Sequence[str] = ()) -> Iterator[Process]:
    """`bench.echo` of this kind, or another `command` that takes the same arguments, once it is serving.

    Its address may be any port; it says which one it got.
    """
    command = command or (sys.executable, "-m", "bench.echo", kind)
    popen = subprocess.Popen([*command, where, str(put), str(get)], stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    word, _, address = popen.stdout.readline().strip().partition(" ")
    if word != "serving":
        popen.kill()
        popen.wait()
        raise RuntimeError(f"the {kind} echo did not start")
    process = Process(popen, address or where)
    try:
        yield process
    finally:
        process.stop()
