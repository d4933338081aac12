"""Many thousand calls about keys that nobody knows leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from google.protobuf.message import Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server import parser
from pd_handoff_server.handlers.call import StatedCall
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT, Describer
from pd_handoff_server.handlers.store import Calls
from pd_handoff_server.lifecycle import Observer
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.telemetry.metrics import CallMetrics, Lives

from tests.property.profiles import PROFILE
from tests.support import records, requests
from tests.support.clock import FakeClock

from .conftest import core

CALLS = 30_000 if PROFILE == "quick" else 100_000
SLACK = 256 * 1024
"""Bytes: caches and free lists of the interpreter, a few bytes a hundred calls at most."""


def unknown() -> Iterator[tuple[str, pb.GetRequest | pb.ReleaseRequest | pb.PutRequest | pb.AbortRequest]]:
    """Calls about keys, tokens and readers that the store has never heard of, no two alike."""
    for number in range(CALLS):
        key = rp.HandoffKey(namespace=f"n{number}", room=number, sample=number)
        which = number % 4
        if which == 0:
            yield "Get", requests.get(key, reader=f"reader-{number}", attempt=number)
        elif which == 1:
            yield "Release", pb.ReleaseRequest(key=key, reader_id=f"reader-{number}")
        elif which == 2:
            yield "Put", requests.put(key, b"token-%d" % number)
        else:
            yield "Abort", requests.abort(key, token=b"token-%d" % number)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("metered", [False, True])
def test_unknown_keys(metered: bool) -> None:
    lives, metrics = Lives(FakeClock()), CallMetrics()
    observers: tuple[Observer, ...] = (lives,) if metered else ()
    store = core(FakeClock(), *observers, slots=4)
    calls = Calls(store, Describer("0", 128, 1 << 22, ()), 128, (metrics.wrap,) if metered else (), None)
    refusals = 0
    tracemalloc.start()
    try:
        warm = 0
        for number, (method, request) in enumerate(unknown()):
            if number == 2000:
                warm = _used()
            try:
                calls.handlers[method](request.SerializeToString(), StatedCall(), print)
            except Refusal:
                refusals += 1
        assert _used() - warm < SLACK
    finally:
        tracemalloc.stop()
    assert refusals == CALLS * 3 // 4  # a reader's Release is always OK
    assert store.census() == core(FakeClock(), slots=4).census()


def test_waits_that_end_leave_nothing() -> None:
    clock = FakeClock()
    store = core(clock, slots=4, max_waiters=1000)
    calls = Calls(store, Describer("0", 128, 1 << 22, ()), 128)
    answers: list[object] = []

    def wait(number: int, cancel: Callable[[int], bool]) -> None:
        request = requests.get(rp.HandoffKey(namespace=f"n{number}", room=number), max_wait=1)
        parked = calls.handlers["Get"](request.SerializeToString(), StatedCall(), answers.append)
        assert not isinstance(parked, bytes)
        if cancel(number):
            assert parked.cancel()

    def turn(base: int) -> None:
        for number in range(base, base + 1000):
            wait(number, lambda number: number % 2 == 0)
        clock.advance(2)
        store.tick()
        answers.clear()
        assert store.waiting == 0

    turn(0)
    tracemalloc.start()
    try:
        turn(1000)
        warm = _used()
        for base in range(2000, 22_000, 1000):
            turn(base)
        assert _used() - warm < SLACK
    finally:
        tracemalloc.stop()


def test_what_is_remembered_is_bounded() -> None:
    store = core(FakeClock(), slots=4, tombstones=100)
    calls = Calls(store, Describer("0", 128, 1 << 22, ()), 128)
    for number in range(5000):
        request = requests.abort(rp.HandoffKey(room=number), attempt=number % 7)
        calls.handlers["Abort"](request.SerializeToString(), StatedCall(), print)
    assert store.census().tombstones == 100


def _refused() -> Iterator[tuple[str, Message]]:
    """Calls that a store of one slot, which room 0 has, refuses, alone and in batches."""
    record = records.full()
    gets = [requests.get(number) for number in range(1, 9)]
    puts = [requests.put(number, b"no token", record) for number in range(8)]
    yield "Get", gets[0]
    yield "BatchGet", pb.BatchGetRequest(requests=gets)
    yield "Put", puts[0]
    yield "BatchPut", pb.BatchPutRequest(requests=puts)
    yield "Reserve", requests.reserve(0, "somebody else")
    yield "Reserve", requests.reserve(1)
    yield "BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(number) for number in (1, 2)])
    yield "Put", pb.PutRequest(key=requests.key(1), record=record, reserve=requests.reserve(None))


@pytest.mark.parametrize("reader", ["off", "required"])
def test_refusals_leave_no_cycles(reader: str) -> None:
    """What was refused is freed at once: the search for cycles is rare, and a request may be large."""
    store = core(FakeClock(), slots=1)
    found = parser.load(SCHEMA_FINGERPRINT, reader)
    calls = Calls(store, Describer("0", 128, 1 << 22, ()), 128, reader=found)
    calls.handlers["Reserve"](requests.reserve(0).SerializeToString(), StatedCall(), print)
    left = {}
    gc.collect()
    gc.disable()
    try:
        for number, (method, request) in enumerate(_refused()):
            data = request.SerializeToString()
            for _ in range(50):
                with contextlib.suppress(Refusal):
                    calls.handlers[method](data, StatedCall(), print)
            left[number, method] = gc.collect()
    finally:
        gc.enable()
    assert {what: count for what, count in left.items() if count >= 50} == {}


def _used() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
