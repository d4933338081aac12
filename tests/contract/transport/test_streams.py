"""Sessions as the transports carry them: a reader that does not read, and a server that stops."""

from __future__ import annotations

import queue
import random
from typing import Any

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.handlers.session import MAX_UNSENT_BYTES

from tests.support import records
from tests.support import requests as requests_of
from tests.support.local import LocalStore
from tests.support.waits import PATIENCE, eventually

pytestmark = pytest.mark.internals

SESSION = "/pd_handoff.v1.MetadataStore/Session"


def open_session(store: LocalStore) -> tuple[queue.SimpleQueue[bytes | None], Any]:
    """What goes out over a new stream (None ends it), and what comes back."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    method: Any = store.channel().stream_stream(SESSION)
    return requests, method(iter(requests.get, None), timeout=PATIENCE)


def ask(call_id: int) -> bytes:
    """A request whose answer is not small."""
    request = pb.SessionRequest(call_id=call_id, capabilities=pb.CapabilitiesRequest())
    return request.SerializeToString()


@pytest.mark.parametrize("transport", ["fast"])
def test_answers_do_not_pile_up_for_a_reader_that_does_not_read(store: LocalStore) -> None:
    hidden = rp.Tensor(dtype=rp.DATA_TYPE_FLOAT8_E5M2, shape=[32768], data=bytes(32768))
    store.steps().put_once(2, records.record(speculative=rp.SpeculativeState(hidden_states=hidden)))
    requests, answers = open_session(store)
    asked = 2000
    wait = pb.GetRequest(key=requests_of.key(1), max_wait=requests_of.seconds(300))
    requests.put(pb.SessionRequest(call_id=asked, get=wait).SerializeToString())  # its answer may come at any time
    store.until_waiting(1)
    for call_id in range(asked):
        requests.put(pb.SessionRequest(call_id=call_id, get=pb.GetRequest(key=requests_of.key(2))).SerializeToString())
    server: Any = store.app.server
    [stream] = server._front.streams
    eventually(lambda: stream._unsent_bytes > MAX_UNSENT_BYTES, "answers wait")
    eventually(lambda: not stream._receiving, "nothing more is received")
    assert stream._unsent_bytes < MAX_UNSENT_BYTES + 65536
    seen = {pb.SessionResponse.FromString(next(answers)).call_id for _ in range(asked)}
    assert seen == set(range(asked))  # nothing was lost, once it does read
    assert stream._unsent_bytes == 0
    store.steps().put_once(1)
    assert pb.SessionResponse.FromString(next(answers)).call_id == asked
    requests.put(None)
    assert next(answers, None) is None
    assert store.waiting == 0


@pytest.mark.settings(grace=60.0)
@pytest.mark.parametrize("idle", [False, True], ids=["used", "never used"])
def test_a_server_that_stops_ends_open_sessions(store: LocalStore, idle: bool) -> None:
    requests, answers = open_session(store)
    if not idle:
        requests.put(ask(1))
        assert pb.SessionResponse.FromString(next(answers)).call_id == 1
    else:
        answers.initial_metadata() if store.app.server.name == "fast" else None
    ending = store.begin_drain()
    if store.app.server.name == "fast" or not idle:
        with pytest.raises(grpc.RpcError) as caught:
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    ending.result(PATIENCE / 2)  # not for all of its grace
    requests.put(None)


@pytest.mark.parametrize("transport", ["fast"])
def test_requests_that_come_together_are_answered_in_order(store: LocalStore) -> None:
    requests, answers = open_session(store)
    for count in (1, 2, 300, 1, 1, 300, 5):
        for call_id in range(count):
            requests.put(ask(call_id))
        assert [pb.SessionResponse.FromString(next(answers)).call_id for _ in range(count)] == list(range(count))
    server: Any = store.app.server
    [stream] = server._front.streams
    eventually(lambda: stream._sending == stream._riding and not stream.holder.unread, "the last is out")
    requests.put(None)
    assert next(answers, None) is None
    assert server._front.unread.held == 0


@pytest.mark.parametrize("transport", ["fast"])
@pytest.mark.parametrize("waits", [0, 3])
def test_the_end_that_comes_with_requests_comes_after_their_answers(store: LocalStore, waits: int) -> None:
    requests, answers = open_session(store)
    requests.put(ask(0))
    next(answers)
    for room in range(waits):
        wait = pb.GetRequest(key=requests_of.key(room), max_wait=requests_of.seconds(300))
        requests.put(pb.SessionRequest(call_id=1000 + room, get=wait).SerializeToString())
    for call_id in range(200):
        requests.put(ask(call_id))
    requests.put(None)
    seen = [pb.SessionResponse.FromString(next(answers)).call_id for _ in range(200)]
    assert seen == list(range(200))
    store.until_waiting(waits)
    for room in range(waits):
        store.steps().put_once(room)
    assert sorted(pb.SessionResponse.FromString(answer).call_id for answer in answers) == list(
        range(1000, 1000 + waits)
    )
    eventually(lambda: not store.app.server._front.streams, "the stream is over")  # type: ignore[attr-defined]


@pytest.mark.parametrize("transport", ["fast"])
def test_many_streams_at_once(store: LocalStore) -> None:
    opened = [open_session(store) for _ in range(8)]
    for turn in range(20):
        for requests, _ in opened:
            for call_id in range(turn % 5 + 1):
                requests.put(ask(call_id))
        for _, answers in opened:
            seen = [pb.SessionResponse.FromString(next(answers)).call_id for _ in range(turn % 5 + 1)]
            assert seen == list(range(turn % 5 + 1))
    for requests, answers in opened:
        requests.put(None)
        assert next(answers, None) is None


@pytest.mark.parametrize("transport", ["fast"])
@pytest.mark.settings(slots=64)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_streams_that_end_in_whatever_way(store: LocalStore, seed: int) -> None:
    chance = random.Random(seed)
    room = 0
    for _ in range(40):
        opened = [open_session(store) for _ in range(chance.randint(1, 6))]
        for requests, answers in opened:
            for call_id in range(chance.choice([0, 1, 2, 70])):
                room += 1
                kind = chance.choice(["ask", "wait", "put"])
                if kind == "ask":
                    requests.put(ask(call_id))
                elif kind == "wait":
                    wait = pb.GetRequest(key=requests_of.key(room + 1), max_wait=requests_of.seconds(300))
                    requests.put(pb.SessionRequest(call_id=call_id, get=wait).SerializeToString())
                else:
                    put = requests_of.put_once(room % 50)
                    requests.put(pb.SessionRequest(call_id=call_id, put=put).SerializeToString())
            if chance.random() < 0.5:
                requests.put(ask(1000))
                while pb.SessionResponse.FromString(next(answers)).call_id != 1000:
                    pass
        for requests, answers in opened:
            if chance.random() < 0.5:
                requests.put(None)
            answers.cancel()
            requests.put(None)
    server: Any = store.app.server
    eventually(lambda: not server._front.streams, "all streams are over")
    eventually(lambda: not server._loop.alive(), "no call is left")
    eventually(lambda: store.waiting == 0, "nothing waits")
    assert server._front.unread.held == 0
    assert store.core.census().waiting_bytes == 0
