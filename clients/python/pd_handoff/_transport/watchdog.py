"""Deadlines of threads that block where no timeout can be given. One thread a process keeps them, and sleeps through
deadlines that were met: a call costs it nothing."""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Protocol

_LINGER = 5.0  # seconds that it stays ready after the last call, so that the next need not wake it


class Wakeable(Protocol):
    """What blocks, at times.

    Attributes:
        deadline: until when, in `time.monotonic` seconds; infinite while it does not.
    """

    deadline: float

    def wake(self) -> None:
        """Must return soon."""


class Alarm:
    """Wakes what is still blocked at its deadline, in `time.monotonic` seconds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new, without its thread: for a child process."""
        # Taken by itself: the `with` of a condition is Python code, in which an interrupt can leave its lock held.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._watched: weakref.WeakSet[Wakeable] = weakref.WeakSet()
        self._wakes = math.inf  # when the thread looks next
        self._used = False
        self._thread: threading.Thread | None = None

    def watch(self, who: Wakeable) -> None:
        """From now on, as long as it is there or until `forget`."""
        with self._lock:
            self._watched.add(who)

    def forget(self, who: Wakeable) -> None:
        """It will not block again."""
        with self._lock:
            self._watched.discard(who)

    def expect(self, deadline: float) -> None:
        """To be told whenever one of those that are watched has been given a deadline."""
        self._used = True
        if deadline < self._wakes:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="pd-handoff-alarm", daemon=True)
                    self._thread.start()
                self._condition.notify()

    def _run(self) -> None:
        with self._lock:
            while True:  # a daemon: ends with the process
                self._wakes = math.inf  # whoever comes from here on, before the end of the scan, notifies
                now = time.monotonic()
                nearest = now + _LINGER if self._used else math.inf
                self._used = False
                for who in list(self._watched):
                    deadline = who.deadline
                    if deadline <= now:
                        who.wake()
                        # Again soon, should the one who woke not be the one that is late.
                        deadline = now + 0.01
                    nearest = min(nearest, deadline)
                self._wakes = nearest
                self._condition.wait(None if nearest == math.inf else max(nearest - time.monotonic(), 0.0))
