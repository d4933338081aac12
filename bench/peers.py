"""The servers that the store is compared with, where they are installed: started on loopback, and ended."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import servers
from .servers import Process

_START = 20.0  # seconds
HOW = "run tools/bench-peers.sh"
GRPC_CPP = Path("build/peers/grpc-cpp-echo")
"""Where tools/bench-peers.sh puts what it builds of bench/native/echo.cc."""


class MissingError(Exception):
    """A peer that is not installed; the message says so."""


def python() -> str:
    """The Python of the peers' clients: that of .venv-peers, else our own."""
    own = Path(".venv-peers/bin/python")
    return str(own.absolute()) if own.exists() else sys.executable


def check_module(name: str, what: str) -> None:
    """Raises MissingError unless the peers' Python can import a module."""
    done = subprocess.run([python(), "-c", f"import {name}"], capture_output=True, check=False, env=environment())
    if done.returncode:
        raise MissingError(f"{what} ({HOW})")


def environment() -> dict[str, str]:
    """For the peers' clients; some of their libraries come by pip."""
    libraries = [str(path.parent) for path in Path(".venv-peers").absolute().glob("**/libcudart.so*")]
    known = [path for path in (os.environ.get("LD_LIBRARY_PATH"), *libraries) if path]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(known)} if known else dict(os.environ)


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(ready: Callable[[], bool], popen: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if popen.poll() is not None:
            raise MissingError(f"{what} (ended at once with status {popen.returncode})")
        if ready():
            return
        time.sleep(0.05)
    raise MissingError(f"{what} (did not start)")


def _listens(address: str) -> bool:
    family = socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET
    host, _, port = address.rpartition(":")
    where = address.removeprefix("unix:") if family == socket.AF_UNIX else (host, int(port))
    with socket.socket(family) as probe:
        return probe.connect_ex(where) == 0


@contextmanager
def _running(command: list[str], address: str, what: str, **options: object) -> Iterator[Process]:
    if shutil.which(command[0]) is None:
        raise MissingError(f"{what} ({HOW})")
    quiet = subprocess.DEVNULL
    popen = subprocess.Popen(command, stdout=quiet, stderr=quiet, **options)  # type: ignore[call-overload]
    process = Process(popen, address)
    try:
        _until(lambda: _listens(address), popen, what)
        yield process
    finally:
        process.stop()


@contextmanager
def grpc_cpp(where: str, put: int, get: int) -> Iterator[Process]:
    """A gRPC C++ server that answers Put by `put` bytes, all else by `get` bytes. Raises MissingError."""
    if not GRPC_CPP.exists():
        raise MissingError(f"gRPC C++ server ({HOW}; it needs g++, pkg-config and libgrpc++-dev)")
    with servers.echo("C++", where, put, get, (str(GRPC_CPP.absolute()),)) as process:
        yield process


@contextmanager
def redis(directory: Path) -> Iterator[tuple[Process, str]]:
    """redis-server without persistence, on a Unix socket and on TCP; also its TCP address. Raises MissingError."""
    check_module("redis, hiredis", "redis-py and hiredis")
    path, port = directory / "redis", free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path)]
    command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    with _running(command, f"unix:{path}", "redis-server") as process:
        yield process, f"127.0.0.1:{port}"


@contextmanager
def etcd(directory: Path) -> Iterator[Process]:
    """One etcd member, its data where the system keeps temporary files. Raises MissingError."""
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    command = ["etcd", "--data-dir", str(directory / "etcd"), "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--log-level", "error"]
    with _running(command, client.removeprefix("http://"), "etcd") as process:
        yield process


@contextmanager
def mooncake() -> Iterator[Process]:
    """A master, and a process that lends its memory. Raises MissingError."""
    check_module("mooncake.store", "mooncake-transfer-engine-non-cuda")
    port, metrics = free_port(), free_port()
    command = [str(Path(python()).parent / "mooncake_master"), f"--rpc_port={port}", f"--metrics_port={metrics}"]
    command += ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
    address = f"127.0.0.1:{port}"
    with _running(command, address, "mooncake_master", env=environment()) as process:
        owner = subprocess.Popen(
            [python(), "-m", "bench.clients.mooncake_peer", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        try:
            assert owner.stdout is not None
            if not any(line.strip() == "serving" for line in owner.stdout):
                raise MissingError("Mooncake (its memory could not be set up)")
            yield process
        finally:
            owner.kill()
            owner.wait()
