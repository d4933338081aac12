"""Tables for people, JSON for scripts."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pd_handoff.record import Record


def plain(value: Any) -> Any:
    """What JSON can hold: dataclasses as objects, enums by name, times in ISO 8601, bytes as hex, records in their own
    form."""
    if isinstance(value, Record):
        return json.loads(value.to_json(indent=None))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def show_json(value: Any) -> None:
    """Prints one JSON document."""
    print(json.dumps(plain(value), indent=2))


def show_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Prints one line a name and value."""
    rows = [(name, cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())


def show_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints aligned columns; numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    lines = [list(head), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    right = [bool(cells) and all(_numeric(line[index]) for line in cells) for index in range(len(head))]
    for line in lines:
        parts = [
            f"{text:>{width}}" if is_right else f"{text:<{width}}"
            for text, width, is_right in zip(line, widths, right, strict=True)
        ]
        print("  ".join(parts).rstrip())


def cell(value: Any) -> str:
    """One value as short text; control characters shown, not sent to the terminal."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(plain(value)) if not isinstance(value, str) else value
    return text if text.isprintable() else ascii(text)[1:-1]


def _numeric(text: str) -> bool:
    return text == "-" or text.lstrip("-").replace(".", "", 1).isdecimal()


def size(count: int) -> str:
    """Bytes, and for people a rounded unit beside them."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count} ({count / 1024**power:.1f} {unit})"
    return str(count)


def number(value: float) -> str:
    """A number for people: thousands set apart, a decimal where it is small."""
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Seconds for people, in the unit that fits: µs, ms, s, min, h or d."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "longer"
    if seconds <= 0:
        return "0 s"
    for limit, factor, unit in ((0.001, 1e6, "µs"), (1.0, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min")):
        if seconds < limit:
            return f"{_short(seconds * factor)} {unit}"
    if seconds < 172_800:
        return f"{_short(seconds / 3600)} h"
    return f"{_short(seconds / 86_400)} d"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
