"""The rules of a hand-off's life (contract section 4): pure Python with an injected clock; no memory, no transport."""

from .clock import Clock, SystemClock
from .machine import Lifecycle
from .model import (
    Failure,
    Handoff,
    Key,
    Observer,
    Outcome,
    Policy,
    Rows,
    Spec,
    State,
    Tombstone,
    reader_mark,
)
from .pages import Pages
from .quotas import Quotas
from .tokens import TokenMint

__all__ = [
    "Clock",
    "Failure",
    "Handoff",
    "Key",
    "Lifecycle",
    "Observer",
    "Outcome",
    "Pages",
    "Policy",
    "Quotas",
    "Rows",
    "Spec",
    "State",
    "SystemClock",
    "TokenMint",
    "Tombstone",
    "reader_mark",
]
