"""The timer, on a clock that stands still and an event that never sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pd_handoff_server.store.ticker import Ticker

from tests.support.clock import FakeClock

PATIENCE = 30.0


class FakeEvent:
    """Notes how long it was asked to wait, and lets the test act meanwhile; returns at once."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.flag = False
        self.on_wait: Callable[[float], None] = lambda seconds: None
        self.on_clear: Callable[[], None] = lambda: None

    def clear(self) -> None:
        """As an event."""
        self.on_clear()
        self.flag = False

    def set(self) -> None:
        """As an event."""
        self.flag = True

    def wait(self, seconds: float) -> bool:
        """Returns at once."""
        self.waits.append(seconds)
        self.on_wait(seconds)
        return self.flag


class FakeStore:
    """Says when it wants to be looked at again."""

    def __init__(self, clock: FakeClock, dues: Sequence[float | None]) -> None:
        self._clock = clock
        self._dues = list(dues)
        self.ticks = 0

    def tick(self) -> int | None:
        """The next of the moments it was given, in seconds from now."""
        self.ticks += 1
        due = self._dues.pop(0) if self._dues else None
        return None if due is None else self._clock.monotonic() + round(due * 1e9)


def prepare(dues: Sequence[float | None]) -> tuple[Ticker, FakeStore, FakeEvent]:
    """A ticker on fakes, which ends once the store has nothing more to say."""
    clock = FakeClock()
    store: Any = FakeStore(clock, dues)
    ticker = Ticker(store, clock)
    event: Any = FakeEvent()
    ticker._wake = event

    def end(seconds: float) -> None:
        if store.ticks >= len(dues):
            ticker._stopped = True

    event.on_wait = end
    return ticker, store, event


def run(ticker: Ticker) -> None:
    """Start and wait for its end."""
    ticker.start()
    ticker._thread.join(PATIENCE)
    assert not ticker._thread.is_alive()


def test_it_sleeps_until_something_is_due() -> None:
    ticker, store, event = prepare([2.5, 0.001, 7.0])
    run(ticker)
    assert event.waits == pytest.approx([2.5, 0.001, 7.0])
    assert store.ticks == 3


def test_nothing_due_is_a_long_sleep_and_no_endless_one() -> None:
    ticker, _, event = prepare([None, 1e9])
    run(ticker)
    assert event.waits == [3600.0, 3600.0]


def test_what_is_due_already_is_looked_at_at_once() -> None:
    ticker, store, event = prepare([0, -5, 1.0])
    run(ticker)
    assert event.waits == pytest.approx([1.0])
    assert store.ticks == 3


def test_a_stop_between_two_looks_is_not_slept_over() -> None:
    """The stop comes just before the event is cleared, which used to wipe it out."""
    ticker, store, event = prepare([None] * 5)

    def stop() -> None:
        if store.ticks == 1:
            ticker._stopped = True
            event.set()

    event.on_clear = stop
    run(ticker)
    assert store.ticks == 1
    assert event.waits == [3600.0]


def test_waking_makes_it_look_again_and_stopping_ends_it() -> None:
    """The real event, with nothing due for an hour: only `wake` and `stop` can move it."""
    clock = FakeClock()
    looked = threading.Semaphore(0)

    class Store:
        """Counts its ticks."""

        def tick(self) -> int | None:
            """Nothing is due."""
            looked.release()
            return None

    store: Any = Store()
    ticker = Ticker(store, clock)
    ticker.start()
    for _ in range(3):
        assert looked.acquire(timeout=PATIENCE)
        ticker.wake()
    assert looked.acquire(timeout=PATIENCE)
    ticker.stop()
    assert not ticker._thread.is_alive()


def test_stopping_one_that_never_started_is_nothing() -> None:
    store: Any = FakeStore(FakeClock(), [])
    Ticker(store, FakeClock()).stop()


def test_an_error_that_nobody_foresaw_does_not_stop_it() -> None:
    told: list[Exception] = []
    ticker, store, event = prepare([1.0, 2.0])
    ticker._failed = told.append
    tick, broken = store.tick, RuntimeError("a defect")

    def fails_first() -> int | None:
        if not told:
            raise broken
        return tick()

    store.tick = fails_first  # type: ignore[method-assign]
    run(ticker)
    assert told == [broken]
    assert event.waits == pytest.approx([1.0, 1.0, 2.0])
