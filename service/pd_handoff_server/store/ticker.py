"""The timer: ends what is overdue without any traffic."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pd_handoff_server.lifecycle.clock import Clock

from .interface import Store

_LONGEST = 3600.0
_AFTER_FAILURE = 1.0


class Ticker:
    """A thread that calls `store.tick` when something is due, and sleeps until then."""

    def __init__(self, store: Store, clock: Clock, failed: Callable[[Exception], None] = lambda _: None) -> None:
        """`failed` is told of errors that nobody foresaw; the timer goes on, since without it nothing would expire."""
        self._failed = failed
        self._store = store
        self._clock = clock
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pd-handoff-ticker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something is due earlier than it was: look again."""
        self._wake.set()

    def stop(self) -> None:
        """End, and wait for the end."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopped:  # looked at after clearing, so that no stop is slept over
                return
            try:
                due = self._store.tick()
            except Exception as error:
                self._failed(error)
                self._wake.wait(_AFTER_FAILURE)
                continue
            wait = _LONGEST if due is None else min((due - self._clock.monotonic()) / 1e9, _LONGEST)
            if wait > 0:
                self._wake.wait(wait)
