"""Contract section 5, Session: many single calls over one stream, answered in any order, holding up nothing."""

from __future__ import annotations

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests
from tests.support.caller import Stream
from tests.support.failures import check, of_status
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

MAX_IN_FLIGHT = 1024


@pytest.fixture
def stream(store: LocalStore) -> Stream:
    """A stream on a connection of its own."""
    return Stream(store.channel())


def get(call_id: int, room: int, max_wait: float | None = None) -> pb.SessionRequest:
    """A Get on a Session."""
    return pb.SessionRequest(call_id=call_id, get=requests.get(room, max_wait=max_wait))


def test_answers_come_in_any_order_and_a_parked_get_holds_up_nothing(stream: Stream, store: LocalStore) -> None:
    for call_id, room in ((1, 1), (2, 2), (3, 3)):
        stream.send(get(call_id, room, 300))
    store.until_waiting(3)
    stream.send(pb.SessionRequest(call_id=4, capabilities=pb.CapabilitiesRequest()))
    assert stream.receive().call_id == 4
    for call_id, room in ((5, 3), (6, 1), (7, 2)):
        stream.send(pb.SessionRequest(call_id=call_id, put=requests.put_once(room, records.numbered(room))))
        pair = {answer.call_id: answer for answer in (stream.receive(), stream.receive())}
        assert pair.keys() == {call_id, room}  # the Get's id is its room
        assert pair[room].get.record == records.numbered(room)
        assert pair[call_id].HasField("put")


@pytest.mark.settings(slots=8)
def test_all_six_calls(stream: Stream) -> None:
    stream.send(pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()))
    assert stream.receive().capabilities.slots_total == 8
    stream.send(pb.SessionRequest(call_id=2, reserve=requests.reserve(7)))
    token = stream.receive().reserve.token
    stream.send(pb.SessionRequest(call_id=3, put=requests.put(7, token)))
    assert stream.receive().HasField("put")
    stream.send(get(4, 7))
    assert stream.receive().get.record == records.record()
    stream.send(pb.SessionRequest(call_id=5, release=pb.ReleaseRequest(key=requests.key(7), token=token)))
    answer = stream.receive()
    assert (answer.call_id, answer.WhichOneof("result")) == (5, "release")
    stream.send(pb.SessionRequest(call_id=6, abort=requests.abort(7)))
    assert stream.receive().abort.ended


@pytest.mark.parametrize("call_id", [0, 1, 127, 128, (1 << 32), (1 << 63), (1 << 64) - 1])
def test_every_call_id_is_echoed(stream: Stream, call_id: int) -> None:
    stream.send(pb.SessionRequest(call_id=call_id, capabilities=pb.CapabilitiesRequest()))
    answer = stream.receive()
    assert answer.call_id == call_id
    assert answer.HasField("capabilities")


@pytest.mark.internals
def test_a_call_id_in_use_twice(stream: Stream, store: LocalStore) -> None:
    stream.send(get(1, 7, 300))
    store.until_waiting(1)
    stream.send(pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()))
    refusal = stream.receive()
    assert refusal.call_id == 1
    error = of_status(refusal.error)
    check(error, "INVALID_REQUEST")
    assert list(error.violations) == ["call_id"]
    assert store.waiting == 1  # the first one is not harmed
    stream.send(pb.SessionRequest(call_id=2, put=requests.put_once(7)))
    answers = {answer.call_id: answer for answer in (stream.receive(), stream.receive())}
    assert answers[1].get.record == records.record()
    stream.send(pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()))  # answered: free again
    assert stream.receive().HasField("capabilities")


def test_no_call_at_all(stream: Stream) -> None:
    for empty in (pb.SessionRequest(call_id=5), b"\x08\x05", b"\x08\x05\xfa\x01\x00"):
        stream.send(empty)
        answer = stream.receive()
        assert answer.call_id == 5
        check(of_status(answer.error), "INVALID_REQUEST")


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x0a", b"\x08", b"\x22\x05ab", b"\x08\x05\x22\x02\x0a\x7f"])
def test_bytes_that_are_no_request_are_refused_and_the_stream_lives_on(stream: Stream, garbage: bytes) -> None:
    stream.send(garbage)
    check(of_status(stream.receive().error), "INVALID_REQUEST")
    stream.send(pb.SessionRequest(call_id=9, capabilities=pb.CapabilitiesRequest()))
    assert stream.receive().call_id == 9


def test_fields_in_another_order_mean_the_same(stream: Stream) -> None:
    call = pb.SessionRequest(capabilities=pb.CapabilitiesRequest(required=pb.Widths(top_logprobs=1)))
    stream.send(call.SerializeToString() + b"\x08\x2a")
    answer = stream.receive()
    assert (answer.call_id, answer.WhichOneof("result")) == (42, "capabilities")


@pytest.mark.internals
def test_calls_in_flight_are_bounded(stream: Stream, store: LocalStore, unary: Steps) -> None:
    for call_id in range(MAX_IN_FLIGHT):
        stream.send(get(call_id, call_id, 300))
    store.until_waiting(MAX_IN_FLIGHT)
    stream.send(get(5000, 5000, 300))
    refusal = stream.receive()
    assert refusal.call_id == 5000
    check(of_status(refusal.error), "TOO_MANY_WAITERS", limit=MAX_IN_FLIGHT)
    assert store.waiting == MAX_IN_FLIGHT
    other = Stream(store.channel())  # another stream has a bound of its own
    other.send(get(1, 5000, 300))
    store.until_waiting(MAX_IN_FLIGHT + 1)
    unary.abort(3)
    assert stream.receive().call_id == 3
    stream.send(get(5001, 5001, 300))  # and there is room again
    store.until_waiting(MAX_IN_FLIGHT + 1)
    other.cancel()
    stream.cancel()
    store.until_waiting(0)


@pytest.mark.internals
def test_when_the_stream_ends_its_parked_calls_are_dropped_and_what_was_done_stays(
    stream: Stream, store: LocalStore, unary: Steps
) -> None:
    for room in range(8):
        stream.send(pb.SessionRequest(call_id=room, reserve=requests.reserve(room, lease=60)))
    tokens = {answer.call_id: answer.reserve.token for answer in (stream.receive() for _ in range(8))}
    stream.send(pb.SessionRequest(call_id=20, put=requests.put(0, tokens[0], records.full())))
    assert stream.receive().HasField("put")
    stream.send(pb.SessionRequest(call_id=21, reserve=requests.reserve(8, max_wait=300)))
    stream.send(get(22, 1, 300))
    store.until_waiting(2)
    assert store.sight(1).waiting == 1
    stream.cancel()
    store.until_waiting(0)
    assert store.sight(1).waiting == 0
    unary.put(1, tokens[1], records.full(1))
    assert unary.record(0) == records.full()
    assert unary.record(1, reader="decode") == records.full(1)
    unary.reserve(9)  # the dropped Reserve took nothing of it


def test_half_close_ends_the_stream_once_everything_is_answered(
    stream: Stream, store: LocalStore, unary: Steps
) -> None:
    stream.send(pb.SessionRequest(call_id=1, capabilities=pb.CapabilitiesRequest()))
    stream.send(get(2, 7, 300))
    stream.send(get(3, 8, 300))
    store.until_waiting(2)
    stream.half_close()
    assert stream.receive().call_id == 1
    assert not stream.ended.done()
    unary.publish(8, records.numbered(8))
    unary.abort(7)
    second, third = sorted(stream, key=lambda answer: answer.call_id)
    assert (second.call_id, second.HasField("error"), third.get.record) == (2, True, records.numbered(8))
    assert stream.ended.result(20) is grpc.StatusCode.OK


def test_half_close_with_nothing_open_ends_the_stream(stream: Stream) -> None:
    stream.send(get(1, 7))
    stream.half_close()
    assert [answer.call_id for answer in stream] == [1]
    assert stream.ended.result(20) is grpc.StatusCode.OK


def test_leaving_after_half_close_drops_what_waits(stream: Stream, store: LocalStore) -> None:
    stream.send(get(1, 7, 300))
    store.until_waiting(1)
    stream.half_close()
    stream.cancel()
    store.until_waiting(0)


def test_streams_do_not_see_each_others_ids(store: LocalStore) -> None:
    streams = [Stream(store.channel()) for _ in range(3)]
    for number, each in enumerate(streams):
        each.send(get(1, number, 300))
    store.until_waiting(3)
    for number, each in enumerate(streams):
        each.send(pb.SessionRequest(call_id=2, put=requests.put_once(number, records.numbered(number))))
        answers = {answer.call_id: answer for answer in (each.receive(), each.receive())}
        assert answers[1].get.record == records.numbered(number)


def test_a_burst_is_answered_whole(stream: Stream) -> None:
    for call_id in range(3000):
        stream.send(get(call_id, 999))
    answers = [stream.receive() for _ in range(3000)]
    assert sorted(answer.call_id for answer in answers) == list(range(3000))
    assert {answer.error.code for answer in answers} == {grpc.StatusCode.NOT_FOUND.value[0]}


@pytest.mark.internals
def test_drain_answers_what_is_parked(stream: Stream, store: LocalStore) -> None:
    stream.send(get(1, 7, 300))
    store.until_waiting(1)
    store.core.drain()
    answer = stream.receive()
    assert answer.call_id == 1
    check(of_status(answer.error), "DRAINING")
    stream.send(pb.SessionRequest(call_id=2, reserve=requests.reserve(7)))
    check(of_status(stream.receive().error), "DRAINING")
