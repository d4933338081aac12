"""What all sections share: how much to measure, the servers that run, and rooms that nobody has used."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pd_handoff_server.process.runtime import EXPERIMENTS

from . import payload, peers, records, servers
from .results import Report
from .servers import Process
from .workers import Worker, worker

QUIET = EXPERIMENTS
"""What the store sets for itself; the clients of its own rows may, too."""

NARROW: dict[str, Any] = {
    "max_tokens": 1,
    "max_sampling_mask_tokens": 64,
    "max_speculative_topk": 8,
    "max_dsa_topk_indices": 0,
    "max_customized_info_bytes": 64,
    "max_hidden_state_bytes": 16384,
}
"""Rows just wide enough for both records, so that many fit."""


@dataclass(frozen=True)
class Amount:
    """How much to measure.

    Attributes:
        rounds: of everything, in turns between what is compared.
        calls: in flight together, a round.
        singles: one in flight, a round.
        slots: of the stores.
    """

    rounds: int
    calls: int
    singles: int
    slots: int


FULL = Amount(rounds=7, calls=8000, singles=1500, slots=8192)
QUICK = Amount(rounds=2, calls=1000, singles=120, slots=1024)


class Scene:
    """One run of the benchmarks; a context that ends what it started.

    Attributes:
        stack: for what a section starts and all later ones may use.
        ready: servers by name.
    """

    def __init__(self, amount: Amount, report: Report, directory: Path) -> None:
        self.amount = amount
        self.report = report
        self.directory = directory
        self.stack = ExitStack()
        self.ready: dict[str, Process] = {}
        self._rooms = itertools.count(1)
        self._workers: dict[tuple[str, ...], Worker] = {}
        for size in (records.SMALL, records.LARGE):
            path = directory / size.replace(" ", "_")
            path.write_bytes(records.record(size).SerializeToString())
        self.stack.enter_context(_variable(payload.VARIABLE, str(directory)))

    def rooms(self) -> int:
        """The first of ten million rooms that no store of this run has seen."""
        return next(self._rooms) * 10_000_000

    def server(self, name: str) -> Process:
        """A server, started when it is first asked for: `store` or `echo`, then `fast` or `aio`, then any of

        `tcp`, else it is on a Unix socket; `plain`, a store with gRPC as installed; `large`, an echo that answers Gets
        as those of LARGE, else of SMALL.
        """
        if name not in self.ready:
            kind, transport, *how = name.split()
            where = "127.0.0.1:0" if "tcp" in how else f"unix:{self.directory}/{'-'.join(name.split())}"
            if kind == "store":
                plain = "plain" in how
                started = servers.store(where, transport=transport, slots=self.amount.slots, plain=plain, **NARROW)
            else:
                started = servers.echo(transport, where, *_answers(records.LARGE if "large" in how else records.SMALL))
            self.ready[name] = self.stack.enter_context(started)
        return self.ready[name]

    def grpc_cpp(self) -> Process | None:
        """The gRPC C++ server, whose answers are as large as the echoes'; None, and noted, where it is missing."""
        name = "gRPC C++"
        if name not in self.ready:
            started = peers.grpc_cpp(f"unix:{self.directory}/cpp", *_answers(records.SMALL))
            try:
                self.ready[name] = self.stack.enter_context(started)
            except peers.MissingError as error:
                self.report.lacks(str(error))
                return None
        return self.ready[name]

    def worker(self, kind: str, address: str, *rest: str, experiments: str | None = None, serial: int = 0) -> Worker:
        """A client process; the same one when asked for the same, unless `serial` differs."""
        key = (kind, address, *rest, experiments or "", str(serial))
        if key not in self._workers:
            made = worker(kind, address, *rest, experiments=experiments)
            self._workers[key] = self.stack.enter_context(made)
        return self._workers[key]

    def redis(self) -> tuple[Process, str] | None:
        """Redis and its TCP address; None, and noted, where it is missing."""
        if "redis" not in self.ready:
            try:
                process, self._redis_tcp = self.stack.enter_context(peers.redis(self.directory))
            except peers.MissingError as error:
                self.report.lacks(str(error))
                return None
            self.ready["redis"] = process
        return self.ready["redis"], self._redis_tcp


def _answers(size: str) -> tuple[int, int]:
    """Bytes of a store's answers to Put and Get, for servers that have no store."""
    return 30, len(records.record(size).SerializeToString()) + 40


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
