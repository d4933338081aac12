"""How large a value is, in words that show none of it."""

from __future__ import annotations

from typing import Any


def size_of(value: Any) -> str:
    """Such as `3 values`, `12 bytes`, `bfloat16(1, 4096)`; `...` for a single value; a part of a record by itself."""
    kind = type(value)
    if kind.__module__.startswith("pd_handoff.") and not hasattr(value, "__int__"):
        return repr(value)
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"{str(value.dtype).rpartition('.')[2]}{tuple(value.shape)}"
        if isinstance(value, (bytes, bytearray)):
            return f"{len(value)} bytes"
        if isinstance(value, memoryview):
            return f"{value.nbytes} bytes"
        return f"{len(value)} values"
    except Exception:  # a number, an iterator, or a foreign value that cannot say
        return "..."
