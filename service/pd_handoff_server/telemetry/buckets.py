"""Histograms of durations, counted in plain integers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

_SECOND = 1_000_000_000


class Buckets:
    """Durations in nanoseconds by upper bound. Not thread-safe: whoever counts holds a lock.

    Attributes:
        bounds: upper bounds in nanoseconds, rising.
        counts: one a bound, and one for what lies above all.
        total: nanoseconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, seconds: Sequence[float]) -> None:
        """Upper bounds in seconds."""
        self.bounds = [round(bound * _SECOND) for bound in seconds]
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0

    def add(self, duration: int) -> None:
        """Count a duration of so many nanoseconds."""
        self.counts[bisect_left(self.bounds, duration)] += 1
        self.total += duration

    def add_all(self, durations: Sequence[int]) -> None:
        """Count many."""
        bounds, counts = self.bounds, self.counts
        for index, number in Counter(bisect_left(bounds, duration) for duration in durations).items():
            counts[index] += number
        self.total += sum(durations)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound in seconds as text, how many lie at or below it), ending with +Inf."""
        found, below = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            found.append((f"{bound / _SECOND:g}", float(below)))
        return [*found, ("+Inf", float(below + self.counts[-1]))]

    @property
    def seconds(self) -> float:
        """All durations together."""
        return self.total / _SECOND
