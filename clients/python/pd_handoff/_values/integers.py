"""What is wrong with a number that must be an unsigned integer, in words."""

from __future__ import annotations

import operator
from typing import Any

_SHOWN = 40  # characters of a wrong value that a message repeats


def unfit(value: Any, bits: int) -> str | None:
    """Why `value` is no unsigned integer of so many bits; None when it is one. A bool is none."""
    try:
        if not isinstance(value, bool) and 0 <= operator.index(value) < 1 << bits:
            return None
    except (TypeError, ValueError):  # no integer; an array of several
        pass
    return f"must be an integer from 0 to 2**{bits} - 1, not {shown(value)}"


def shown(value: Any) -> str:
    """A wrong value for a message, and its type where that may be what is wrong."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return text if type(value) is int or value is None else f"{text} ({type(value).__name__})"
