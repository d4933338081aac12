"""How many events per second may be written, so that no caller fills a disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Allowance:
    """A token bucket: `burst` at once, `rate` per second in the long run; counts what it holds back.

    Attributes:
        held_back: how many so far.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()
        self.held_back = 0
        self._reported = 0  # of them
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """How many were held back since the last one that passed; None: hold this one back too."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
            if self._left < 1:
                self.held_back += 1
                return None
            self._left -= 1
            news, self._reported = self.held_back - self._reported, self.held_back
            return news
