"""Every series moves when what it counts happens, and every gauge comes back to 0 when nothing is left."""

from __future__ import annotations

import contextlib
import errno
import http.client
import random
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.lifecycle import SystemClock
from pd_handoff_server.store.interface import Store
from pd_handoff_server.telemetry import scrape as scrape_module
from pd_handoff_server.telemetry.exposition import Sources, StoreCollector
from pd_handoff_server.telemetry.metrics import CallMetrics, Lives

from tests.support import records, requests
from tests.support.caller import Stream, UnaryCaller
from tests.support.credentials import access_file, bearing
from tests.support.failures import CallFailed
from tests.support.fixtures import Start
from tests.support.waits import eventually

from .conftest import Watched, scrape

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "metrics.md"
FIXED = {"info", "serving", "capacity_slots", "row_bytes", "arena_bytes", "waiters_limit", "heap_bytes"}
"""Gauges that say what a store is, and not how much of it is in use."""


def test_case_21_gauges_come_back_to_zero_after_a_thousand_hand_offs(watched: Watched) -> None:
    store = watched.store
    steps, session = store.steps(), store.steps("session")
    rng = random.Random(21)
    before = watched.scrape()
    for room in range(1000):
        prefill = rng.choice((steps, session))
        which = rng.randrange(10)
        if which < 4:
            token = prefill.publish(room, records.full())
            waiting = session.get(room, reader="d")
            assert waiting.record == records.full()
            prefill.release(room, token=token)
        elif which < 6:
            late = session.start_get(room, reader="d")
            prefill.put_once(room)
            late.result()
            steps.get(room, reader="d")
            store.advance(31)  # the grace is over
        elif which < 8:
            prefill.reserve(room, producer=("p", room))
            assert prefill.abort(room)
        elif which < 9:
            prefill.reserve(room, lease=1)
            store.advance(2)
        else:
            prefill.abort(room)
    store.advance(121)  # outcomes are forgotten
    assert watched.value("tombstones") == 0
    assert watched.value("producers") == 1
    store.advance(3600)  # and by now no lease of a producer's former process can be left
    session.caller.close()
    eventually(lambda: watched.value("sessions") == 0, "the stream is over")
    after = watched.scrape()
    assert after.pop(("pd_handoff_slots", frozenset({("state", "free")}))) == 8
    assert after.pop(("pd_handoff_attachment_heap_bytes", frozenset({("state", "free")}))) == 1 << 16
    names = watched.gauges() - {f"pd_handoff_{name}" for name in FIXED}
    left = {key: value for key, value in after.items() if key[0] in names}
    assert {name for name, _ in left} == names
    assert set(left.values()) == {0.0}, left
    assert len(left) >= 9  # slots by state, waiters by kind, and three more
    assert steps.free == 8
    for name in ("reserved", "published", "consumed", "redelivered", "forgotten", "producer_epochs"):
        key = (f"pd_handoff_{name}_total", frozenset[tuple[str, str]]())
        assert after[key] > before[key] == 0
    counted = sum(value for (name, _), value in after.items() if name == "pd_handoff_ended_total")
    assert counted == 1000


def test_every_documented_series_moves_and_every_series_is_documented(watched: Watched) -> None:
    store = watched.store
    zero = watched.scrape()
    steps, session = store.steps(), store.steps("session")
    moved: set[str] = set()

    def look() -> None:
        moved.update(
            name for (name, labels), value in watched.scrape().items() if value != zero.get((name, labels), 0.0)
        )

    # Waiting and held.
    token = steps.reserve(1, producer=("p", 1)).token
    waiting = [session.start_get(1, reader="d"), session.start_get(2)]
    for room in range(10, 17):
        steps.reserve(room)
    claim = steps.start_reserve(99, max_wait=10)
    store.until_waiting(3)
    look()
    # The course of things.
    steps.reserve(1, producer=("p", 1))
    steps.put(1, token)
    waiting[0].result()
    look()
    claim.result()
    steps.reserve(10, attempt=1)
    steps.abort(12)
    steps.put_once(30, records.with_attachments(x=b"1"))
    steps.get(30, reader="d")
    steps.get(30, reader="d")
    steps.put_once(11, owner="prefill")
    partly = steps.caller.start(
        "BatchGet", pb.BatchGetRequest(requests=[requests.get(404), requests.get(405, max_wait=10)])
    )
    eventually(lambda: watched.value("unread_bytes") > 0, "a batch holds what it has")
    look()
    steps.caller.call("BatchGet", pb.BatchGetRequest(requests=[requests.get(11), requests.get(404)]))
    store.core._arena.storage[:, 64:] ^= 1
    with pytest.raises(CallFailed):
        steps.get(11)
    store.advance(500)
    assert len(partly.result().results) == 2
    look()
    for room in range(1000, 1300):  # more events than are written at once
        steps.abort(room)
    store.app.telemetry.draining()
    look()
    moved.add("pd_handoff_heap_bytes")  # it moves with every call, but by nobody's promise
    series = {_family(name) for (name, _) in watched.scrape() if name.startswith("pd_handoff_")}
    still = {f"pd_handoff_{name}" for name in ("info", "capacity_slots", "row_bytes", "arena_bytes", "waiters_limit")}
    assert {_family(name) for name in moved if name.startswith("pd_handoff_")} == series - still
    documented = set(re.findall(r"^\| `(pd_handoff_\w+)`", DOCUMENTATION.read_text(), re.MULTILINE))
    assert {_plain(name) for name in documented} == series


def test_messages_of_a_session_that_are_no_calls_are_counted(watched: Watched) -> None:
    stream = Stream(watched.store.channel())
    wait = pb.SessionRequest(call_id=1, get=requests.get(1, max_wait=60))
    for request in (wait, wait, pb.SessionRequest(call_id=2)):
        stream.send(request)
    assert {stream.receive().call_id for _ in range(2)} == {1, 2}
    assert watched.value("calls_total", method="Session", reason="INVALID_REQUEST") == 2


def _family(name: str) -> str:
    return re.sub(r"_(bucket|count|sum|total)$", "", name)


def _plain(name: str) -> str:
    return name.removesuffix("_total")


def outcomes(watched: Watched) -> dict[tuple[str, str], float]:
    return {
        (dict(labels)["outcome"], dict(labels)["state"]): value
        for (name, labels), value in watched.scrape().items()
        if name == "pd_handoff_ended_total"
    }


def test_how_hand_offs_end(watched: Watched) -> None:
    store, steps = watched.store, watched.store.steps()
    steps.reserve(1)
    steps.reserve(1, attempt=1)
    assert outcomes(watched) == {("superseded", "reserved"): 1}
    steps.abort(1)
    steps.abort(2)  # ahead of its Reserve
    steps.put_once(3)
    steps.abort(3)
    steps.reserve(4, lease=1)
    steps.put_once(5)
    store.advance(400)
    steps.release(6, token=steps.reserve(6).token)
    steps.reserve(7, producer=("p", 1))
    steps.reserve(8, producer=("p", 2))
    token = steps.publish(9)
    steps.get(9, reader="d")
    steps.release(9, token=token)
    assert outcomes(watched) == {
        ("superseded", "reserved"): 1,
        ("aborted", "reserved"): 2,
        ("aborted", "none"): 1,
        ("aborted", "published"): 1,
        ("expired", "reserved"): 1,
        ("expired", "published"): 1,
        ("restarted", "reserved"): 1,
        ("completed", "consumed"): 1,
    }


def test_calls_by_method_and_reason(start: Start, tmp_path: Path) -> None:
    token = "a-token-0123456789"
    access = access_file(tmp_path / "t", f"p prefill * {token}")
    watched = Watched(start(metrics_listen="127.0.0.1:0", slots=1, token_file=str(access)))
    caller = UnaryCaller(bearing(watched.store.channel(), token))
    stranger = UnaryCaller(watched.store.channel())

    def provoke(who: UnaryCaller, method: str, request: object) -> None:
        with contextlib.suppress(CallFailed):
            who.call(method, request)  # type: ignore[arg-type]

    provoke(caller, "Reserve", requests.reserve(1))
    provoke(caller, "Reserve", requests.reserve(2))
    provoke(caller, "Reserve", requests.reserve(None))
    provoke(caller, "Reserve", b"\xff")
    provoke(caller, "Get", requests.get(1))
    provoke(stranger, "Get", requests.get(1))
    provoke(stranger, "ListHandoffs", admin_pb2.ListHandoffsRequest())
    provoke(caller, "BatchPut", pb.BatchPutRequest(requests=[requests.put(1, b"x"), requests.put(1, b"y")]))

    with pytest.raises(EOFError):
        Stream(watched.store.channel()).receive()

    def calls(method: str, reason: str) -> float:
        return watched.value("calls_total", method=method, reason=reason)

    assert calls("Reserve", "OK") == 1
    assert calls("Reserve", "ARENA_FULL") == 1
    assert calls("Reserve", "INVALID_REQUEST") == 2
    assert calls("Get", "PERMISSION_DENIED") == 1
    assert calls("Get", "UNAUTHENTICATED") == 1
    assert calls("ListHandoffs", "UNAUTHENTICATED") == 1
    assert calls("BatchPut", "OK") == 1
    assert calls("Session", "UNAUTHENTICATED") == 1
    series = {name for name, labels in watched.scrape() if ("method", "Session") in labels}
    assert series == {"pd_handoff_calls_total"}  # its calls are counted as their own methods'
    assert watched.value("batch_items_total", method="BatchPut", reason="STALE_RESERVATION") == 2
    size = requests.reserve(1).ByteSize()
    assert watched.value("received_bytes_total", method="Reserve") >= 2 * size
    assert watched.value("sent_bytes_total", method="Reserve") > 32
    assert watched.value("call_seconds_count", method="Reserve") == 4
    assert watched.value("call_seconds_bucket", method="Reserve", le="+Inf") == 4


def test_every_series_of_a_method_can_move(watched: Watched) -> None:
    caller = watched.store.steps().caller
    one, other = requests.reserve(2), requests.put_once(3)
    token = caller.call("Reserve", requests.reserve(1)).token
    for method, request in (
        ("Capabilities", pb.CapabilitiesRequest(required=pb.Widths(tokens=1))),
        ("Put", requests.put(1, token)),
        ("Get", requests.get(1)),
        ("Release", pb.ReleaseRequest(key=requests.key(1), token=token)),
        ("Abort", requests.abort(1)),
        ("BatchReserve", pb.BatchReserveRequest(requests=[one])),
        ("BatchPut", pb.BatchPutRequest(requests=[other])),
        ("BatchGet", pb.BatchGetRequest(requests=[requests.get(3)])),
        ("ListHandoffs", admin_pb2.ListHandoffsRequest(page_size=5)),
        ("GetHandoff", admin_pb2.GetHandoffRequest(key=requests.key(3))),
    ):
        caller.call(method, request)
    families = ("received_bytes_total", "sent_bytes_total", "call_seconds_count", "call_seconds_sum")
    names = {f"pd_handoff_{family}" for family in families}
    found = {key: value for key, value in watched.scrape().items() if key[0] in names}
    assert {key[0] for key in found} == names
    assert [key for key, value in found.items() if not value] == []


def test_a_call_that_is_given_up(watched: Watched) -> None:
    steps = watched.store.steps()
    waiting = steps.start_get(1)
    watched.store.until_waiting(1)
    waiting.cancel()  # type: ignore[attr-defined]
    watched.store.until_waiting(0)
    eventually(lambda: watched.value("calls_total", method="Get", reason="CANCELLED") == 1, "it is counted")


def test_durations_fall_into_their_buckets(watched: Watched) -> None:
    store, steps = watched.store, watched.store.steps()
    token = steps.reserve(1).token
    store.advance(0.03)
    steps.put(1, token)
    store.advance(20)
    steps.get(1, reader="d")
    assert watched.value("reserve_to_put_seconds_sum") == pytest.approx(0.03)
    assert watched.value("reserve_to_put_seconds_bucket", le="0.025") == 0
    assert watched.value("reserve_to_put_seconds_bucket", le="0.05") == 1
    assert watched.value("put_to_get_seconds_sum") == pytest.approx(20)
    assert watched.value("put_to_get_seconds_bucket", le="10") == 0
    assert watched.value("put_to_get_seconds_bucket", le="60") == 1
    steps.get(1, reader="e")
    assert watched.value("put_to_get_seconds_count") == 1


def test_counts_go_over_their_gathering_without_loss() -> None:
    metrics = CallMetrics()
    handler = metrics.wrap("Put", lambda data, call, done: b"x" * 3)
    for _ in range(1500):
        handler(b"ab", None, print)  # type: ignore[arg-type]
    cell = metrics.methods["Put"].copy()
    assert (cell.reasons["OK"], cell.received, cell.sent) == (1500, 3000, 4500)
    assert sum(cell.seconds.counts) == 1500
    assert len(metrics.methods["Put"]._noted) == 0


def test_before_the_store_is_ready_there_is_little_to_say() -> None:
    found = {family.name for family in StoreCollector(Sources(Lives(SystemClock()), CallMetrics())).collect()}
    assert "pd_handoff_serving" in found
    assert "pd_handoff_slots" not in found


def test_the_port_serves_metrics_and_nothing_else(watched: Watched) -> None:
    for path, code in (("/", 404), ("/metricsx", 404), ("/../etc/passwd", 404)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{watched.address}{path}", timeout=20)
        assert caught.value.code == code
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{watched.address}/metrics", data=b"x", timeout=20)
    assert caught.value.code == 501
    assert watched.value("serving") == 1
    request = urllib.request.Request(
        f"http://{watched.address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read().endswith(b"# EOF\n")


def probe(address: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    """The status and body of an answer of the metrics' port."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{address}{path}", method=method), timeout=20
        ) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_probes_that_need_no_python(watched: Watched) -> None:
    assert probe(watched.address, "/healthz") == (200, b"ok\n")
    assert probe(watched.address, "/readyz") == (200, b"serving\n")
    assert probe(watched.address, "/readyz", "HEAD") == (200, b"")
    watched.store.app.telemetry.draining()
    assert probe(watched.address, "/readyz") == (503, b"not serving\n")
    assert probe(watched.address, "/readyz", "HEAD") == (503, b"")
    assert probe(watched.address, "/healthz") == (200, b"ok\n")


def test_case_48_scrapers_that_never_end_their_request_are_cut_off(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape_module, "_TOTAL", 1.0, raising=False)
    watched = Watched(start(metrics_listen="127.0.0.1:0"))
    host, _, port = watched.address.rpartition(":")
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                connection.sendall(b"x")

    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(8)]
        threads = [threading.Thread(target=trickle, args=(one,), daemon=True) for one in slow]
        stack.callback(over.set)
        for thread in threads:
            thread.start()

        def served() -> bool:
            with contextlib.suppress(OSError, urllib.error.URLError, http.client.HTTPException):
                return probe(watched.address, "/metrics")[0] == 200
            return False

        eventually(served, "a scrape is answered")


def test_the_metrics_thread_rests_while_there_is_no_descriptor(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = watched.store.app.telemetry._scrape._server  # type: ignore[union-attr]
    host, _, port = watched.address.rpartition(":")
    tries: list[int] = []
    refused = threading.Event()

    class Exhausted:
        """A listening socket of a process without descriptors."""

        fileno = server.socket.fileno
        close = server.socket.close

        def accept(self) -> Any:
            """See `socket`."""
            tries.append(1)
            refused.set()
            raise OSError(errno.EMFILE, "Too many open files")

    rested: list[float | None] = []
    wait = server.stopping.wait

    def rest(seconds: float | None = None) -> bool:
        rested.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(server.stopping, "wait", rest)
    whole, server.socket = server.socket, Exhausted()
    with socket.create_connection((host, int(port)), 20):
        assert refused.wait(20)
        eventually(lambda: len(rested) > 0, "it rests")
    server.socket = whole
    assert watched.value("serving") == 1
    assert all(seconds for seconds in rested)
    assert len(tries) <= len(rested) + 1


def told_port(store: Any) -> str | None:
    """What the event `serving` of a process says of its metrics; it comes a moment after health does."""
    eventually(lambda: any(event["event"] == "serving" for event in store.events), "the event is read")
    (serving,) = [event for event in store.events if event["event"] == "serving"]
    address: str | None = serving["metrics"]
    return address


def test_a_process_tells_its_port_and_is_silent_without_the_setting(launch: Callable[..., Any]) -> None:
    address = told_port(launch(metrics_listen="127.0.0.1:0"))
    assert address is not None
    found = scrape(address)
    assert found["pd_handoff_serving", frozenset()] == 1
    assert ("process_resident_memory_bytes", frozenset()) in found
    assert told_port(launch()) is None


def test_a_second_store_on_the_same_port_says_so(watched: Watched, launch: Callable[..., Any]) -> None:
    other = launch(wait=False, metrics_listen=watched.address)
    assert other.exit_code(60) == 1
    assert any("cannot serve metrics" in str(event) for event in other.events)
    assert any("another --metrics-listen" in str(event) for event in other.events)


def test_a_census_adds_up(watched: Watched) -> None:
    core: Store = watched.store.core
    steps = watched.store.steps()
    steps.reserve(1)
    steps.put_once(2)
    steps.put_once(3)
    steps.get(3, reader="d")
    census = core.census()
    assert (census.free, census.reserved, census.published, census.consumed, census.quarantined) == (5, 1, 1, 1, 0)
