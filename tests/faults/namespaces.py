"""Two network namespaces of our own with one cable between them, to be pulled, narrowed and made to lose packets."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
STORE, CLIENT = "10.213.77.1", "10.213.77.2"
"""Addresses of the two ends; nothing outside the namespaces knows them."""


class UnavailableError(Exception):
    """This machine lets us make no namespaces; the message says why."""


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Cable:
    """Two namespaces and what is between them; gone on leaving the context."""

    def __init__(self) -> None:
        """Raises UnavailableError."""
        self.store = f"pdf{os.getpid()}s"
        self.client = f"pdf{os.getpid()}c"
        try:
            for name in (self.store, self.client):
                _run("ip", "netns", "add", name)
            _run("ip", "link", "add", "end", "netns", self.store, "type", "veth", "peer", "end", "netns", self.client)
            for name, address in ((self.store, STORE), (self.client, CLIENT)):
                _run("ip", "-n", name, "addr", "add", f"{address}/30", "dev", "end")
                _run("ip", "-n", name, "link", "set", "lo", "up")
                _run("ip", "-n", name, "link", "set", "end", "up")
        except UnavailableError:
            self.close()
            raise

    # -- faults; each raises UnavailableError when a tool or a part of the kernel is missing ---------------------------

    def pull(self) -> None:
        """Link down."""
        _run("ip", "-n", self.store, "link", "set", "end", "down")

    def plug(self) -> None:
        """Link up."""
        _run("ip", "-n", self.store, "link", "set", "end", "up")

    def drop(self, percent: int) -> None:
        """Lose so many of a hundred packets at random, in each direction."""
        for name in (self.store, self.client):
            _run("ip", "netns", "exec", name, "nft", "add table inet loss")
            chain = "add chain inet loss incoming { type filter hook input priority 0; }"
            _run("ip", "netns", "exec", name, "nft", chain)
            rule = f"add rule inet loss incoming numgen random mod 100 < {percent} drop"
            _run("ip", "netns", "exec", name, "nft", rule)

    def drop_no_more(self) -> None:
        """Lose nothing."""
        for name in (self.store, self.client):
            _run("ip", "netns", "exec", name, "nft", "delete table inet loss")

    def narrow(self, kilobits: int) -> None:
        """At most so many kilobits a second, from the store."""
        _run(
            *("tc", "-n", self.store, "qdisc", "add", "dev", "end", "root"),
            *("tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "100ms"),
        )

    def widen(self) -> None:
        """As fast as it goes."""
        _run("tc", "-n", self.store, "qdisc", "del", "dev", "end", "root")

    def close(self) -> None:
        """Take it all down; a namespace takes its links with it."""
        for name in (self.client, self.store):
            with contextlib.suppress(UnavailableError):
                _run("ip", "netns", "del", name)

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """What this thread starts meanwhile lives in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{name}") as there:
        _enter(libc, there.fileno())
        try:
            yield
        finally:
            _enter(libc, home.fileno())


def _enter(libc: ctypes.CDLL, file: int) -> None:
    if libc.setns(file, _CLONE_NEWNET):
        raise UnavailableError(f"setns: {os.strerror(ctypes.get_errno())}")
