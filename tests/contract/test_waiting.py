"""Contract section 5: waiting calls cost no thread each and hold up nobody; those who leave leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.caller import SessionCaller, Stream, UnaryCaller, UnaryPending
from tests.support.failures import CallFailed, refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.internals

PUBLISHED = admin_pb2.HANDOFF_STATE_PUBLISHED


@pytest.mark.settings(slots=256)
def test_put_and_capabilities_answer_while_200_gets_wait(store: LocalStore, kind: str) -> None:
    answer_while_waiting(store, kind, 200)


@pytest.mark.settings(slots=256)
@pytest.mark.parametrize("kind", ["unary", "session"])
def test_put_and_capabilities_answer_while_2000_gets_wait(store: LocalStore, kind: str) -> None:
    answer_while_waiting(store, kind, 2000)


def answer_while_waiting(store: LocalStore, kind: str, count: int) -> None:
    """Have so many Gets wait, do other work past them, then answer each with its own record."""
    callers = [store.steps(kind) for _ in range(4)]  # a Session carries up to 1,024
    threads = threading.active_count()
    waiting = [callers[room % 4].start_get(room, reader="decode") for room in range(count)]
    store.until_waiting(count)
    assert threading.active_count() - threads < 40  # the callers have one each, the store none more
    other = store.steps(kind)
    assert other.free == 256
    assert other.exchange(1 << 40) == records.full()
    assert store.waiting == count  # all of that, and nobody was disturbed
    for room in range(count):
        other.put_once(room, records.numbered(room))
    for room, each in enumerate(waiting):
        assert each.result().record == records.numbered(room)
    assert store.waiting == 0
    assert other.free == 256


Leave = Callable[[LocalStore, requests.Key], None]


def cancel(store: LocalStore, key: requests.Key) -> None:
    """Three calls that wait, cancelled by their callers."""
    steps = store.steps()
    calls = [
        steps.start_get(key, reader="decode"),
        steps.start_reserve(100, max_wait=300),
        steps.caller.start("Put", requests.put_once(101, None, requests.reserve(None, max_wait=300)), None),
    ]
    store.until_waiting(3)
    for call in calls:
        assert isinstance(call, UnaryPending)
        call.cancel()


def pass_deadline(store: LocalStore, key: requests.Key) -> None:
    """The callers' deadlines pass; the store's clock stands still, so that it is gRPC that ends the calls."""
    steps = store.steps()
    get = requests.get(key, max_wait=300, reader="decode")
    calls = [steps.caller.start("Get", get, 0.3), steps.caller.start("Reserve", requests.reserve(100, max_wait=9), 0.3)]
    for call in calls:
        with pytest.raises(CallFailed) as caught:
            call.result()
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.reason == ""


def close_channel(store: LocalStore, key: requests.Key) -> None:
    """The connection of a caller ends."""
    channel = store.channel()
    steps = Steps(UnaryCaller(channel))
    calls = [steps.start_get(key, reader="decode"), steps.start_reserve(100, max_wait=300)]
    store.until_waiting(2)
    channel.close()
    del calls


def cancel_batch(store: LocalStore, key: requests.Key) -> None:
    """A batch is cancelled, some of its items answered already."""
    unary = store.steps()
    batch = pb.BatchGetRequest(
        requests=[requests.get(each, max_wait=300, reader="decode") for each in (key, 102, 103, 104)]
    )
    call = unary.caller.start("BatchGet", batch, None)
    store.until_waiting(4)
    unary.abort(103)
    store.until_waiting(3)
    assert isinstance(call, UnaryPending)
    call.cancel()


def end_stream(store: LocalStore, key: requests.Key) -> None:
    """A Session ends with calls that wait."""
    stream = Stream(store.channel())
    stream.send(pb.SessionRequest(call_id=1, get=requests.get(key, max_wait=300, reader="decode")))
    stream.send(pb.SessionRequest(call_id=2, reserve=requests.reserve(100, max_wait=300)))
    store.until_waiting(2)
    stream.cancel()


def close_channel_of_stream(store: LocalStore, key: requests.Key) -> None:
    """The connection under a Session ends."""
    channel = store.channel()
    steps = Steps(SessionCaller(channel))
    calls = [steps.start_get(key, reader="decode"), steps.start_reserve(100, max_wait=300)]
    store.until_waiting(2)
    channel.close()
    for call in calls:
        with pytest.raises(CallFailed):
            call.result()


WAYS: list[Leave] = [cancel, pass_deadline, close_channel, cancel_batch, end_stream, close_channel_of_stream]


@pytest.mark.settings(slots=2)
@pytest.mark.parametrize("leave", WAYS, ids=[way.__name__ for way in WAYS])
def test_those_who_leave_leave_nothing_behind(store: LocalStore, leave: Leave) -> None:
    unary = store.steps()
    token = unary.reserve(7, lease=60).token
    unary.reserve(8, lease=60)  # the arena is full: Reserves wait
    leave(store, 7)
    store.until_waiting(0)
    assert [handoff.waiting for handoff in store.listing()] == [0, 0]
    unary.abort(8)
    assert unary.free == 1  # nobody took it
    unary.put(7, token, records.full())
    assert (store.sight(7).state, store.sight(7).readers_done) == (PUBLISHED, 0)
    assert unary.record(7, reader="decode") == records.full()
    assert unary.free == 2
    with refused("HANDOFF_NOT_FOUND"):
        unary.get(100)


def test_a_cancelled_reader_gives_its_place_to_another(start: Start) -> None:
    store = start(max_waiters=1)
    unary = store.steps()
    for room in range(5):
        waiting = unary.start_get(room)
        store.until_waiting(1)
        with refused("TOO_MANY_WAITERS", limit=1):
            unary.get(99, max_wait=1)
        assert isinstance(waiting, UnaryPending)
        waiting.cancel()
        store.until_waiting(0)


@pytest.mark.internals
@pytest.mark.settings(slots=64)
def test_many_callers_come_and_go(store: LocalStore, kind: str) -> None:
    for turn in range(5):
        caller = store.caller(kind)
        steps = Steps(caller)
        waiting = [steps.start_get(turn * 100 + room) for room in range(50)]
        store.until_waiting(50)
        if turn % 2:
            store.steps().publish(turn * 100)
            waiting[0].result()
        for each in waiting:
            if hasattr(each, "cancel"):
                each.cancel()
        caller.close()
        store.until_waiting(0)
    assert store.steps().free == 62
