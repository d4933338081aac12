"""How a store ends: everybody who waits is told, probes are told, what is under way finishes, and it exits with 0."""

from __future__ import annotations

import signal
import struct
import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.app import parts

from tests.faults import http2
from tests.support import records, requests
from tests.support.caller import STORE, Stream
from tests.support.failures import CallFailed, refused
from tests.support.fixtures import Launch
from tests.support.local import LocalStore
from tests.support.process import NOT_SERVING, SERVING, START_SECONDS, ProcessStore
from tests.support.waits import PATIENCE, eventually

pytestmark = pytest.mark.internals

UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.mark.settings(slots=1, drain_notice=0.0, grace=10.0)
def test_all_who_wait_are_woken(store: LocalStore, kind: str) -> None:
    steps = store.steps(kind)
    steps.reserve(1)
    waiting = [
        steps.start_get(1, reader="decode"),
        steps.start_get(2),
        steps.start_reserve(3, max_wait=300),
        steps.caller.start("Put", requests.put_once(4, None, requests.reserve(None, max_wait=300)), None),
    ]
    store.until_waiting(4)
    ending = store.begin_drain()
    for each in waiting:
        with refused("DRAINING"):
            each.result()
    ending.result(PATIENCE)


def test_while_it_drains_what_can_be_answered_at_once_is(store: LocalStore, kind: str) -> None:
    steps = store.steps(kind)
    tokens = [steps.reserve(room).token for room in range(3)]
    steps.publish(3, records.full())
    store.give_notice()
    for _ in range(2):
        with refused("DRAINING"):
            steps.reserve(9)
        with refused("DRAINING"):
            steps.put_once(9)
        with refused("DRAINING"):
            steps.get(9, max_wait=1)
        with refused("DRAINING"):
            steps.get(0, max_wait=1)
    steps.put(0, tokens[0], records.numbered(0))
    assert steps.record(0, reader="decode") == records.numbered(0)
    assert steps.record(3, max_wait=1) == records.full()
    steps.release(1, token=tokens[1])
    assert steps.abort(2, token=tokens[2])
    assert steps.capabilities().slots_total == 8


@pytest.mark.settings(grace=3600.0)
def test_an_idle_session_does_not_hold_the_end_up(store: LocalStore) -> None:
    stream = Stream(store.channel())
    stream.send(pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()))
    assert stream.receive().HasField("capabilities")
    store.drain()  # fails if it takes a minute, not to say the hour of grace
    assert stream.ended.result(PATIENCE) in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK}


@pytest.mark.settings(grace=3600.0)
def test_an_open_watch_of_health_is_told_and_does_not_hold_the_end_up(store: LocalStore) -> None:
    stub = health_pb2_grpc.HealthStub(store.channel())
    watching = [stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=600) for service in ("", STORE, "?")]
    assert [next(each).status for each in watching] == [SERVING, SERVING, UNKNOWN]
    store.drain()  # fails if it takes a minute
    for each, told in zip(watching, ([NOT_SERVING], [NOT_SERVING], []), strict=True):
        assert [next(each).status for _ in told] == told
        with pytest.raises(grpc.RpcError) as caught:
            next(each)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("transport", ["aio"])
@pytest.mark.settings(grace=3600.0)
def test_an_open_reflection_does_not_hold_the_end_up(store: LocalStore) -> None:
    asked, more = reflection_pb2.ServerReflectionRequest(list_services=""), threading.Event()

    def ask() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield asked
        more.wait(120)

    answers = reflection_pb2_grpc.ServerReflectionStub(store.channel()).ServerReflectionInfo(ask(), timeout=600)
    assert next(answers).HasField("list_services_response")
    store.drain()  # fails if it takes a minute
    more.set()
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.settings(grace=4.0)
def test_the_transport_ends_before_the_grace_does(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, float]] = []
    stop = store.app.server.stop

    async def noted(grace: float, cut: float) -> None:
        told.append((grace, cut))
        await stop(0.0, cut)

    monkeypatch.setattr(store.app.server, "stop", noted)
    store.drain()
    [(grace, cut)] = told
    assert 2.5 <= grace < grace + cut < 4  # the process has to come to its end within 4 seconds, too


@pytest.mark.wire
@pytest.mark.parametrize("grace", [0.0, 0.1, 5.0, 10.0, 3600.0])
def test_a_part_of_the_grace_is_kept_for_the_end(grace: float) -> None:
    calls, last = parts(grace)
    assert calls + last == pytest.approx(grace)
    assert 0 <= last <= 1.5
    assert last >= grace / 4 or last == 1.5


@pytest.mark.settings(listen=("127.0.0.1:0",), grace=1.0)
def test_callers_that_do_not_read_do_not_hold_the_end_up(store: LocalStore) -> None:
    steps = store.steps()
    steps.publish(1, records.record(customized_info=bytes(4096)))
    settings = struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0)
    with http2.Connection(store.target, settings=settings) as deaf:
        body = http2.message(requests.get(1).SerializeToString())
        for stream in range(1, 200, 2):
            deaf.send(deaf.open_call(stream, f"/{STORE}/Get") + http2.frame(http2.DATA, http2.END_STREAM, stream, body))
        eventually(lambda: store.app.gate.unread.held >= 100 * 4096, "all answers wait to be read")
        store.drain()
    assert store.app.gate.unread.held == 0


def parked(store: ProcessStore) -> int:
    """How many wait for room 1."""
    answer: admin_pb2.ListHandoffsResponse = store.caller().call("ListHandoffs", admin_pb2.ListHandoffsRequest())
    return answer.handoffs[0].waiting


def test_sigterm_ends_the_process_with_0_and_another_takes_its_place(launch: Launch, transport: str) -> None:
    first = launch(slots=1, transport=transport, drain_notice=0.5, grace=2)
    statuses: list[int] = []
    watching = threading.Thread(target=lambda: statuses.extend(first.watch()), daemon=True)
    watching.start()
    unary, session = first.steps(), first.steps("session")
    epoch = unary.reserve(1).store_epoch
    waiting = [
        unary.start_get(1, reader="decode"),
        session.start_get(2),
        unary.start_reserve(3, max_wait=300),
        session.start_reserve(4, max_wait=300),
    ]
    eventually(lambda: bool(statuses) and parked(first) == 1, "the watch has begun, the reader of 1 waits")
    assert session.capabilities().slots_free == 0  # answered, so what the stream carried before has been parked
    first.signal(signal.SIGTERM)
    for each in waiting:
        with refused("DRAINING"):
            each.result()
    assert first.exit_code() == 0
    watching.join(PATIENCE)
    assert statuses == [SERVING, NOT_SERVING]
    told = [event["event"] for event in first.events]
    assert [event for event in told if event in {"serving", "draining", "stopped"}] == [
        "serving",
        "draining",
        "stopped",
    ]
    with pytest.raises(CallFailed) as caught:
        unary.capabilities()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE

    second = launch(first.target)
    with refused("STORE_RESTARTED", expected=epoch):
        second.steps().get(7, epoch=epoch)
    assert second.stop() == 0


def test_a_signal_while_it_starts_ends_it_too(launch: Launch) -> None:
    store = launch(wait=False, fresh=True)
    for status in store.watch():
        assert status == NOT_SERVING
        break
    store.signal(signal.SIGINT)
    assert store.exit_code(START_SECONDS) == 0
