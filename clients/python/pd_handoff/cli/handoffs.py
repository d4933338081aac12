"""Hand-offs as a table for people: `pd-handoff list` and `pd-handoff top` show the same columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pd_handoff.admin import HandoffInfo, HandoffState
from pd_handoff.cli import output

# Name, whether it is set to the right, and what it gives way for: the highest number goes first.
_COLUMNS = (
    ("NAMESPACE", False, 3),
    ("ROOM", True, 0),
    ("SAMPLE", True, 4),
    ("ATTEMPT", True, 5),
    ("STATE", False, 0),
    ("AGE", True, 0),
    ("EXPIRES", True, 1),
    ("SLOT", True, 6),
    ("READERS", True, 2),
    ("WAITING", True, 2),
    ("OWNER", False, 1),
)
_SHORTEST_OWNER = 8


@dataclass(frozen=True)
class Listed:
    """What a list adds up to.

    Attributes:
        states: how many in each state.
        waiting: Gets that wait for one of them.
        oldest: seconds since the oldest live one was reserved; None when there is none.
    """

    states: Counter[str]
    waiting: int
    oldest: float | None


def summed(found: Sequence[HandoffInfo]) -> Listed:
    """Adds up a list."""
    live = [info.age for info in found if info.slot is not None]
    return Listed(
        Counter(info.state.name for info in found), sum(info.waiting for info in found), max(live, default=None)
    )


def summary(found: Sequence[HandoffInfo], limit: int) -> str:
    """The line below the table."""
    total = summed(found)
    if not found:
        return "no hand-offs"
    parts = [f"{total.states[state.name]} {state.name.lower()}" for state in HandoffState if total.states[state.name]]
    line = f"{output.number(len(found))} hand-off{'s' * (len(found) != 1)}: {', '.join(parts)}"
    line += f"; {output.number(total.waiting)} waiting"
    if total.oldest is not None:
        line += f"; oldest {output.duration(total.oldest)}"
    return line + (f"; cut at --limit {limit}" if len(found) >= limit else "")


def table(found: Sequence[HandoffInfo], width: int | None = None) -> list[str]:
    """The lines, heading first. With a width, columns that matter least give way until they fit."""
    rows = [_row(info) for info in found]
    chosen = list(range(len(_COLUMNS)))
    if width is not None:
        order = sorted(chosen, key=lambda index: -_COLUMNS[index][2])
        while _width(chosen, rows) > width and _COLUMNS[order[0]][2]:
            chosen.remove(order.pop(0))
    return [line[:width] for line in _lines(chosen, rows)]


def _row(info: HandoffInfo) -> list[str]:
    return [
        output.cell(info.key.namespace or "-"),
        str(info.key.room),
        str(info.key.sample),
        str(info.attempt),
        info.state.name,
        output.duration(info.age),
        output.duration(info.expires_in),
        output.cell(info.slot),
        f"{info.readers_done}/{info.expected_readers}",
        str(info.waiting),
        output.cell(info.owner),
    ]


def _widths(chosen: Sequence[int], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([len(_COLUMNS[index][0]), *(len(row[index]) for row in rows)]) for index in chosen]


def _width(chosen: Sequence[int], rows: Sequence[Sequence[str]]) -> int:
    widths = _widths(chosen, rows)
    if _COLUMNS[chosen[-1]][0] == "OWNER":
        widths[-1] = min(widths[-1], _SHORTEST_OWNER)
    return sum(widths) + 2 * (len(widths) - 1)


def _lines(chosen: Sequence[int], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(chosen, rows)
    lines = [[_COLUMNS[index][0] for index in chosen], *([row[index] for index in chosen] for row in rows)]
    return [
        "  ".join(
            f"{text:>{width}}" if _COLUMNS[index][1] else f"{text:<{width}}"
            for text, width, index in zip(line, widths, chosen, strict=True)
        ).rstrip()
        for line in lines
    ]


SORTS = {
    "age": lambda info: -info.age,
    "expires": lambda info: info.expires_in,
    "waiting": lambda info: (-info.waiting, -info.age),
}
"""What a table may be sorted by."""
