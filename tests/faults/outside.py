"""A running store as seen from outside: its metrics, and the bytes of its arena file."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pd_handoff_server.arena.layout import HEADER, Layout
from pd_handoff_server.config import Settings
from pd_handoff_server.persistence.layout import Geometry

from tests.support.process import ProcessStore
from tests.support.waits import eventually

QUIET = {"log_level": "info", "metrics_listen": "127.0.0.1:0", "drain_notice": 0.05, "grace": 5}
"""Settings of a store that shows its metrics; the address is in its log."""


def metrics(store: ProcessStore) -> dict[str, float]:
    """Every series by name and labels, as Prometheus would read it: `pd_handoff_waiters{kind="slot"}`."""

    def told() -> list[str]:
        return [event["metrics"] for event in store.events if event.get("event") == "serving"]

    eventually(lambda: bool(told()), "the store tells its addresses")
    (address,) = told()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


class Rows:
    """The rows of a store's arena file, to be read and damaged behind its back."""

    def __init__(self, path: Path, **settings: Any) -> None:
        """Settings as the store has them; those of other things than memory may be left out."""
        known = Settings(**{name: value for name, value in settings.items() if name in Settings.__dataclass_fields__})
        layout, policy = Layout(known.limits()), known.policy()
        self._path = path
        self._start = Geometry(layout, known.slots, policy.tombstones, policy.producers).rows.offset
        self._size = layout.row_bytes
        self._count = known.slots
        self._former: list[bytes] = []
        self._remembered: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            file.seek(self._start)
            for _ in range(self._count):
                yield file.read(self._size)

    def residues(self) -> int:
        """How many rows hold anything but the number of their next generation."""
        return sum(any(row[8:]) for row in self)

    def remember(self) -> None:
        """As they are now; what was remembered before is what `put_back` writes."""
        self._former, self._remembered = self._remembered, [*self]

    def put_back(self, slot: int) -> None:
        """A row as it was when it was remembered the last time but one: what a write that comes late would leave."""
        self._write(slot, 0, self._former[slot])

    def copy(self, source: int, target: int) -> None:
        """All of a row behind its generation in the place of another: what an exchange of two rows would leave, were
        their generations equal."""
        self._write(target, 8, [*self][source][8:])

    def flip(self, slot: int, at: int) -> None:
        """One bit of the record in a row, `at` bytes behind its header."""
        row = [*self][slot]
        self._write(slot, HEADER.size + at, bytes((row[HEADER.size + at] ^ 1,)))

    def _write(self, slot: int, at: int, data: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._start + slot * self._size + at)
            file.write(data)
