"""Which prefill of a room it is, without a number on the way from one side to the other."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pd_handoff.errors import HandoffAborted, HandoffError, StaleReservation
from pd_handoff.model import Failure, Key

REMEMBERED = 65_536  # rooms; SGLang's router draws a new one for each request, so only retracted requests come back
STEP = 2  # the attempt below each but the first is left free, for the fence in front of it
CATCH_UP = 64  # times that a prefill that has forgotten goes one on; each is one more retraction of one request

FENCE = Failure(409, "SUPERSEDED", "decode waits for a later prefill of this room")


class Attempts:
    """Counts how often a room was begun: 0, then STEP more each time it is begun again after it was over.

    SGLang sends a retracted request back to its prefill under the same room. Decode, which has had the record before,
    knows which attempt that was, and asks for a later one. Prefill counts too, but need not be believed: it may have
    restarted, or be another. So decode first puts up a fence: it aborts the attempt just below the one that it asks
    for, with the reason FENCE. A prefill that comes with that attempt or a lower one is refused by the store, and goes
    on counting until it is not (see `is_behind`). An engine that has a number of its own gives that instead."""

    def __init__(self) -> None:
        self._turns: OrderedDict[Key, tuple[int, bool]] = OrderedDict()  # attempt, over
        self._lock = threading.Lock()  # the scheduler's thread and the courier's

    def begin(self, key: Key, attempt: int | None = None) -> int:
        """The attempt that starts, or goes on, now."""
        with self._lock:
            known, over = self._turns.pop(key, (-STEP, True))
            if attempt is None:
                attempt = known + STEP if over else known
            self._turns[key] = (attempt, False)
            if len(self._turns) > REMEMBERED:
                self._turns.popitem(last=False)
        return attempt

    def end(self, key: Key, attempt: int | None = None) -> None:
        """The present attempt is over: it was published, read, aborted or dropped. `attempt` is the one that it turned
        out to be: a reader may get a later one than it asked for, and a request may end before it has begun here."""
        with self._lock:
            known, _ = self._turns.get(key, (-1, True))
            if attempt is not None or known >= 0:
                self._turns[key] = (max(known, attempt or 0), True)
                if len(self._turns) > REMEMBERED:
                    self._turns.popitem(last=False)

    def current(self, key: Key) -> int:
        """The attempt that was begun last; 0 for a room never seen."""
        return self._turns.get(key, (0, True))[0]

    def upcoming(self, key: Key) -> int:
        """The attempt that is under way, or else would be begun next."""
        known, over = self._turns.get(key, (-STEP, True))
        return known + STEP if over else known


def is_behind(error: HandoffError) -> bool:
    """Whether a prefill was refused because its attempt lies behind what decode waits for: then a later one is right.
    One that another prefill has overtaken, which is still live, is not meant."""
    if isinstance(error, HandoffAborted):
        return error.failure.reason == FENCE.reason
    return isinstance(error, StaleReservation) and error.metadata.get("state") not in ("RESERVED", "PUBLISHED")
