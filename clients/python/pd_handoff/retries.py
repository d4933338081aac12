"""When to ask again, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pd_handoff import errors

# An attempt that lasted longer than a connection takes to fail was in the store's hands: the outage before it is over.
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Retries:
    """How a call outlives a store that is away for a moment. Every call can be repeated: its owner, token or reader
    makes it idempotent. Retried are: no answer (StoreUnavailable), Draining and EngineUnreachable; nothing else unless
    named in `also`.

    Attributes:
        total_seconds: how long the store may be away; 0 switches retries off.
        initial_backoff: seconds before the first repetition; each further one waits `multiplier` times longer.
        max_backoff: the longest pause in seconds; what the store suggests is honoured beyond it.
        multiplier: at least 1.
        jitter: share of each pause that is random, 0 to 1, so that clients do not come back in step.
        also: further reasons to retry, such as `ARENA_FULL`; prefer `max_wait`, with which the store keeps a fair
            queue.
    """

    total_seconds: float = 10.0
    initial_backoff: float = 0.05
    max_backoff: float = 1.0
    multiplier: float = 2.0
    jitter: float = 0.2
    also: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises ValueError for values out of bounds."""
        if not (self.total_seconds >= 0 and 0 < self.initial_backoff <= self.max_backoff):
            raise ValueError("Retries: total_seconds must not be negative, 0 < initial_backoff <= max_backoff")
        if not (self.multiplier >= 1 and 0 <= self.jitter <= 1):
            raise ValueError("Retries: multiplier must be at least 1, jitter between 0 and 1")


NO_RETRIES = Retries(total_seconds=0)


class Outage:
    """The budget of one call: how long to pause before it is tried again, if at all."""

    __slots__ = ("_backoff", "_random", "_retries", "_since")

    def __init__(self, retries: Retries, random_share: Callable[[], float] = random.random) -> None:
        self._retries = retries
        self._backoff = retries.initial_backoff
        self._since: float | None = None
        self._random = random_share

    def wants(self, error: errors.HandoffError) -> bool:
        """True when `error` is of a kind that is retried at all."""
        return (
            isinstance(error, (errors.StoreUnavailable, errors.Draining, errors.EngineUnreachable))
            or error.reason in self._retries.also
        )

    def pause(self, error: errors.HandoffError, began: float, now: float) -> float | None:
        """Seconds to wait after an attempt from `began` to `now` ended in `error`; None when it is final."""
        retries = self._retries
        if retries.total_seconds <= 0 or not self.wants(error):
            return None
        if self._since is None or now - began > max(retries.total_seconds, CONNECT_SECONDS + 1):
            self._since = now
            self._backoff = retries.initial_backoff
        pause = self._backoff * (1 - retries.jitter * self._random())
        self._backoff = min(self._backoff * retries.multiplier, retries.max_backoff)
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if now + pause <= self._since + retries.total_seconds else None
