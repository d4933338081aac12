"""The alarm's lock is free again, wherever an interrupt hits its caller."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Iterator

import pytest
from pd_handoff._transport.watchdog import Alarm

from tests.support.waits import PATIENCE


class Sleeper:
    """Never blocks."""

    deadline = math.inf

    def wake(self) -> None:
        """See Wakeable."""


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


def interrupt(*_: object) -> None:
    """A handler of a signal."""
    raise Interrupted


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGALRM interrupts."""
    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_leaves_no_lock_behind(interrupts: None) -> None:
    alarm, sleeper = Alarm(), Sleeper()
    for _ in range(2000):
        with contextlib.suppress(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            while True:  # ends with the interrupt
                alarm.watch(sleeper)
                alarm.forget(sleeper)
    other = threading.Thread(target=alarm.watch, args=(sleeper,), daemon=True)
    other.start()
    other.join(PATIENCE)
    assert not other.is_alive()
