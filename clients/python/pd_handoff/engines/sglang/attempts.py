"""Which prefill of a room this is, counted alike on both sides."""

from __future__ import annotations

from collections import OrderedDict

from pd_handoff.model import Key

REMEMBERED = 65_536  # rooms; SGLang's router draws a new one for each request, so only retracted requests come back


class Attempts:
    """Counts how often a room was begun: 0, then one more each time it is begun again after it was over.

    SGLang sends a retracted request back to its prefill under the same room, so both sides see the same turns and
    need no number of their own on the way. An engine that has one gives it instead."""

    def __init__(self) -> None:
        self._turns: OrderedDict[Key, tuple[int, bool]] = OrderedDict()  # attempt, over

    def begin(self, key: Key, attempt: int | None = None) -> int:
        """The attempt that starts, or goes on, now."""
        known, over = self._turns.pop(key, (-1, True))
        if attempt is None:
            attempt = known + 1 if over else known
        self._turns[key] = (attempt, False)
        if len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)
        return attempt

    def end(self, key: Key) -> None:
        """The present attempt is over: it was published, read, aborted or dropped."""
        known, _ = self._turns.get(key, (-1, True))
        if known >= 0:
            self._turns[key] = (known, True)

    def current(self, key: Key) -> int:
        """The attempt that was begun last; 0 for a room never seen."""
        return self._turns.get(key, (0, True))[0]
