"""What each request had to show, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pd_handoff import Capabilities

from examples.demo.workload import Request

AT_ONCE = 2.0
"""Seconds within which decode has to learn of an abort; without being told it would wait out its 300."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    room: str
    asked: str
    held: bool
    happened: str


def generated(
    request: Request, original: Request, expected: dict[str, Any], served: dict[str, Any], received: dict[str, Any]
) -> Row:
    """A request that was handed over: every token, logprob and top logprob, and the hidden state, bit for bit."""
    problems: list[str] = []
    if served["outcome"] != "published":
        problems.append(f"prefill: {served}")
    if received["outcome"] != "generated":
        problems.append(f"decode: {received}")
    else:
        if received["sampled"] != expected["sampled"]:
            problems.append("tokens or logprobs differ from the undivided run")
        if received["hidden_state"] != expected["hidden_state"]:
            problems.append("the hidden state differs from the undivided run's")
        if any(len(token["top_values"]) != request.top_logprobs for token in received["sampled"]):
            problems.append("another number of top logprobs than asked for")
    asked, clamped = str(request.top_logprobs), ""
    if request != original:
        asked = f"{original.top_logprobs} -> {request.top_logprobs}"
        clamped = "clamped by Capabilities; "
        if request.top_logprobs >= original.top_logprobs:
            problems.append("not clamped")
    if problems:
        return Row(str(request.room), asked, False, "; ".join(problems))
    count = len(received["sampled"])
    happened = f"{clamped}{served['record_bytes']:,} B handed over; {count} of {count} tokens and logprobs equal"
    return Row(str(request.room), asked, True, happened)


def refused(request: Request, served: dict[str, Any], received: dict[str, Any], limit: int) -> Row:
    """A request over the limit: refused at Reserve, before its prefill, and decode does not wait for it."""
    wanted = {
        "outcome": "refused",
        "requested": request.top_logprobs,
        "limit": limit,
        "http_status": 400,
        "prefills": 0,
    }
    waited = _seconds_to_learn(served, received)
    held = (
        wanted.items() <= served.items() and _failure(received) == (400, "TOP_LOGPROBS_OVERFLOW") and _at_once(waited)
    )
    happened = f"refused at Reserve (limit {limit}, HTTP 400), 0 prefills; decode told in {1000 * waited:.1f} ms"
    return Row(str(request.room), str(request.top_logprobs), held, happened if held else f"{served}; {received}")


def aborted(request: Request, served: dict[str, Any], received: dict[str, Any]) -> Row:
    """A request that prefill gives up after it has reserved: decode, which waits, gets prefill's own reason."""
    waited = _seconds_to_learn(served, received)
    held = served["outcome"] == "aborted" and _failure(received) == (400, "INPUT_TOO_LONG") and _at_once(waited)
    text = received.get("failure", {}).get("message")
    happened = f"aborted by prefill; decode told in {1000 * waited:.1f} ms: HTTP 400, {text}"
    return Row(str(request.room), str(request.top_logprobs), held, happened if held else f"{served}; {received}")


def left_behind(before: Capabilities, after: Capabilities, status: int, weights: list[str]) -> Row:
    """The store afterwards, and that the three models were one."""
    held = after.slots_free == after.slots_total and after.store_epoch == before.store_epoch
    held = held and status == 0 and len(set(weights)) == 1
    happened = f"{after.slots_free} of {after.slots_total} slots free again, exit status {status} after SIGTERM; "
    return Row("store", "", held, f"{happened}weights {' '.join(sorted(set(weights)))}")


def _failure(received: dict[str, Any]) -> tuple[int, str] | None:
    failure = received.get("failure")
    return (failure["http_status"], failure["reason"]) if failure else None


def _seconds_to_learn(served: dict[str, Any], received: dict[str, Any]) -> float:
    """From prefill's start on the request to decode's knowledge; infinite unless decode had asked before."""
    if not received.get("asked", float("inf")) < served.get("at", 0) < received.get("learned", 0):
        return float("inf")
    return float(received["learned"] - served["at"]) / 1e9


def _at_once(seconds: float) -> bool:
    return seconds < AT_ONCE
