"""Time that only a test moves."""

from __future__ import annotations

_SECOND = 1_000_000_000
_START = 1_700_000_000 * _SECOND


class FakeClock:
    """Both clocks of the rules (nanoseconds), standing still until `advance`."""

    def __init__(self) -> None:
        self._passed = 0
        self._wall_shift = 0

    def monotonic(self) -> int:
        """Nanoseconds since a fixed moment."""
        return 1_000 * _SECOND + self._passed

    def wall(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return _START + self._passed + self._wall_shift

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._passed += round(seconds * _SECOND)

    def shift_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP would."""
        self._wall_shift += round(seconds * _SECOND)
