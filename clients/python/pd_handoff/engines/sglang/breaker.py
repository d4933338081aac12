"""So that a store that is away costs a scheduler's loop one wait, not one a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pd_handoff.errors import DeadlineExceeded, Draining, HandoffError, StoreUnavailable

log = logging.getLogger(__name__)
AWAY = (StoreUnavailable, DeadlineExceeded, Draining)


class Breaker:
    """Lets calls through while the store answers. After one that got no answer, the next fail at once for `pause`
    seconds; then the first asks with `probe` whether the store is back.

    Args:
        probe: a call of its own that costs little and ends soon; raises a HandoffError as long as the store is away.
        pause: seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self, probe: Callable[[], object], *, pause: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._pause = pause
        self._clock = clock
        self._since = self._until = 0.0
        self._open = False

    @property
    def away(self) -> bool:
        """True while calls fail at once."""
        return self._open and self._clock() < self._until

    def check(self) -> None:
        """Raises StoreUnavailable at once, or after the probe, while the store is away."""
        if not self._open:
            return
        now = self._clock()
        if now < self._until:
            raise StoreUnavailable(self._text(now))
        try:
            self._probe()
        except AWAY as error:
            self._until = self._clock() + self._pause
            raise StoreUnavailable(self._text(self._clock())) from error
        except HandoffError as error:  # whatever it thinks of the probe, it answers
            log.debug("the probe was refused: %s", error)
        except Exception as error:  # none was made: the call itself will say why
            log.warning("the store could not be probed: %s", error)
        log.warning("the store answers again, after %.1f s", self._clock() - self._since)
        self._open = False

    def note(self, error: HandoffError) -> None:
        """What a call ended with: no answer opens the breaker."""
        if not isinstance(error, AWAY):
            return
        now = self._clock()
        if not self._open:
            self._open, self._since = True, now
            log.warning("the store does not answer (%s); failing at once for %.1f s at a time", error, self._pause)
        self._until = now + self._pause

    def _text(self, now: float) -> str:
        return (
            f"the store has not answered for {now - self._since:.1f} s; it is asked again in "
            f"{max(self._until - now, 0.0):.1f} s"
        )
