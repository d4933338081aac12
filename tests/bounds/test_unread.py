"""Answers that their callers do not read: bounded by connection, by caller and in all, and nobody loses anything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_reflection.v1alpha import reflection_pb2
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.handlers.call import Call, StatedCall
from pd_handoff_server.handlers.send_budget import Unread

from tests.faults import http2
from tests.faults.http2 import Connection, frame
from tests.support import records, requests
from tests.support.caller import ADMIN, STORE, UnaryCaller
from tests.support.credentials import access_file, bearing
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps
from tests.support.waits import at_once, eventually

REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
LIMIT = 1 << 20
RECORD = 36 << 10
NO_WINDOW = struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0)
TCP: dict[str, Any] = {"listen": ("127.0.0.1:0",), "max_unread_bytes": LIMIT}
"""Over TCP each connection is known from the others."""

over_tcp: pytest.MarkDecorator = pytest.mark.settings(**TCP)
over_tcp_with_contents: pytest.MarkDecorator = pytest.mark.settings(**TCP, admin_contents=True)


def large() -> rp.HandoffRecord:
    """A record of about 36 KiB."""
    hidden = rp.Tensor(dtype=rp.DATA_TYPE_FLOAT8_E5M2, shape=[32768], data=bytes(32768))
    return records.record(speculative=rp.SpeculativeState(hidden_states=hidden), customized_info=bytes(RECORD - 32768))


class Deaf:
    """A connection that asks and opens no window for the answers."""

    def __init__(self, store: LocalStore, *metadata: tuple[str, str]) -> None:
        self._connection = Connection(store.target, settings=NO_WINDOW)
        self._metadata = metadata
        self._stream = 1
        self.trailers = 0

    def ask(self, method: str, request: Any, times: int = 1, *, messages: int = 0) -> None:
        """So many calls; with `messages`, so many of them in each, which is then left open."""
        body = http2.message(request.SerializeToString()) * max(messages, 1)
        for _ in range(times):
            opening = self._connection.open_call(self._stream, method, *self._metadata)
            data = frame(http2.DATA, 0 if messages else http2.END_STREAM, self._stream, body)
            assert self._connection.send(opening + data)
            self._stream += 2

    def refused(self) -> int:
        """How many calls have come to an end so far: none but refused ones can."""
        self._connection.listen(0.05)
        for kind, flags, _, _ in self._connection.frames():
            self.trailers += kind == http2.HEADERS and bool(flags & http2.END_STREAM)
        return self.trailers

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


MakeDeaf = Callable[..., Deaf]


@pytest.fixture
def deaf(store: LocalStore) -> Iterator[MakeDeaf]:
    """Opens connections that do not read."""
    made: list[Deaf] = []

    def make(*metadata: tuple[str, str]) -> Deaf:
        made.append(Deaf(store, *metadata))
        return made[-1]

    yield make
    for each in made:
        each.close()
    eventually(lambda: store.app.gate.unread.held == 0, "nothing is held for those who left")


def held(store: LocalStore) -> int:
    return store.app.gate.unread.held


def batch_of(room: int, items: int = 128) -> pb.BatchGetRequest:
    return pb.BatchGetRequest(requests=[requests.get(room)] * items)


@over_tcp
def test_batches_that_are_not_read(store: LocalStore, deaf: MakeDeaf) -> None:
    honest = store.steps()
    honest.publish(1, large())
    peer = deaf()
    peer.ask(f"/{STORE}/BatchGet", batch_of(1, 5), 250)
    eventually(lambda: peer.refused() > 200, "most are refused")
    assert LIMIT // 3 <= held(store) <= LIMIT // 3 + 5 * (RECORD + 1024)
    assert honest.record(1, reader="honest") == large()


@over_tcp
def test_gets_that_are_not_read_over_many_connections(store: LocalStore, deaf: MakeDeaf) -> None:
    honest = store.steps()
    honest.publish(1, large())
    peers = [deaf() for _ in range(8)]
    for peer in peers:
        peer.ask(f"/{STORE}/Get", requests.get(1), 100)
    eventually(lambda: sum(peer.refused() for peer in peers) > 700, "most are refused")
    assert LIMIT // 3 <= held(store) <= LIMIT // 2 + RECORD + 1024  # they are all one host


def test_an_answer_alone_is_always_possible(start: Start) -> None:
    store = start(**{**TCP, "max_unread_bytes": 1})
    steps = store.steps()
    steps.publish(1, large())
    for _ in range(3):
        assert steps.record(1) == large()
        eventually(lambda: held(store) == 0, "it is out")
    answer: pb.BatchGetResponse = steps.caller.call("BatchGet", batch_of(1))
    assert [result.response.record for result in answer.results] == [large()] * 128


@over_tcp
def test_who_is_refused_has_lost_nothing(store: LocalStore, deaf: MakeDeaf) -> None:
    steps = store.steps()
    steps.publish(1, large())
    steps.publish(2, large())
    peer = deaf()
    peer.ask(f"/{STORE}/Get", requests.get(1), 40)
    eventually(lambda: held(store) >= LIMIT // 3, "it holds its share")
    peer.ask(f"/{STORE}/Get", requests.get(2, reader="d", consume=True))
    peer.ask(f"/{STORE}/Put", requests.put_once(3))
    peer.ask(f"/{STORE}/Abort", requests.abort(2))
    eventually(lambda: peer.refused() == 43 - held(store) // RECORD, "all of them are refused")
    assert store.sight(2).state == admin_pb2.HANDOFF_STATE_PUBLISHED
    assert [each.key.room for each in store.listing()] == [1, 2]
    assert steps.record(2, reader="d") == large()


@over_tcp
def test_thousands_that_wait_for_one_record(store: LocalStore, deaf: MakeDeaf) -> None:
    steps = store.steps()
    peer = deaf()
    peer.ask(f"/{STORE}/Get", requests.get(1, max_wait=60), 200)
    store.until_waiting(200)
    steps.publish(1, large())
    assert LIMIT // 3 <= held(store) <= LIMIT // 3 + RECORD + 1024
    eventually(lambda: peer.refused() > 180, "most are refused")
    assert steps.record(1, reader="honest") == large()


@over_tcp
def test_who_has_waited_is_refused_before_it_is_counted_as_a_reader(store: LocalStore, deaf: MakeDeaf) -> None:
    steps = store.steps()
    steps.publish(1, large())
    token = steps.reserve(9).token
    waiting = steps.caller.start("Get", requests.get(9, reader="honest", consume=True, max_wait=60))
    store.until_waiting(1)
    peers = [deaf() for _ in range(8)]
    for peer in peers:
        peer.ask(f"/{STORE}/Get", requests.get(1), 40)
    eventually(lambda: held(store) >= LIMIT // 2, "their host holds its share, which is the reader's too")
    with refused("TOO_MANY_WAITERS", limit=LIMIT):
        steps.put(9, token, large())
    assert store.app.store is not None
    store.app.store.put(("", 9, 0), token, large(), at_once)  # as a producer on another host does
    with refused("TOO_MANY_WAITERS", limit=LIMIT):
        waiting.result()
    for peer in peers:
        peer.close()
    eventually(lambda: held(store) == 0, "nothing is held for those who left")
    assert store.sight(9).readers_done == 0
    assert steps.record(9, reader="honest") == large()


@over_tcp
def test_a_batch_holds_nothing_while_it_waits_and_its_share_from_then_on(store: LocalStore, deaf: MakeDeaf) -> None:
    steps = store.steps()
    steps.publish(1, large())
    peer = deaf()
    waiting = pb.BatchGetRequest(requests=[requests.get(1)] * 5 + [requests.get(9, max_wait=60)])
    peer.ask(f"/{STORE}/BatchGet", waiting, 50)
    store.until_waiting(50)
    assert held(store) == 0
    steps.publish(9, large())
    eventually(lambda: peer.refused() > 30, "most are refused")
    assert LIMIT // 3 <= held(store) <= LIMIT // 3 + 6 * (RECORD + 1024)
    peer.close()
    eventually(lambda: held(store) == 0, "nothing is held for who has left")
    assert store.waiting == 0


@over_tcp
def test_a_batch_that_waited_is_answered_whole(store: LocalStore) -> None:
    steps = store.steps()
    steps.publish(1, large())
    waiting = steps.caller.start(
        "BatchGet", pb.BatchGetRequest(requests=[requests.get(1), requests.get(9, max_wait=60)])
    )
    store.until_waiting(1)
    assert held(store) == 0
    steps.publish(9, large())
    assert [result.response.record for result in waiting.result().results] == [large()] * 2
    eventually(lambda: held(store) == 0, "it is out")


@over_tcp
def test_many_sessions_that_are_not_read(store: LocalStore, deaf: MakeDeaf) -> None:
    honest = store.steps("session")
    honest.publish(1, large())
    peer = deaf()
    get = pb.SessionRequest(call_id=1, get=requests.get(1))
    peer.ask(f"/{STORE}/Session", get, 100, messages=25)
    eventually(lambda: held(store) >= LIMIT // 3, "it holds its share")
    assert honest.record(1, reader="honest") == large()
    late = Steps(store.caller("session"))
    for room in range(10, 60):
        late.put_once(room)
        assert late.get(room, reader="d").record == records.record()
        late.abort(room)
    assert held(store) <= LIMIT // 2  # with what tells of refusals


@pytest.mark.parametrize("transport", ["aio"])  # on the other one they take turns
@over_tcp
def test_reflections_that_are_not_read(store: LocalStore, deaf: MakeDeaf) -> None:
    peer = deaf()
    ask = reflection_pb2.ServerReflectionRequest(file_containing_symbol=STORE)
    peer.ask(f"/{REFLECTION}/ServerReflectionInfo", ask, 200, messages=1)
    eventually(lambda: peer.refused() > 50, "many are refused")
    assert LIMIT // 3 <= held(store) <= LIMIT // 2
    assert store.steps().free == 8


@over_tcp_with_contents
def test_answers_of_the_admin_service(store: LocalStore, deaf: MakeDeaf) -> None:
    steps = store.steps()
    steps.publish(1, large())
    peer = deaf()
    peer.ask(f"/{ADMIN}/GetHandoff", admin_pb2.GetHandoffRequest(key=requests.key(1), include_record=True), 100)
    eventually(lambda: peer.refused() > 80, "most are refused")
    assert LIMIT // 3 <= held(store) <= LIMIT // 3 + 5 * (RECORD + 1024)  # some of them run side by side
    assert store.sight(1).attempt == 0


def test_callers_with_names_of_their_own(start: Start, tmp_path: Path) -> None:
    tokens = {name: f"{name}-token-0123456789" for name in ("hog", "other")}
    lines = [f"{name} prefill,decode * {token}" for name, token in tokens.items()]
    store = start(**TCP, token_file=str(access_file(tmp_path / "t", *lines)))
    other = Steps(UnaryCaller(bearing(store.channel(), tokens["other"])))
    again = Steps(UnaryCaller(bearing(store.channel(), tokens["hog"])))
    other.publish(1, large())
    peers = [Deaf(store, ("authorization", f"Bearer {tokens['hog']}")) for _ in range(20)]
    for peer in peers:
        peer.ask(f"/{STORE}/Get", requests.get(1), 20)
    eventually(lambda: held(store) >= LIMIT // 2, "the hog has half")
    with refused("TOO_MANY_WAITERS", limit=LIMIT) as caught:
        again.get(1)
    assert "--max-unread-bytes" in caught.error.message
    assert caught.error.retry_after
    assert other.record(1) == large()
    for peer in peers:
        peer.close()
    eventually(lambda: held(store) == 0, "nothing is held for those who left")
    assert again.record(1) == large()


# -- the shares --------------------------------------------------------------------------------------------------------


def fill(unread: Unread, peer: str) -> list[Call]:
    """Calls of a byte from there, until one is refused."""
    calls: list[Call] = []
    while True:
        call = StatedCall(None, peer)
        if unread.over(call) is not None:
            return calls
        unread.begin(call)
        unread.hold(call, 1)
        calls.append(call)


def test_shares_of_connections_and_of_hosts() -> None:
    unread = Unread(900)
    first = fill(unread, "ipv4:10.0.0.1:1")
    assert len(first) == 300
    more = [fill(unread, f"ipv4:10.0.0.1:{port}") for port in range(2, 20)]
    assert unread.held == 450
    assert [len(each) for each in more[:3]] == [100, 34, 11]
    assert len(fill(unread, "ipv4:10.0.0.2:1")) == 150
    assert unread.held <= 900
    for call in first:
        unread.end(call)
    assert fill(unread, "ipv4:10.0.0.1:1")
    everybody = [fill(unread, f"ipv4:10.0.{host}.1:1") for host in range(3, 90)]
    assert all(everybody[:4])
    assert unread.held <= 900


def test_accounts_are_kept_under_pressure_alone() -> None:
    unread = Unread(900)
    calls = fill(unread, "ipv4:10.0.0.1:1")
    assert unread.books is not None
    for call in calls[:200]:
        unread.end(call)
    assert unread.books is None
    assert len(fill(unread, "ipv4:10.0.0.1:1")) == 200  # those that were held before are counted again
    for call in calls:
        unread.end(call)
