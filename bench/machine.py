"""What it was measured on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from . import peers

PACKAGES = ("grpcio", "protobuf", "torch", "numpy", "pd-handoff")


def about() -> dict[str, Any]:
    """Versions and machine."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load before": [round(value, 2) for value in os.getloadavg()],
    }
    for name in PACKAGES:
        found[name] = metadata.version(name)
    for command in (["redis-server", "--version"], ["etcd", "--version"], ["h2load", "--version"]):
        if shutil.which(command[0]):
            found[command[0]] = _first_line(command)
    if peers.GRPC_CPP.exists():
        found["gRPC C++"] = _first_line([str(peers.GRPC_CPP.absolute()), "--version"])
    code = (
        "from importlib import metadata\n"
        "for name in ('redis', 'hiredis', 'mooncake-transfer-engine-non-cuda'):\n"
        "    try: print(name, metadata.version(name))\n"
        "    except metadata.PackageNotFoundError: pass\n"
    )
    for line in subprocess.run(
        [peers.python(), "-c", code], capture_output=True, text=True, check=False
    ).stdout.splitlines():
        name, _, version = line.partition(" ")
        found[name] = version
    return found


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
