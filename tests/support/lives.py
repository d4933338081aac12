"""What the life cycle knows of a reservation, for tests that look behind the store's answers."""

from __future__ import annotations

from typing import Any

from pd_handoff_server.lifecycle import Handoff, Lifecycle
from pd_handoff_server.store.interface import Reserved


def live(lifecycle: Lifecycle, reserved: Any) -> Handoff:
    """The live hand-off that a Reserve has answered with."""
    assert isinstance(reserved, Reserved), reserved
    (handoff,) = (one for one in lifecycle.handoffs() if one.token == reserved.token)
    return handoff
