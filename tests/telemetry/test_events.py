"""Events: whose trace they belong to, how many strangers can bring about, and what an error shows."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff_server.telemetry.frames import frames_of
from pd_handoff_server.telemetry.rate_limit import Allowance
from pd_handoff_server.telemetry.trace import trace_of
from structlog.testing import capture_logs

from tests.support import records, requests
from tests.support.caller import CALLERS
from tests.support.credentials import sending
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.steps import Steps

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


class Came:
    """An approach with these traceparents."""

    def __init__(self, *values: str | bytes) -> None:
        self.metadata = [("traceparent", value) for value in values]


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ((PARENT,), True),
        ((f"00-{TRACE}-{SPAN}-00",), True),
        ((f"cc-{TRACE}-{SPAN}-01-what-comes-later",), True),
        ((), False),
        ((PARENT, PARENT), False),
        ((PARENT.encode(),), False),
        ((PARENT.upper(),), False),
        ((PARENT + "-more",), False),
        ((f"ff-{TRACE}-{SPAN}-01",), False),
        ((f"00-{'0' * 32}-{SPAN}-01",), False),
        ((f"00-{TRACE}-{'0' * 16}-01",), False),
        ((PARENT[:-1],), False),
        (("x" * 10_000,), False),
    ],
)
def test_traceparent(values: tuple[str | bytes, ...], known: bool) -> None:
    assert trace_of(Came(*values)) == ({"trace_id": TRACE, "parent_span_id": SPAN} if known else {})
    assert trace_of(None) == {}


@pytest.mark.parametrize("kind", list(CALLERS))
def test_events_carry_the_trace_of_the_call_that_caused_them(start: Start, kind: str) -> None:
    with capture_logs() as captured:
        store = start(log_level="debug")
        traced = Steps(CALLERS[kind](sending(store.channel(), ("traceparent", PARENT))))
        plain = store.steps(kind)
        traced.publish(1, records.record())
        with pytest.raises(CallFailed):
            traced.put(2, b"foreign")
        plain.reserve(3)
        traced.abort(3)
        plain.abort(1)
        traced.reserve(4, lease=1)
        store.advance(2)
        traced.caller.close()
        store.close()

    def traces(event: str) -> list[str]:
        return [str(one.get("trace_id", "")) for one in captured if one["event"] == event]

    assert traces("reserved") == [TRACE, "", TRACE]
    assert traces("published") == [TRACE]
    assert traces("ended") == [TRACE, "", ""]  # what expires belongs to nobody's call
    assert traces("refused") == [TRACE]


def test_events_say_which_hand_off_they_are_about(start: Start) -> None:
    with capture_logs() as captured:
        store = start()
        steps = store.steps()
        steps.abort(8)  # ahead of its Reserve
        with pytest.raises(CallFailed):
            steps.reserve(8, owner="mine")
        steps.reserve(9)
        steps.abort(9)
        store.close()
    events = {one["event"]: one for one in captured}
    assert (events["aborted_before_reserve"]["key"], events["aborted_before_reserve"]["state"]) == ("/8/0", "ABORTED")
    refused = events["refused"]
    assert (refused["key"], refused["owner"], refused["reason"]) == ("/8/0", "mine", "HANDOFF_ABORTED")
    ended = events["ended"]
    assert (ended["key"], ended["was"], ended["state"]) == ("/9/0", "RESERVED", "ABORTED")


def test_an_allowance() -> None:
    now = [0.0]
    allowance = Allowance(10.0, 3, lambda: now[0])
    assert [allowance.take() for _ in range(5)] == [0, 0, 0, None, None]
    now[0] = 0.1
    assert [allowance.take(), allowance.take()] == [2, None]
    now[0] = 100.0
    assert [allowance.take() for _ in range(4)] == [1, 0, 0, None]


def test_case_45_callers_cannot_fill_the_log(start: Start) -> None:
    aborts, reserves, burst = 400, 400, 200
    with capture_logs() as captured:
        store = start(slots=1)
        steps = store.steps("session")
        for room in range(aborts):
            steps.abort(room)  # ahead of its Reserve
        for attempt in range(reserves):  # each supersedes the one before, and one producer starts again and again
            steps.reserve(aborts, owner="\x01" * 256, attempt=attempt, producer=("p", attempt + 1))
        held_back = store.app.events.held_back
        store.close()
    caused = [one for one in captured if one["event"] in {"aborted_before_reserve", "superseded", "ended", "producer"}]
    happened = aborts + 2 * reserves - 1
    assert len(caused) + held_back == happened
    assert burst <= len(caused) < happened // 2
    (stopped,) = [one for one in captured if one["event"] == "stopped"]
    assert stopped["events_held_back"] == held_back


def test_an_error_is_shown_by_its_frames_and_type() -> None:
    def fails(what: str) -> None:
        try:
            raise KeyError(what)
        except KeyError as error:
            raise RuntimeError(what) from error

    try:
        fails("contents")
    except RuntimeError as error:
        shown = frames_of(error)
    assert "contents" not in shown
    lines = shown.splitlines()
    assert lines[-1] == "builtins.RuntimeError"
    assert "builtins.KeyError" in lines
    assert any(line.endswith("in fails") and "test_events.py:" in line for line in lines)


def test_errors_that_point_at_each_other_end() -> None:
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert frames_of(one).splitlines() == ["builtins.ValueError"] * 2


def test_an_unforeseen_failure_is_told_without_its_text(start: Start, failures: list[str]) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("contents of a record")

    with capture_logs() as captured:
        store = start()
        steps = Steps(CALLERS["unary"](sending(store.channel(), ("traceparent", PARENT))))
        store.core.reserve = fails
        with pytest.raises(CallFailed) as caught:
            steps.caller.call("Reserve", requests.reserve(1))
        store.close()
    assert caught.value.reason == "INTERNAL"
    (event,) = [one for one in captured if one["event"] == "failed"]
    assert event["method"] == "Reserve"
    assert event["trace_id"] == TRACE
    assert "contents" not in str(event) + str(caught.value)
    failures.clear()
