"""Waiting for something that has no event of its own to wait for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

SCALE = float(os.environ.get("PD_HANDOFF_TEST_PATIENCE", "1"))
"""All deadlines of tests are multiplied by this: more than 1 for a busy machine, or one that is slowed by a tool."""


def patient(deadline: float) -> float:
    """A deadline (seconds) as this machine needs it."""
    return deadline * SCALE


PATIENCE = patient(25.0)
"""Seconds after which a test gives up on what should have come at once; far above what any busy machine needs."""


def eventually(holds: Callable[[], bool], what: str, patience: float = PATIENCE, *, every: float = 0.002) -> None:
    """Look again `every` so many seconds until `holds`. Raises AssertionError, naming `what`, after `patience`
    seconds."""
    until = time.monotonic() + patience
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < until, f"not within {patience:g} s: {what}"
        pause.wait(every)


def at_once(result: object) -> None:
    """The completion of a call that the embedded store answers without parking it."""
    raise AssertionError(f"answered late: {result}")
