"""Time as the rules see it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in nanoseconds: one that only ever moves on, for deadlines, and one for people."""

    def monotonic(self) -> int:
        """Nanoseconds since some fixed moment; no change of the wall clock moves it."""

    def wall(self) -> int:
        """Nanoseconds since the Unix epoch."""


class SystemClock:
    """The machine's own clocks. `monotonic` is the same for every process until the machine restarts."""

    monotonic = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time_ns)
