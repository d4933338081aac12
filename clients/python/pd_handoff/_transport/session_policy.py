"""When calls go over a Session, and when each goes alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from pd_handoff import errors

SessionMode: TypeAlias = Literal["auto", "always", "never"]

FEW = 8
"""Calls that a client makes alone before it opens a stream for the rest."""
PROBE_SECONDS = 2.0
"""For a stream's first answer: a proxy that holds streams back would otherwise hold calls back."""
_LONG = 60.0  # seconds; a stream that lasted so long was no victim of a proxy's dislike
_TOLERATED = 2  # short-lived streams in a row: stores restart, too
_SOON, _LATER, _LATEST, _MUCH_LATER = 0.5, 5.0, 600.0, 300.0


def check_mode(mode: str) -> None:
    """Raises ValueError."""
    if mode not in get_args(SessionMode):
        raise ValueError(f"session must be one of {', '.join(get_args(SessionMode))}, is {mode!r}")


class Adaptive:
    """What one client has learned about streams to its store. Approximate between threads, which harms nothing."""

    def __init__(self, mode: SessionMode, *, differs: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`differs`: each call may carry metadata of its own."""
        self.always = mode == "always"
        self._never = mode == "never" or (differs and not self.always)
        self._clock = clock
        self._calls = 0
        self._not_before = 0.0
        self._pause = _LATER
        self._short = 0

    def wants(self) -> bool:
        """Whether the call at hand should open a stream."""
        if self.always or self._never:
            return self.always
        self._calls += 1
        return self._calls > FEW and self._clock() >= self._not_before

    def opened(self) -> None:
        """A stream works."""
        if not self._short:
            self._pause = _LATER

    def refused(self, error: errors.HandoffError) -> None:
        """A stream did not come about."""
        if isinstance(error, errors.NotAStore):
            self._wait(_MUCH_LATER)  # no Session there; perhaps after an upgrade
        elif isinstance(error, (errors.StoreUnavailable, errors.Draining)):
            self._wait(_SOON)  # says nothing about streams
        else:
            self._back_off()

    def ended(self, lived: float) -> None:
        """A working stream ended by itself after `lived` seconds."""
        self._short = self._short + 1 if lived < _LONG else 0
        if self._short > _TOLERATED:
            self._back_off()

    def _back_off(self) -> None:
        self._wait(self._pause)
        self._pause = min(self._pause * 2, _LATEST)

    def _wait(self, seconds: float) -> None:
        self._not_before = self._clock() + seconds
