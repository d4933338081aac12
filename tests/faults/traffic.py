"""Hand-offs by the public client over a bad network: each must arrive, once, as it was put.

As a process of its own: `python -m tests.faults.traffic TARGET COUNT SEED` prints "ready", then its report as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pd_handoff import (
    DeadlineExceeded,
    DecodeClient,
    HandoffError,
    PrefillClient,
    Retries,
    StoreUnavailable,
)

from .common import Report, differences, record_of

T = TypeVar("T")
LANES = 4
REPETITIONS = 50
"""How often a caller repeats a call whose answer did not come in time, before it is a fault."""
CALL = 10.0
"""Seconds that a call may take before its caller repeats it."""
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
]


def retries() -> dict[str, Any]:
    """A client's arguments for a network that comes and goes."""
    return {
        "timeout": CALL,
        "retries": Retries(total_seconds=60, initial_backoff=0.02, max_backoff=0.2),
        "options": _OPTIONS,
    }


class Lane:
    """Hand-offs one after the other, of rooms that are this lane's alone."""

    def __init__(self, target: str, number: int, rng: random.Random) -> None:
        self.report = Report()
        self._rng = rng
        self._number = number
        self._prefill = PrefillClient(target, **retries())
        self._decode = DecodeClient(target, reader_id=f"reader-{number}", **retries())

    def run(self, count: int) -> None:
        """So many."""
        with self._prefill, self._decode:
            for serial in range(count):
                room = self._number * 10**6 + serial
                try:
                    self._hand_over(room)
                except HandoffError as error:
                    self.report.fault(f"room {room}: {error.reason or type(error).__name__}: {error}")
                self.report.count("hand-offs over a bad network")

    def _hand_over(self, room: int) -> None:
        record = record_of(("", room, 0), 0)
        if self._rng.random() < 0.3:
            self._insist(lambda: self._prefill.put_once(room, record, owner=f"once-{room}"))
        else:
            held = self._insist(lambda: self._prefill.reserve(room, owner=f"owner-{room}"))
            self._insist(lambda: self._prefill.put(held, record))
        found = self._insist(lambda: self._decode.get(room, max_wait=30))
        wrong = differences(found.proto, ("", room, 0), 0)
        self.report.expect(not wrong, f"room {room}: read another record, different in {wrong[:5]}")
        self.report.count("records compared")

    def _insist(self, call: Callable[[], T]) -> T:
        """Every call can be repeated: its owner, token or reader makes it idempotent."""
        for _ in range(REPETITIONS):
            try:
                return call()
            except (DeadlineExceeded, StoreUnavailable):
                self.report.count("calls repeated by their caller")
        raise AssertionError(f"no answer in {REPETITIONS} calls")


def hand_over(target: str, count: int, seed: str, report: Report) -> None:
    """So many hand-offs in all, over several connections at a time."""
    lanes = [Lane(target, number, random.Random(f"{seed}/{number}")) for number in range(LANES)]
    threads = [threading.Thread(target=lane.run, args=(-(-count // LANES),), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(900)
        report.expect(not thread.is_alive(), "hand-offs over a bad network hang")
    for lane in lanes:
        add(report, lane.report.figures, lane.report.faults)


def add(report: Report, figures: dict[str, int], faults: list[str]) -> None:
    """Another report's contents."""
    for name, number in figures.items():
        report.count(name, number)
    report.faults.extend(faults)


def main() -> int:
    """The command."""
    target, count, seed = sys.argv[1:]
    report = Report()
    print("ready", flush=True)
    hand_over(target, int(count), seed, report)
    print(json.dumps({"figures": report.figures, "faults": report.faults}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
