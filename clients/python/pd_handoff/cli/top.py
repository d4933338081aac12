"""`pd-handoff top`: a store at a glance, again and again."""

from __future__ import annotations

import argparse
import math
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pd_handoff.admin import HandoffInfo, HandoffState
from pd_handoff.capabilities import Capabilities
from pd_handoff.cli import connect, handoffs, output, scrape, screen
from pd_handoff.client import AdminClient
from pd_handoff.errors import HandoffError

HELP = "watch a store: slots, waits, rates, latencies, refusals, oldest hand-offs"
DESCRIPTION = """\
Watch a store live. Slots and the oldest hand-offs come from the store itself and need the role observer or admin.
Rates, latencies and refusals come from the store's metrics: start it with --metrics-listen, and give --metrics URL.
Without them, reserve to put is worked out from the hand-offs that are listed.

Keys: q quit, space pause, + and - change the interval, s sort, f filter by state, h help."""

_LEAST, _MOST = 0.5, 60.0
_BAR = 20
_FEW_FREE = 0.1
_WIDE = 100
_FILTERS: tuple[HandoffState | None, ...] = (
    None,
    HandoffState.RESERVED,
    HandoffState.PUBLISHED,
    HandoffState.CONSUMED,
)
_HELP = "q quit  space pause  + - interval  s sort  f filter  h help"
_LATENCIES = (("reserve to put", "reserve_to_put_seconds"), ("put to get", "put_to_get_seconds"))


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own options."""
    parser.add_argument("address", nargs="?", metavar="TARGET", help="host:port or unix:PATH (default: --target)")
    parser.add_argument("--metrics", metavar="URL", help="the store's metrics, such as http://127.0.0.1:9464/metrics")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between looks (default 2)")
    parser.add_argument("--count", type=int, metavar="N", help="end after N looks (default: at q)")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="hand-offs to list a look (default 1000)")


@dataclass(frozen=True)
class Look:
    """What one look found. What could not be had is None, with the reason in `troubles`.

    Attributes:
        at: seconds on a clock that only goes forward.
    """

    at: float
    capabilities: Capabilities | None = None
    found: list[HandoffInfo] | None = None
    metrics: scrape.Scrape | None = None
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """What the keys have set."""

    target: str
    interval: float
    sort: str = "age"
    state: HandoffState | None = None
    paused: bool = False
    helping: bool = False


@dataclass(frozen=True)
class Rates:
    """What happened a second between two looks; `buckets` by the name of a histogram, in seconds."""

    reserved: float
    published: float
    consumed: float
    ended: dict[str, float]
    refused: dict[str, float]
    buckets: dict[str, list[scrape.Bucket]] = field(default_factory=dict)


def run(args: argparse.Namespace) -> None:
    """Looks until it is ended. Raises HandoffError when the first look finds no store."""
    args.target = args.address or args.target
    if args.count is not None and args.count < 1:
        raise ValueError("--count must be at least 1")
    if not _LEAST <= args.interval <= _MOST:
        raise ValueError(f"--interval must be from {_LEAST:g} to {_MOST:g} seconds")
    with connect.client(AdminClient, args) as client:

        def look() -> Look:
            return take(client, args.metrics, args.limit, args.timeout)

        first = look()
        if first.capabilities is None:
            client.capabilities()  # raises what the look met
        if args.json:
            second = first
            if first.metrics is not None:
                time.sleep(args.interval)
                second = look()
            return output.show_json(as_dict(second, rates(first, second)))
        with screen.opened() as shown:
            watch(look, first, shown, View(args.target, args.interval), args.count)
    return None


def take(client: AdminClient, url: str | None, limit: int, seconds: float) -> Look:
    """One look at a store."""
    troubles: list[str] = []
    capabilities = found = metrics = None
    try:
        capabilities = client.capabilities()
        found = client.list_handoffs(limit=limit)
    except HandoffError as error:
        what = "the store" if capabilities is None else "the list of hand-offs"
        troubles.append(f"{what}: {error.reason}: {' '.join(error.message.split())}")
    if url is not None:
        try:
            metrics = scrape.fetch(url, seconds)
        except scrape.ScrapeError as error:
            troubles.append(f"metrics: {error}")
    return Look(time.monotonic(), capabilities, found, metrics, tuple(troubles))


def watch(look: Callable[[], Look], now: Look, shown: screen.Screen, view: View, count: int | None) -> None:
    """Draws until `q`, or `count` frames are drawn."""
    before, drawn = now, 1
    shown.show(frame(before, now, view, *shown.size()))
    while count is None or drawn < count:
        pressed = shown.key(math.inf if view.paused else now.at + view.interval - time.monotonic())
        if pressed == "q":
            return
        view = pressed_key(view, pressed)
        if not pressed:
            before, now, drawn = now, look(), drawn + 1
        shown.show(frame(before, now, view, *shown.size()))


def pressed_key(view: View, key: str) -> View:
    """The view after a key."""
    if key == " ":
        return replace(view, paused=not view.paused)
    if key in ("+", "="):
        return replace(view, interval=min(view.interval * 2, _MOST))
    if key == "-":
        return replace(view, interval=max(view.interval / 2, _LEAST))
    if key == "s":
        return replace(view, sort=_next(list(handoffs.SORTS), view.sort))
    if key == "f":
        return replace(view, state=_next(list(_FILTERS), view.state))
    if key in ("h", "?"):
        return replace(view, helping=not view.helping)
    return view


def _next(known: list[Any], now: Any) -> Any:
    return known[(known.index(now) + 1) % len(known)]


def rates(before: Look, now: Look) -> Rates | None:
    """What happened between two looks; None without metrics, at the first look, and across a restart."""
    if before.metrics is None or now.metrics is None or now.at <= before.at:
        return None
    old, new, seconds = before.metrics, now.metrics, now.at - before.at
    # A restart sets counters back to 0, with an arena file under the same epoch.
    if any(new.value(name) < old.value(name) for name in ("reserved_total", "calls_total")):
        return None

    def rate(name: str) -> float:
        return (new.value(name) - old.value(name)) / seconds

    def by(name: str, label: str) -> dict[str, float]:
        known = old.by(name, label)
        return {key: (value - known.get(key, 0.0)) / seconds for key, value in new.by(name, label).items()}

    # A batch is answered with OK; its items have the reasons.
    refused = by("calls_total", "reason")
    for reason, number in by("batch_items_total", "reason").items():
        refused[reason] = refused.get(reason, 0.0) + number
    refused.pop("OK", None)
    return Rates(
        rate("reserved_total"),
        rate("published_total"),
        rate("consumed_total"),
        by("ended_total", "outcome"),
        refused,
        {name: scrape.since(new.buckets(name), old.buckets(name)) for _, name in _LATENCIES},
    )


def as_dict(look: Look, found: Rates | None) -> dict[str, Any]:
    """One look for scripts; times in seconds, rates a second."""
    metrics = look.metrics
    result: dict[str, Any] = {"capabilities": look.capabilities, "troubles": look.troubles}
    if look.found is not None:
        total = handoffs.summed(look.found)
        result["listed"] = {"states": total.states, "waiting": total.waiting, "oldest_seconds": total.oldest}
        result["reserve_to_put_listed_seconds"] = dict(zip(("p50", "p99"), _listed_latency(look.found), strict=True))
        result["oldest"] = sorted(look.found, key=handoffs.SORTS["age"])[:20]
    if metrics is not None:
        result["slots"] = metrics.by("slots", "state")
        result["waiters"] = metrics.by("waiters", "kind")
    if found is not None:
        result["rates"] = {
            "reserved": found.reserved,
            "published": found.published,
            "consumed": found.consumed,
            "ended": found.ended,
            "refused": found.refused,
        }
        result["latency_seconds"] = {
            name: {"p50": scrape.quantile(buckets, 0.5), "p99": scrape.quantile(buckets, 0.99)}
            for name, buckets in found.buckets.items()
        }
    return result


def frame(before: Look, now: Look, view: View, width: int, height: int) -> list[str]:
    """The lines of one frame."""
    lines = [_head(now, view, width)]
    lines += [screen.styled(f"! {trouble}", "red") for trouble in now.troubles]
    if view.helping:
        return [*lines, "", *(part for text in DESCRIPTION.splitlines() for part in textwrap.wrap(text, width) or [""])]
    if now.capabilities is not None:
        found = rates(before, now)
        lines += [_slots(now, now.capabilities), _waits(now, now.capabilities)]
        lines += [*_rates(now, found), *_latencies(now, found), ""]
    if now.found is not None:
        chosen = [info for info in now.found if view.state is None or info.state is view.state]
        ordered = sorted(chosen, key=handoffs.SORTS[view.sort])
        head, *rows = handoffs.table(ordered[: max(height - len(lines) - 2, 1)], width)
        title = f"by {view.sort}" + (f", {view.state.name}" if view.state else "")
        lines += [screen.styled(f"{title}: {handoffs.summary(chosen, 1 << 62)}", "bold"), screen.styled(head, "dim")]
        lines += rows
    return lines[:height]


def _head(now: Look, view: View, width: int) -> str:
    parts = [f"pd-handoff top  {view.target}"]
    if now.capabilities is not None and width >= _WIDE:
        parts.append(f"version {now.capabilities.server_version}")
    if now.capabilities is not None:
        parts.append(f"epoch {now.capabilities.store_epoch[:8]}")
    if now.metrics is not None:
        parts.append("serving" if now.metrics.value("serving") else "NOT SERVING")
    parts.append("paused" if view.paused else f"every {view.interval:g} s")
    line = "  ".join(parts)
    hint = _HELP if len(line) + len(_HELP) + 2 <= width else "h help"
    return screen.styled(f"{line}{hint:>{max(width - len(line), len(hint) + 2)}}", "reverse")


def _slots(now: Look, capabilities: Capabilities) -> str:
    total, free = capabilities.slots_total, capabilities.slots_free
    used = total - free
    states: dict[str, float] = {}
    if now.metrics is not None:
        states = now.metrics.by("slots", "state")
        states.pop("free", None)
    elif now.found is not None and len(now.found) >= used:
        states = {name.lower(): count for name, count in handoffs.summed(now.found).states.items()}
    filled = round(_BAR * used / total) if total else 0
    bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
    text = f"{_name('slots')}{bar} {output.number(used)} of {output.number(total)} in use"
    shown = ", ".join(f"{output.number(count)} {name}" for name, count in states.items() if count)
    style = "red" if not free else "yellow" if free < _FEW_FREE * total else ""
    return screen.styled(text + (f": {shown}" if shown else ""), style)


def _waits(now: Look, capabilities: Capabilities) -> str:
    limit = f"of {output.number(capabilities.max_waiters)}"
    if now.metrics is not None:
        kinds = now.metrics.by("waiters", "kind")
        text = f"{output.number(kinds.get('record', 0))} for a record, {output.number(kinds.get('slot', 0))} for a slot"
        return f"{_name('waits')}{text}, {limit}"
    if now.found is not None:
        waiting = handoffs.summed(now.found).waiting
        return f"{_name('waits')}{output.number(waiting)} for a listed hand-off, {limit} (--metrics URL counts all)"
    return f"{_name('waits')}-"


def _rates(now: Look, found: Rates | None) -> list[str]:
    if now.metrics is None:
        return [f"{_name('rates')}need --metrics URL (start the store with --metrics-listen)"]
    if found is None:
        return [f"{_name('rates')}at the next look", f"{_name('refused')}at the next look"]
    text = "reserve {}/s  put {}/s  get {}/s".format(
        *(output.number(round(rate, 1)) for rate in (found.reserved, found.published, found.consumed))
    )
    ended = _by_rate({name: rate for name, rate in found.ended.items() if name != "completed"})
    lines = [f"{_name('rates')}{text}" + (f"  ended: {ended}" if ended else "")]
    refused = _by_rate(found.refused)
    since_start = now.metrics.by("calls_total", "reason") if now.metrics else {}
    total = sum(count for reason, count in since_start.items() if reason != "OK")
    return [*lines, f"{_name('refused')}{refused or 'none'} (since the store started: {output.number(total)})"]


def _by_rate(found: dict[str, float]) -> str:
    ordered = sorted(((rate, name) for name, rate in found.items() if rate > 0), reverse=True)
    return ", ".join(f"{name} {output.number(round(rate, 1))}/s" for rate, name in ordered)


def _latencies(now: Look, found: Rates | None) -> list[str]:
    if now.metrics is not None:
        lines = []
        for title, name in _LATENCIES:
            buckets, when = (found.buckets[name] if found else []), ""
            if scrape.quantile(buckets, 0.5) is None:
                buckets, when = now.metrics.buckets(name), "  since the store started"
            shown = [output.duration(scrape.quantile(buckets, share)) for share in (0.5, 0.99)]
            lines.append(f"{_name(title)}p50 {shown[0]:>8}  p99 {shown[1]:>8}{when if shown[0] != '-' else ''}")
        return lines
    if now.found is None:
        return []
    half, most = _listed_latency(now.found)
    line = f"{_name(_LATENCIES[0][0])}p50 {output.duration(half):>8}  p99 {output.duration(most):>8}  of those listed"
    return [line, f"{_name(_LATENCIES[1][0])}needs --metrics URL"]


def _listed_latency(found: list[HandoffInfo]) -> tuple[float | None, float | None]:
    """p50 and p99 of reserve to put, of the hand-offs that are listed."""
    taken = sorted(
        max((info.published_at - info.reserved_at).total_seconds(), 0.0)
        for info in found
        if info.published_at is not None and info.reserved_at is not None
    )
    if not taken:
        return None, None
    return taken[len(taken) // 2], taken[min(math.ceil(0.99 * len(taken)), len(taken)) - 1]


def _name(text: str) -> str:
    return f"{text:<15} "
