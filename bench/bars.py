"""The bars: what each comparison has to come to, and what it came to in this run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .results import Report, Row, cell
from .sections import batches, blocking, growth, h2load, handoff, load, memory

Rows = tuple[str, str, str]


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        name: what is compared.
        limit: to be reached (`at_least`) or not to be passed.
        values: the ratios, or plain values, of this run, a round each; empty when not measured.
    """

    name: str
    limit: float
    values: Callable[[Report], list[float]]
    at_least: bool = False


def _ratio(over: Rows, under: Rows) -> Callable[[Report], list[float]]:
    return lambda report: report.ratios(over, under)


def _plain(row: Rows) -> Callable[[Report], list[float]]:
    def values(report: Report) -> list[float]:
        found = report.row(*row)
        return [] if found is None else found.values

    return values


def _pairs(section: str, measure: str, over: str, under: str, limit: float, *, at_least: bool = False) -> list[Bar]:
    """Put and Get of two subjects; `measure` is what follows the method's name."""
    found = []
    for method in ("Put", "Get"):
        named = method if section.startswith("load") else method.lower()
        row = f"{named} {measure}".rstrip()
        name = f"{row}: {over} / {under}"
        found.append(Bar(name, limit, _ratio((section, over, row), (section, under, row)), at_least))
    return found


def _h2load(method: str, measure: str, under: str) -> tuple[Rows, Rows]:
    section = h2load.SECTIONS[method]
    return (section, "store fast", measure), (section, under, measure)


def bars() -> list[Bar]:
    """All of them."""
    plain, redis, popped = "stub as installed, plain grpc.aio echo", "Redis", "Redis, RPUSH and BLPOP"
    in_batches, parked = batches.section(batches.BESIDE), handoff.PUT_TO_GET
    cpu, both = "server CPU a Put", "put and get"
    return [
        *_pairs(load.SECTION, "calls", "store fast", "echo aio", 3.0, at_least=True),
        *_pairs(load.SECTION, "server CPU", "store fast", "echo aio", 1 / 3),
        *_pairs(load.SECTION, "calls", "store fast", "echo fast", 0.75, at_least=True),
        *(
            Bar(
                f"h2load, {method} {measure}: store fast / {echo}",
                limit,
                _ratio(*_h2load(method, measure, echo)),
                at_least,
            )
            for method in h2load.SECTIONS
            for measure, echo, limit, at_least in (
                ("calls", "echo aio", 3.0, True),
                ("server CPU", "echo aio", 1 / 3, False),
                ("calls", "echo fast", 0.75, True),
            )
        ),
        Bar(
            "Put and Get in batches of 32 / unary calls, one in flight, records/s",
            10.0,
            _ratio((in_batches, "client, store fast", both), (in_batches, batches.UNARY, both)),
            True,
        ),
        *_pairs(blocking.SECTION, "p50", "client, Session", plain, 0.4),
        *_pairs(blocking.SECTION, "p50", "client as installed, Session", plain, 0.4),
        *_pairs(blocking.SECTION, "p50", "client, unary", plain, 0.4),
        *_pairs(blocking.SECTION, "p50", "stub, store fast", plain, 0.4),
        *(
            bar
            for how in ("client, Session", "client, unary", "stub, store fast")
            for bar in _pairs(blocking.SECTION, "p50", how, "stub, gRPC C++", 1.5)
        ),
        *_pairs(blocking.SECTION, "p50", "client, unary", redis, 2.0),
        *_pairs(blocking.SECTION, "p50", "client, Session", redis, 1.0),
        *(
            bar
            for how in ("client, Session, TCP", "client, unary, TCP")  # as these peers
            for peer in ("etcd", "mooncake")
            for bar in _pairs(blocking.SECTION, "p50", how, peer, 1.0)
        ),
        Bar(
            f"Put to the answer of a waiting Get, p50: client, Session / {popped}",
            1.2,
            _ratio((parked, "client, Session", "p50"), (parked, popped, "p50")),
        ),
        *_pairs(in_batches, "", "client, store fast", "Redis pipeline", 1.0, at_least=True),
        *_pairs(in_batches, "", "stub, store fast", batches.PLAIN, 2.0, at_least=True),
        *(
            Bar(f"{method}, switches a call, {how}", limit, _plain((section, "store fast", f"{method} switches")))
            for method in ("Put", "Get")
            for section, how, limit in ((load.ONE, "one in flight", 1.5), (load.SECTION, "64 in flight", 0.3))
        ),
        *(
            Bar(f"{cpu}: {many} / {few}", 1.1, _ratio((section, many, cpu), (section, few, cpu)))
            for section, few, large in (
                (growth.ROWS, "1,024 rows", ("65,536 rows", "8,192 rows")),
                (growth.BURSTS, "64 rows", ("65,536 rows", "8,192 rows")),
                (growth.PARKED, "0 waiting", ("10,000 waiting", "1,000 waiting")),
            )
            for many in large
        ),
        Bar(
            "idle memory above arena and imports, MiB",
            16.0,
            _plain((memory.SECTION, "store of 8,192 rows", "above arena and floor")),
        ),
    ]


def judge(report: Report) -> str:
    """Note all bars that were measured in the report; returns them as a Markdown table."""
    lines = ["| bar | limit | measured, median (quartiles) | |", "|---|---|---|---|"]
    for bar in bars():
        values = bar.values(report)
        if not values:
            continue
        row = Row("", "", "", "", values)
        met = row.median >= bar.limit if bar.at_least else row.median <= bar.limit
        limit = f"{'at least' if bar.at_least else 'at most'} {bar.limit:.3g}"
        verdict = "met" if met else "not met"
        report.bars.append({"bar": bar.name, "limit": limit, "measured": row.median, "verdict": verdict})
        lines.append(f"| {bar.name} | {limit} | {cell(row)} | {verdict} |")
    return "\n".join(lines)
