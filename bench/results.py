"""What was measured: rows of repeated values, told as median and spread."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One measure of one subject, once a round."""

    section: str
    subject: str
    measure: str
    unit: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles; with fewer than four values the least and the greatest."""
        if len(self.values) < 4:
            return min(self.values), max(self.values)
        low, _, high = statistics.quantiles(self.values, n=4)
        return low, high


class Report:
    """Rows by section, subject and measure, and what is missing.

    Attributes:
        missing: peers that are not installed, with what to do.
        bars: (bar, limit, measured, verdict) of the comparisons that have one.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        """`about` the machine and the versions."""
        self.about = about
        self.missing: list[str] = []
        self.bars: list[dict[str, Any]] = []
        self._rows: dict[tuple[str, str, str], Row] = {}

    def add(self, section: str, subject: str, measure: str, unit: str, *values: float) -> None:
        """Note values of one more round."""
        key = (section, subject, measure)
        row = self._rows.setdefault(key, Row(section, subject, measure, unit))
        row.values.extend(values)

    def lacks(self, what: str) -> None:
        """Note that something could not be measured, once."""
        if what not in self.missing:
            self.missing.append(what)

    def row(self, section: str, subject: str, measure: str) -> Row | None:
        """One row, if it was measured."""
        return self._rows.get((section, subject, measure))

    def ratios(self, over: tuple[str, str, str], under: tuple[str, str, str]) -> list[float]:
        """Round by round, so that a slow spell of the machine hits both; empty when one is missing."""
        above, below = self.row(*over), self.row(*under)
        if above is None or below is None:
            return []
        return [a / b for a, b in zip(above.values, below.values, strict=False) if b]

    def table(self, section: str) -> str:
        """The rows of a section as a Markdown table: subjects down, measures across."""
        rows = [row for row in self._rows.values() if row.section == section]
        measures = list(dict.fromkeys((row.measure, row.unit) for row in rows))
        subjects = list(dict.fromkeys(row.subject for row in rows))
        lines = [
            "| | " + " | ".join(f"{measure}, {unit}" for measure, unit in measures) + " |",
            "|---" * (len(measures) + 1) + "|",
        ]
        for subject in subjects:
            cells = []
            for measure, _ in measures:
                row = self.row(section, subject, measure)
                cells.append("" if row is None else cell(row))
            lines.append(f"| {subject} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def sections(self) -> list[str]:
        """In order of measuring."""
        return list(dict.fromkeys(row.section for row in self._rows.values()))

    def save(self, path: Path) -> None:
        """Write all as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(row), "median": row.median, "spread": row.spread} for row in self._rows.values()]
        whole = {"about": self.about, "bars": self.bars, "missing": self.missing, "rows": rows}
        path.write_text(json.dumps(whole, indent=1) + "\n")


def cell(row: Row) -> str:
    """Median and spread."""
    low, high = row.spread
    if len(row.values) == 1:
        return number(row.median)
    return f"{number(row.median)} ({number(low)} to {number(high)})"


def number(value: float) -> str:
    """Three digits that count, with separators."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def micros(seconds: Iterable[float]) -> list[float]:
    """Seconds as microseconds."""
    return [value * 1e6 for value in seconds]
