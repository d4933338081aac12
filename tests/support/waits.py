"""Waiting for something that has no event of its own to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 25.0
"""Seconds after which a test gives up on what should have come at once; far above what any busy machine needs."""


def eventually(holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Look again and again until `holds`. Raises AssertionError, naming `what`, after `patience` seconds."""
    until = time.monotonic() + patience
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < until, f"not within {patience:g} s: {what}"
        pause.wait(0.002)
