"""The standard health service, as probes see it: before the store is ready, while it serves, full or not, and after."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pd_handoff_server import build

from tests.support import requests
from tests.support.caller import ADMIN, STORE
from tests.support.failures import CallFailed, refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.process import NOT_SERVING, SERVING
from tests.support.steps import Steps
from tests.support.waits import PATIENCE

pytestmark = pytest.mark.internals


def health(store: LocalStore, service: str = "") -> int:
    """What a probe is told."""
    stub = health_pb2_grpc.HealthStub(store.channel())
    request = health_pb2.HealthCheckRequest(service=service)
    answer = stub.Check(request, timeout=PATIENCE, wait_for_ready=True)
    return int(answer.status)


@pytest.fixture
def unready(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalStore]:
    """A store that listens and is not ready; it becomes so after the test."""
    ready = threading.Event()
    original = build.build_store

    def held(*arguments: object, **keywords: object) -> object:
        assert ready.wait(PATIENCE * 2)
        return original(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "build_store", held)
    store = start(started=False)
    starting = store.begin()
    yield store
    ready.set()
    starting.result(PATIENCE)
    assert health(store) == SERVING
    assert store.steps().exchange(7)


def test_case_19_not_serving_before_it_is_ready(unready: LocalStore) -> None:
    for service in ("", STORE, ADMIN):
        assert health(unready, service) == NOT_SERVING


def test_before_it_is_ready_every_call_is_answered_draining(unready: LocalStore, kind: str) -> None:
    assert health(unready) == NOT_SERVING
    caller = unready.caller(kind)
    for method, request in requests.EACH:
        if kind == "session":  # the stream itself is refused
            with pytest.raises(CallFailed) as caught:
                caller.call(method, request)
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        else:
            with refused("DRAINING"):
                caller.call(method, request)
    for method, request in (*requests.BATCHES, *requests.LOOKS):
        with refused("DRAINING"):
            unready.caller().call(method, request)


@pytest.mark.wire
@pytest.mark.settings(slots=1)
def test_case_19_serving_while_the_arena_is_full(store: LocalStore, unary: Steps) -> None:
    unary.reserve(1)
    before = store.listing()
    with refused("ARENA_FULL"):
        unary.reserve(2)
    for service in ("", STORE, ADMIN):
        assert health(store, service) == SERVING
    after = store.listing()
    assert [each.slot for each in after] == [each.slot for each in before]
    assert unary.free == 0


@pytest.mark.wire
def test_health_of_a_service_nobody_knows(store: LocalStore) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health(store, "no.such.Service")
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_case_19_not_serving_while_draining(store: LocalStore, unary: Steps) -> None:
    unary.publish(7)
    stub = health_pb2_grpc.HealthStub(store.channel())
    watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert next(watching).status == SERVING
    store.give_notice()
    assert next(watching).status == NOT_SERVING
    watching.cancel()
    for service in ("", STORE, ADMIN):
        assert health(store, service) == NOT_SERVING
    with refused("DRAINING"):
        unary.reserve(8)
    unary.get(7, reader="decode")
    assert unary.free == 8  # no probe took a slot
