"""`top` and `list --watch`: what they show of a store, of its metrics, and of a store that is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff import HandoffState, StoreUnavailable
from pd_handoff.admin import HandoffInfo
from pd_handoff.capabilities import Capabilities
from pd_handoff.cli import handoffs, main, output, scrape, screen, top, watching
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

CAPABILITIES = pb.CapabilitiesResponse(
    slots_total=64, slots_free=60, max_waiters=16384, server_version="0.1.0", store_epoch="1d7463fe00000000"
)
PAGE = """\
# HELP pd_handoff_serving 1 while the store takes calls
pd_handoff_serving 1.0
pd_handoff_slots{state="free"} 60.0
pd_handoff_slots{state="reserved"} 3.0
pd_handoff_slots{state="published"} 1.0
pd_handoff_waiters{kind="record"} 5.0
pd_handoff_waiters{kind="slot"} 2.0
pd_handoff_reserved_total %(reserved)d
pd_handoff_published_total %(published)d
pd_handoff_consumed_total 0
pd_handoff_ended_total{outcome="aborted",state="reserved"} %(aborted)d
pd_handoff_calls_total{method="Reserve",reason="OK"} %(reserved)d
pd_handoff_calls_total{method="Reserve",reason="ARENA_FULL"} %(refused)d
pd_handoff_batch_items_total{method="BatchPut",reason="INVALID_RECORD"} %(refused)d
pd_handoff_reserve_to_put_seconds_bucket{le="0.01"} 0
pd_handoff_reserve_to_put_seconds_bucket{le="0.1"} %(published)d
pd_handoff_reserve_to_put_seconds_bucket{le="+Inf"} %(published)d
pd_handoff_put_to_get_seconds_bucket{le="0.001"} 0
pd_handoff_put_to_get_seconds_bucket{le="+Inf"} 0
process_cpu_seconds_total 12.5
"""
BEFORE = scrape.read(PAGE % {"reserved": 100, "published": 90, "aborted": 1, "refused": 4})
AFTER = scrape.read(PAGE % {"reserved": 120, "published": 110, "aborted": 2, "refused": 10})
VIEW = top.View("127.0.0.1:50071", 2.0)


def handoff(room: int, state: int = 1, age: int = 1, **others: Any) -> admin_pb2.Handoff:
    return admin_pb2.Handoff(
        key=record_pb2.HandoffKey(room=room),
        state=state,  # type: ignore[arg-type]
        slot=3,
        age=Duration(seconds=age),
        expires_in=Duration(seconds=60 - age),
        expected_readers=1,
        **others,
    )


RESERVED = handoff(7, age=50, waiting=4, owner="prefill-0")
PUBLISHED = handoff(2**64 - 1, state=2, age=9, reserved_at=Timestamp(seconds=10), published_at=Timestamp(seconds=12))
FOUND = [HandoffInfo.from_proto(RESERVED), HandoffInfo.from_proto(PUBLISHED)]
LOOK = top.Look(100.0, Capabilities.from_proto(CAPABILITIES), FOUND, BEFORE)
NEXT = replace(LOOK, at=102.0, metrics=AFTER)


class Recorded:
    """A screen that notes its frames and presses keys."""

    live = True

    def __init__(self, *keys: str, width: int = 80, height: int = 24) -> None:
        self.frames: list[str] = []
        self.keys = list(keys)
        self._size = width, height

    def size(self) -> tuple[int, int]:
        return self._size

    def show(self, lines: Sequence[str]) -> None:
        assert len(lines) <= self._size[1]
        self.frames.append("\n".join(screen.plain(line) for line in lines))

    def key(self, seconds: float) -> str:
        del seconds
        return self.keys.pop(0)


def shown(now: top.Look, before: top.Look = LOOK, width: int = 80, view: top.View = VIEW) -> str:
    return "\n".join(screen.plain(line) for line in top.frame(before, now, view, width, 24))


def test_a_frame_with_metrics() -> None:
    text = shown(NEXT)
    assert "epoch 1d7463fe  serving  every 2 s" in text
    assert "slots           [#...................] 4 of 64 in use: 3 reserved, 1 published" in text
    assert "waits           5 for a record, 2 for a slot, of 16,384" in text
    assert "rates           reserve 10/s  put 10/s  get 0/s  ended: aborted 0.5/s" in text
    assert "refused         INVALID_RECORD 3/s, ARENA_FULL 3/s (since the store started: 10)" in text
    assert "reserve to put  p50    55 ms  p99  99.1 ms\n" in text
    assert "put to get      p50        -  p99        -" in text
    assert "by age: 2 hand-offs: 1 reserved, 1 published; 4 waiting; oldest 50 s" in text
    assert "OWNER" in text
    assert "18446744073709551615  PUBLISHED" in text


def test_the_first_frame_has_no_rates_and_an_idle_one_the_whole_history() -> None:
    text = shown(LOOK)
    assert "rates           at the next look" in text
    assert "p99  99.1 ms  since the store started" in text


def test_a_restart_between_two_looks_gives_no_rates() -> None:
    assert top.rates(NEXT, replace(LOOK, at=104.0)) is None


def test_a_frame_without_metrics_says_what_it_lacks() -> None:
    text = shown(replace(NEXT, metrics=None))
    assert "4 for a listed hand-off" in text
    assert "rates           need --metrics URL" in text
    assert "reserve to put  p50      2 s  p99      2 s  of those listed" in text
    assert "put to get      needs --metrics URL" in text


def test_what_could_not_be_had_is_named() -> None:
    text = shown(replace(NEXT, found=None, metrics=None, troubles=("the list of hand-offs: PERMISSION_DENIED: no",)))
    assert "! the list of hand-offs: PERMISSION_DENIED: no" in text
    assert "4 of 64 in use" in text


def test_a_full_store_is_red() -> None:
    full = replace(LOOK, capabilities=Capabilities.from_proto(pb.CapabilitiesResponse(slots_total=4)))
    assert any(line.startswith("\x1b[31mslots") for line in top.frame(full, full, VIEW, 80, 24))


@pytest.mark.parametrize("width", [40, 80, 160])
def test_nothing_is_wider_than_the_terminal_in_the_table(width: int) -> None:
    lines = handoffs.table(FOUND, width)
    assert all(len(line) <= width for line in lines)
    assert "ROOM" in lines[0]
    assert ("NAMESPACE" in lines[0]) is (width == 160)


def test_keys_filter_sort_pause_and_quit() -> None:
    recorded = Recorded("f", "s", "+", " ", "h", "q")
    top.watch(lambda: pytest.fail("no look while keys come"), NEXT, recorded, VIEW, None)
    assert "by age, RESERVED: 1 hand-off: 1 reserved" in recorded.frames[1]
    assert "by expires" in recorded.frames[2]
    assert "every 4 s" in recorded.frames[3]
    assert "paused" in recorded.frames[4]
    assert "Keys: q quit" in recorded.frames[5]


def test_it_looks_again_and_ends_after_the_count() -> None:
    looks = [NEXT]
    recorded = Recorded("")
    top.watch(looks.pop, LOOK, recorded, VIEW, 2)
    assert "reserve 10/s" in recorded.frames[1]


@pytest.fixture
def metrics() -> Iterator[str]:
    """The URL of a page of metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = (PAGE % {"reserved": 100, "published": 90, "aborted": 1, "refused": 4}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page if self.path == "/metrics" else b"nothing of ours 1\n")

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}/metrics"
        served.shutdown()
        thread.join()


def test_top_of_a_store(server: Any, store: Any, metrics: str, capsys: pytest.CaptureFixture[str]) -> None:
    store.script("Capabilities", CAPABILITIES)
    store.script("ListHandoffs", admin_pb2.ListHandoffsResponse(handoffs=[RESERVED, PUBLISHED]))
    assert main(["top", "--target", server.target, "--metrics", metrics, "--count", "1"]) == 0
    assert "4 of 64 in use: 3 reserved, 1 published" in capsys.readouterr().out
    assert main(["top", server.target, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["listed"]["waiting"] == 4
    assert found["reserve_to_put_listed_seconds"] == {"p50": 2.0, "p99": 2.0}
    wrong = metrics.removesuffix("metrics")
    assert main(["top", "--target", server.target, "--metrics", wrong, "--count", "1"]) == 0
    assert f"! metrics: {wrong}: no series of a pd-handoff store" in capsys.readouterr().out


def test_top_without_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--target", "127.0.0.1:1"]) == 8
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_top_of_a_role_that_may_not_list(
    server: Any, store: Any, refusal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.script("Capabilities", CAPABILITIES)
    store.script("ListHandoffs", refusal("PERMISSION_DENIED", "", "not for prefill"))
    assert main(["top", "--target", server.target, "--count", "1"]) == 0
    out = capsys.readouterr().out
    assert "! the list of hand-offs: PERMISSION_DENIED: not for prefill" in out
    assert "4 of 64 in use" in out


def test_a_list_that_is_watched_outlives_the_store() -> None:
    def look() -> list[HandoffInfo]:
        raise StoreUnavailable("no answer")

    recorded = Recorded("x", "", "q")
    watching.watch(look, FOUND, recorded, 2.0, 1000)
    assert "every 2 s: 2 hand-offs" in recorded.frames[0]
    assert "! UNAVAILABLE: no answer" in recorded.frames[1]
    assert "prefill-0" in recorded.frames[1]


def test_the_summary_says_when_the_list_was_cut() -> None:
    assert handoffs.summary(FOUND, 2).endswith("oldest 50 s; cut at --limit 2")
    assert handoffs.summary([], 2) == "no hand-offs"


def test_quantiles() -> None:
    buckets = [(0.01, 0.0), (0.1, 90.0), (1.0, 100.0), (float("inf"), 101.0)]
    assert scrape.quantile(buckets, 0.5) == pytest.approx(0.0605)
    assert scrape.quantile(buckets, 0.999) == float("inf")
    assert scrape.quantile([(1.0, 0.0)], 0.5) is None
    assert scrape.quantile([], 0.5) is None


def test_durations_have_the_unit_that_fits() -> None:
    told = [output.duration(seconds) for seconds in (0.00012, 0.0123, 1.5, 119, 121, 7300, 200_000, 0, None)]
    assert told == ["120 µs", "12.3 ms", "1.5 s", "119 s", "2.02 min", "2.03 h", "2.31 d", "0 s", "-"]


def test_a_line_is_cut_without_its_styles() -> None:
    line = screen.styled("abcdef", "red") + "gh"
    assert screen.plain(screen.cut(line, 4)) == "abcd"
    assert screen.cut(line, 4).endswith("\x1b[0m")


def test_states_of_the_filter_are_those_that_live() -> None:
    assert list(top._FILTERS[1:]) == [HandoffState.RESERVED, HandoffState.PUBLISHED, HandoffState.CONSUMED]


def test_doctor_of_a_store_that_starts(
    server: Any, store: Any, refusal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.script("Capabilities", refusal("UNAVAILABLE", "DRAINING", "the store is starting"))
    assert main(["doctor", server.target, "--retry", "0"]) != 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL"))
    assert "DRAINING: the store is starting; do: repeat this in some seconds" in line
