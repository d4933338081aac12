"""Which hand-offs this process takes part in.

The KV cache of a hand-off can be fetched once. Prefill frees its blocks after that, so a second fetch would read those
of another request."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from pd_handoff.handoff import Handoff
from pd_handoff.model import Key

KEPT_SECONDS = 660.0  # longer than any store serves a record that was consumed
MOST_KEPT = 100_000


class Taken:
    """The rooms that requests of this process are in, and the records that they took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._live: set[Key] = set()
        self._records: OrderedDict[tuple[Key, str, int], float] = OrderedDict()

    def enter(self, key: Key) -> bool:
        """False where another request of this process is in that room."""
        if key in self._live:
            return False
        self._live.add(key)
        return True

    def leave(self, key: Key) -> None:
        """The request is over, or has its record."""
        self._live.discard(key)

    def first(self, key: Key, handoff: Handoff) -> bool:
        """Whether this record comes for the first time."""
        now = self._clock()
        while self._records:
            oldest = next(iter(self._records))
            if len(self._records) < MOST_KEPT and self._records[oldest] > now - KEPT_SECONDS:
                break
            del self._records[oldest]
        published = handoff.published_at
        record = (key, handoff.store_epoch, round(published.timestamp() * 1e6))
        if record in self._records:
            return False
        self._records[record] = now
        return True
