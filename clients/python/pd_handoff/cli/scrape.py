"""The store's Prometheus metrics, fetched and read: gauges, counters, and quantiles between two scrapes."""

from __future__ import annotations

import http.client
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field

_LARGEST = 16 << 20  # bytes; a store's page has some 50 KiB
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PREFIX = "pd_handoff_"
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = frozenset[tuple[str, str]]
Bucket = tuple[float, float]


class ScrapeError(Exception):
    """The metrics could not be had; the message says from where and why."""


@dataclass(frozen=True)
class Scrape:
    """One reading of a store's series, without the prefix `pd_handoff_`."""

    series: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """The sum of the series of this name that have these labels; 0 when there is none."""
        wanted = set(labels.items())
        return sum(value for known, value in self.series.get(name, {}).items() if wanted <= known)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The same, by the values of one label."""
        found: dict[str, float] = {}
        for known, value in self.series.get(name, {}).items():
            key = dict(known).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def label(self, name: str, label: str) -> str:
        """The value of a label of a series that is there once, such as that of `info`; empty when there is none."""
        return next(iter(self.by(name, label)), "")

    def buckets(self, name: str) -> list[Bucket]:
        """(upper bound, how many lie at or below it) of a histogram, rising."""
        found = self.by(name + "_bucket", "le")
        return sorted((float(bound), count) for bound, count in found.items())


def read(text: str) -> Scrape:
    """Reads Prometheus' text format; series of others, comments and timestamps are left out. Raises ScrapeError when
    nothing of a store is in it."""
    series: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        key = frozenset((label, _unescaped(text)) for label, text in _LABEL.findall(labels or ""))
        series.setdefault(name.removeprefix(_PREFIX), {})[key] = value
    if not series:
        raise ScrapeError("no series of a pd-handoff store")
    return Scrape(series)


def fetch(url: str, seconds: float) -> Scrape:
    """Reads the metrics at a URL, directly and not through a proxy. Raises ScrapeError."""
    if not url.startswith(("http://", "https://")):
        raise ScrapeError(f"--metrics must be http://HOST:PORT/metrics, not {url!r}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=seconds) as answer:
            raw = answer.read(_LARGEST)
        return read(raw.decode("utf-8", "replace"))
    except ScrapeError as error:
        raise ScrapeError(f"{url}: {error}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ScrapeError(f"{url}: {reason}") from None


def since(now: Iterable[Bucket], before: Iterable[Bucket]) -> list[Bucket]:
    """The buckets of what came between two readings."""
    known = dict(before)
    return [(bound, count - known.get(bound, 0.0)) for bound, count in now]


def quantile(buckets: list[Bucket], share: float) -> float | None:
    """The value below which a share of the durations lies, by a straight line within its bucket; infinity when it lies
    above the last bound, None when there are no durations."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return math.inf
            return low + (bound - low) * ((rank - below) / (count - below) if count > below else 1.0)
        low, below = bound, count
    return math.inf


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)
