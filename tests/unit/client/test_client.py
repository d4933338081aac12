"""What each method sends and returns, through real gRPC, by both faces."""

from __future__ import annotations

import asyncio
import pickle
import threading
from array import array
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pd_handoff
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from pd_handoff import (
    Failure,
    GetItem,
    Handoff,
    HandoffInfo,
    HandoffState,
    Key,
    Logprobs,
    Published,
    Record,
    Reservation,
    ReserveItem,
    Retries,
    Token,
    Widths,
    digest_of_prompt,
    errors,
)
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

RECORD = Record(tokens=[Token(5, -0.5, Logprobs([-0.5], [5]))])
THEN = datetime(2030, 1, 2, 3, 4, 5, 678901, timezone.utc)
STAMP = Timestamp()
STAMP.FromDatetime(THEN)
RESERVED = pb.ReserveResponse(token=b"\x00t", lease=Duration(seconds=30, nanos=500_000_000), store_epoch="e")
PUT = pb.PutResponse(published_at=STAMP, store_epoch="e")
GOT = pb.GetResponse(record=RECORD.to_proto(), attempt=3, reserved_at=STAMP, published_at=STAMP, store_epoch="e")
HELD = Reservation(Key(7, 1, "ns"), b"\x00t", "me", 2, 30.5, "e")


def key(room: int, sample: int = 0, namespace: str = "") -> record_pb2.HandoffKey:
    return record_pb2.HandoffKey(room=room, sample=sample, namespace=namespace)


async def test_reserve(connect: Any, store: Any) -> None:
    store.script("Reserve", RESERVED)
    client = connect("PrefillClient", namespace="ns", instance_id="p0", epoch=9)
    held = await client.reserve(
        Key(7, 1), owner="me", widths=Widths(top_logprobs=20), lease=30.5, expected_readers=4, attempt=2, max_wait=1.25
    )
    assert held == Reservation(Key(7, 1, "ns"), b"\x00t", "me", 2, 30.5, "e", 4, Widths(top_logprobs=20))
    (call,) = store.calls
    assert call.request == pb.ReserveRequest(
        key=key(7, 1, "ns"),
        owner="me",
        widths=pb.Widths(top_logprobs=20),
        lease=Duration(seconds=30, nanos=500_000_000),
        expected_readers=4,
        attempt=2,
        producer=pb.Producer(instance_id="p0", epoch=9),
        max_wait=Duration(seconds=1, nanos=250_000_000),
    )
    assert 1.25 < call.time_remaining < 8


async def test_owners_are_made_up_and_differ(connect: Any, store: Any) -> None:
    store.script("Reserve", RESERVED)
    client = connect("PrefillClient")
    one, two = await client.reserve(1), await client.reserve(1)
    assert one.owner != two.owner
    assert [call.request.owner for call in store.calls] == [one.owner, two.owner]
    assert not store.calls[0].request.HasField("producer")
    assert "token" not in repr(one)


async def test_renew_repeats_what_was_reserved(connect: Any, store: Any) -> None:
    store.script("Reserve", RESERVED)
    client = connect("PrefillClient", namespace="other")
    held = await client.reserve(Key(7, namespace="ns"), expected_readers=2, widths=Widths(tokens=1), attempt=4)
    renewed = await client.renew(held)
    assert renewed == held
    first, second = (call.request for call in store.calls)
    assert second.lease == RESERVED.lease
    second.ClearField("lease")
    assert first == second


async def test_put(connect: Any, store: Any) -> None:
    store.script("Put", PUT)
    client = connect("PrefillClient")
    assert await client.put(HELD, RECORD) == Published(THEN, "e")
    assert await client.put(HELD, RECORD.to_proto()) == Published(THEN, "e")
    expected = pb.PutRequest(key=key(7, 1, "ns"), token=b"\x00t", record=RECORD.to_proto())
    assert [call.request for call in store.calls] == [expected, expected]


async def test_put_of_something_else(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    with pytest.raises(TypeError, match="Record"):
        await client.put(HELD, {"tokens": []})
    for first in (RECORD, 1, Key(1)):
        with pytest.raises(TypeError, match="put takes a Reservation, then a Record; the first is "):
            await client.put(first, HELD)
    with pytest.raises(errors.InvalidRecord):
        await client.put(HELD, Record(tokens=[Token(1, 1e40)]))
    assert store.calls == []


async def test_put_once(connect: Any, store: Any) -> None:
    store.script("Put", PUT)
    client = connect("PrefillClient")
    await client.put_once(7, RECORD, owner="me", lease=2, max_wait=3)
    (call,) = store.calls
    assert call.request == pb.PutRequest(
        key=key(7),
        record=RECORD.to_proto(),
        reserve=pb.ReserveRequest(
            owner="me", expected_readers=1, lease=Duration(seconds=2), max_wait=Duration(seconds=3)
        ),
    )
    assert call.time_remaining > 5


async def test_release_and_abort(connect: Any, store: Any) -> None:
    store.script("Release", pb.ReleaseResponse())
    store.script("Abort", pb.AbortResponse(ended=True), pb.AbortResponse(ended=False))
    prefill, decode = connect("PrefillClient"), connect("DecodeClient", reader_id="rank0", namespace="ns")
    assert await prefill.release(HELD) is None
    assert await decode.release(7) is None
    assert await decode.release(7, reader_id="rank1") is None
    assert await prefill.abort(HELD, Failure(400, "TOO_LONG", "input too long")) is True
    assert await decode.abort(Key(7, 2), Failure(499, "GONE"), attempt=0) is False
    assert await decode.abort(7) is False
    assert [call.request for call in store.of("Release")] == [
        pb.ReleaseRequest(key=key(7, 1, "ns"), token=b"\x00t"),
        pb.ReleaseRequest(key=key(7, 0, "ns"), reader_id="rank0"),
        pb.ReleaseRequest(key=key(7, 0, "ns"), reader_id="rank1"),
    ]
    too_long = pb.Failure(http_status=400, reason="TOO_LONG", message="input too long")
    assert [call.request for call in store.of("Abort")] == [
        pb.AbortRequest(key=key(7, 1, "ns"), failure=too_long, token=b"\x00t"),
        pb.AbortRequest(key=key(7, 2, "ns"), failure=pb.Failure(http_status=499, reason="GONE"), attempt=0),
        pb.AbortRequest(key=key(7, 0, "ns"), failure=pb.Failure(http_status=500, reason="ABORTED")),
    ]


async def test_get(connect: Any, store: Any) -> None:
    store.script("Get", GOT)
    client = connect("DecodeClient", reader_id="rank0")
    found = await client.get(0, attempt=3, max_wait=300, expected_store_epoch="e")
    assert (found.attempt, found.reserved_at, found.published_at, found.store_epoch) == (3, THEN, THEN, "e")
    assert found.record == RECORD
    assert found.record is found.record
    assert found.proto == RECORD.to_proto()
    assert pickle.loads(pickle.dumps(found)) == found
    (call,) = store.calls
    assert call.request == pb.GetRequest(
        key=key(0), attempt=3, max_wait=Duration(seconds=300), reader_id="rank0", consume=True, expected_store_epoch="e"
    )
    assert call.request.key.HasField("room")
    assert 300 < call.time_remaining < 308


async def test_readers_are_made_up_once_a_client(connect: Any, store: Any) -> None:
    store.script("Get", GOT)
    one, two = connect("DecodeClient"), connect("DecodeClient")
    await one.get(1)
    await one.get(2, consume=False)
    await two.get(3)
    readers = [call.request.reader_id for call in store.calls]
    assert readers[0] == readers[1] != readers[2]
    assert all(readers)
    assert [call.request.consume for call in store.calls] == [True, False, True]
    assert not store.calls[0].request.HasField("max_wait")


async def test_batches(connect: Any, store: Any, refusal: Any) -> None:
    gone = refusal("ABORTED", "HANDOFF_ABORTED", "no", metadata={"http_status": "400", "failure_reason": "BAD"})
    store.script("BatchReserve", pb.BatchReserveResponse(responses=[RESERVED] * 3))
    store.script(
        "BatchPut", pb.BatchPutResponse(results=[pb.BatchPutResult(response=PUT), pb.BatchPutResult(error=gone)])
    )
    store.script(
        "BatchGet", pb.BatchGetResponse(results=[pb.BatchGetResult(error=gone), pb.BatchGetResult(response=GOT)])
    )
    prefill, decode = connect("PrefillClient", namespace="ns"), connect("DecodeClient", reader_id="rank0")
    wanted = [1, Key(1, 1), ReserveItem(2, owner="mine", widths=Widths(tokens=3), attempt=5)]
    held = await prefill.reserve_many(wanted, widths=Widths(tokens=2), max_wait=60)
    assert [one.key for one in held] == [Key(1, 0, "ns"), Key(1, 1, "ns"), Key(2, 0, "ns")]
    assert [one.attempt for one in held] == [0, 0, 5]
    (call,) = store.of("BatchReserve")
    assert [one.widths.tokens for one in call.request.requests] == [2, 2, 3]
    assert len({one.owner for one in call.request.requests}) == 3
    assert [one.max_wait.seconds for one in call.request.requests] == [60] * 3
    assert [one.expected_readers for one in call.request.requests] == [1] * 3
    assert [one.key for one in call.request.requests] == [key(1, 0, "ns"), key(1, 1, "ns"), key(2, 0, "ns")]
    assert [one.owner for one in held] == [one.owner for one in call.request.requests]
    assert [one.widths for one in held] == [Widths(tokens=2), Widths(tokens=2), Widths(tokens=3)]
    assert 60 < call.time_remaining < 68
    published, refused = await prefill.put_many([(held[0], RECORD), (held[1], RECORD.to_proto())])
    assert published == Published(THEN, "e")
    assert isinstance(refused, errors.HandoffAborted)
    assert refused.failure == Failure(400, "BAD", "no")
    refused, found = await decode.get_many([1, GetItem(2, attempt=4, reader_id="rank9")], max_wait=60, attempt=1)
    assert isinstance(refused, errors.HandoffAborted)
    assert isinstance(found, Handoff)
    (call,) = store.of("BatchGet")
    assert [(one.attempt, one.reader_id) for one in call.request.requests] == [(1, "rank0"), (4, "rank9")]
    assert 60 < call.time_remaining < 68


async def test_admin(connect: Any, store: Any) -> None:
    def page(request: admin_pb2.ListHandoffsRequest, context: Any) -> admin_pb2.ListHandoffsResponse:
        first = not request.page_token
        room = 1 if first else 2
        return admin_pb2.ListHandoffsResponse(
            handoffs=[admin_pb2.Handoff(key=key(room), state=admin_pb2.HANDOFF_STATE_PUBLISHED, slot=0)],
            next_page_token="more" if first else "",
        )

    store.script("ListHandoffs", page)
    store.script(
        "GetHandoff",
        admin_pb2.GetHandoffResponse(
            handoff=admin_pb2.Handoff(key=key(3), state=99, failure=pb.Failure(reason="X")),  # type: ignore[arg-type]
            record=RECORD.to_proto(),
        ),
    )
    client = connect("AdminClient")
    found = await client.list_handoffs(namespace="", states=[HandoffState.PUBLISHED])
    assert [info.key.room for info in found] == [1, 2]
    assert [(info.state, info.slot, info.failure) for info in found] == [(HandoffState.PUBLISHED, 0, None)] * 2
    assert store.calls[0].request.HasField("namespace")
    assert len(await client.list_handoffs(limit=1)) == 1
    assert store.calls[-1].request.page_size == 1
    info = await client.get_handoff(3, include_record=True)
    assert isinstance(info, HandoffInfo)
    assert (info.state, info.slot, info.failure, info.record) == (
        HandoffState.UNSPECIFIED,
        None,
        Failure(500, "X", ""),
        RECORD,
    )


ROOMS = [0, 1, 2**63, 2**64 - 1, np.uint64(2**64 - 1), np.int32(5)]


@pytest.mark.parametrize("room", ROOMS, ids=str)
async def test_every_room_is_a_room(room: Any, connect: Any, store: Any) -> None:
    store.script("Get", GOT)
    client = connect("DecodeClient")
    await client.get(room)
    await client.get(Key(room))
    assert [call.request.key.room for call in store.calls] == [int(room)] * 2
    assert all(call.request.key.HasField("room") for call in store.calls)


ROOM, SAMPLE = "must be an integer from 0 to 2**64 - 1, not ", "must be an integer from 0 to 2**32 - 1, not "
NO_KEYS: list[tuple[Any, str, str]] = [
    (-1, "key.room", ROOM + "-1"),
    (2**64, "key.room", ROOM + str(2**64)),
    (10**60, "key.room", ROOM + "1" + "0" * 36 + "..."),
    (True, "key.room", ROOM + "True (bool)"),
    ("7", "key.room", ROOM + "'7' (str)"),
    (1.0, "key.room", ROOM + "1.0 (float)"),
    (None, "key.room", ROOM + "None"),
    (Key(-1), "key.room", ROOM + "-1"),
    (Key(1, -1), "key.sample", SAMPLE + "-1"),
    (Key(1, 2**32), "key.sample", SAMPLE + str(2**32)),
    (Key(1, True), "key.sample", SAMPLE + "True (bool)"),
    (Key(1, 1.5), "key.sample", SAMPLE + "1.5 (float)"),  # type: ignore[arg-type]
    (Key(1, "x"), "key.sample", SAMPLE + "'x' (str)"),  # type: ignore[arg-type]
    (Key(1, 0, 5), "key.namespace", "must be text, not 5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("bad", "field", "what"), NO_KEYS, ids=str)
async def test_what_is_no_key(bad: Any, field: str, what: str, connect: Any, store: Any) -> None:
    client = connect("DecodeClient")
    with pytest.raises(errors.InvalidRequest) as caught:
        await client.get(bad)
    assert str(caught.value) == f"{field}: {what}"
    assert caught.value.violations == ((field, what),)
    assert store.calls == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lease": float("nan")}, "lease"),
        ({"lease": "long"}, "lease"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"attempt": -1}, "attempt"),
        ({"expected_readers": 2**32}, "expected_readers"),
        ({"owner": 5}, "reserve"),
        ({"widths": Widths(top_logprobs=-1)}, "widths.top_logprobs"),
        ({"widths": Widths(hidden_state_bytes=2**64)}, "widths.hidden_state_bytes"),
    ],
    ids=str,
)
async def test_what_no_request_can_hold(options: Any, field: str, connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    with pytest.raises(errors.InvalidRequest) as caught:
        await client.reserve(1, **options)
    assert [violation.field for violation in caught.value.violations] == [field]
    with pytest.raises(errors.InvalidRequest):
        await client.abort(1, Failure(2**40))
    assert store.calls == []


@pytest.mark.parametrize(
    ("seconds", "sent"), [(-1.5, (-1, -500_000_000)), (0, (0, 0)), (1e-9, (0, 1)), (float("inf"), (10**9, 0))]
)
async def test_durations(seconds: float, sent: tuple[int, int], connect: Any, store: Any) -> None:
    store.script("Reserve", RESERVED)
    await connect("PrefillClient").reserve(1, lease=seconds)
    lease = store.calls[0].request.lease
    assert (lease.seconds, lease.nanos) == sent


async def test_metadata_of_each_call(connect: Any, store: Any) -> None:
    store.script("Get", GOT)
    tokens = iter(["one", "two"])
    rotated = connect("DecodeClient", token=lambda: next(tokens), metadata=lambda: [("traceparent", "00-ab-cd-01")])
    await rotated.get(1)
    await rotated.get(1)
    await connect("DecodeClient", token="fixed").get(1)
    await connect("DecodeClient").get(1)
    seen = [(call.metadata.get("authorization"), call.metadata.get("traceparent")) for call in store.calls]
    trace = "00-ab-cd-01"
    assert seen == [("Bearer one", trace), ("Bearer two", trace), ("Bearer fixed", None), (None, None)]


async def test_a_dropped_answer_is_asked_for_again(connect: Any, store: Any, refusal: Any) -> None:
    store.script(
        "Put", refusal("UNAVAILABLE", message="reset"), refusal("UNAVAILABLE", "DRAINING", retry_after=0.01), PUT
    )
    client = connect("PrefillClient", retries=Retries(total_seconds=5, initial_backoff=0.001, max_backoff=0.002))
    assert await client.put_once(1, RECORD) == Published(THEN, "e")
    owners = {call.request.reserve.owner for call in store.calls}
    assert (len(store.calls), len(owners)) == (3, 1)


async def test_a_waiting_get_outlives_a_restart(connect: Any, store: Any, server: Any) -> None:
    parked, back = threading.Event(), threading.Event()

    def park(request: pb.GetRequest, context: Any) -> pb.GetResponse:
        parked.set()
        back.wait(30)
        return GOT

    store.script("Get", park, GOT)
    client = connect("DecodeClient", retries=Retries(total_seconds=30, initial_backoff=0.01, max_backoff=0.05))
    waiting = asyncio.ensure_future(client.get(1, max_wait=60))
    assert await asyncio.to_thread(parked.wait, 10)
    await asyncio.to_thread(server.stop)
    back.set()
    server.start()
    assert (await waiting).record == RECORD
    first, second = (call.request for call in store.calls)
    assert second.max_wait.ToNanoseconds() < first.max_wait.ToNanoseconds() == 60 * 10**9
    assert second.max_wait.seconds >= 20


async def test_the_clients_own_deadline(connect: Any, store: Any) -> None:
    done = threading.Event()
    store.script("Get", lambda request, context: done.wait(10) and GOT)
    client = connect("DecodeClient", timeout=0.05, retries=NO_RETRIES)
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await client.get(1)
    done.set()
    assert caught.value.http_status == 504


async def test_closing_ends_what_waits(connect: Any, store: Any) -> None:
    parked, done = threading.Event(), threading.Event()

    def park(request: pb.GetRequest, context: Any) -> pb.GetResponse:
        parked.set()
        done.wait(10)
        return GOT

    store.script("Get", park)
    client = connect("DecodeClient")
    waiting = asyncio.ensure_future(client.get(1, max_wait=60))
    assert await asyncio.to_thread(parked.wait, 10)
    await client.close()
    # Python 3.10 cannot tell a cancelled call from a cancelled task, so there the task ends as cancelled.
    blind = isinstance(client.raw, pd_handoff.aio.DecodeClient) and not hasattr(asyncio.Task, "cancelling")
    with pytest.raises(asyncio.CancelledError if blind else errors.ClientClosed):
        await waiting
    done.set()
    with pytest.raises(errors.ClientClosed):
        await client.get(1)
    await client.close()


async def test_many_threads_and_tasks_share_a_client(connect: Any, store: Any) -> None:
    store.script("Get", lambda request, context: pb.GetResponse(attempt=request.key.room))
    client = connect("DecodeClient")
    found = await asyncio.gather(*(client.get(room) for room in range(100)))
    assert [one.attempt for one in found] == list(range(100))


async def test_cancelling_a_task_cancels_its_call(server: Any, store: Any) -> None:
    parked, cancelled = threading.Event(), threading.Event()

    def park(request: pb.GetRequest, context: Any) -> pb.GetResponse:
        context.add_callback(cancelled.set)
        parked.set()
        assert cancelled.wait(10)
        return GOT

    store.script("Get", park)
    async with pd_handoff.aio.DecodeClient(server.target) as client:
        waiting = asyncio.create_task(client.get(1, max_wait=60))
        assert await asyncio.to_thread(parked.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(cancelled.wait, 10)


@pytest.mark.parametrize("session", ["never", "always"])
def test_a_client_of_another_event_loop(session: Any, server: Any, store: Any) -> None:
    store.script("Get", GOT)
    store.serve_sessions()
    client = pd_handoff.aio.DecodeClient(server.target, session=session)

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="one client an event loop"):
            await client.get(1)

    async def use() -> None:
        assert (await client.get(1)).attempt == 3
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await client.get(1)).attempt == 3
        await client.close()

    asyncio.run(use())


def test_a_client_is_a_context_manager(server: Any, store: Any) -> None:
    store.script("Get", GOT)
    with pd_handoff.DecodeClient(server.target) as client:
        assert client.get(1).attempt == 3
    with pytest.raises(errors.ClientClosed):
        client.get(1)


@pytest.mark.parametrize(
    "bad",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": "5"},
        {"epoch": 1},
        {"target": "http://host:1"},
        {"target": ""},
        {"target": "unix:"},
    ],
    ids=str,
)
def test_bad_settings(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout|epoch|target"):
        pd_handoff.PrefillClient(**bad)


def test_another_transport_fits_under_the_client() -> None:
    class Recorded:
        def __init__(self) -> None:
            self.calls: list[tuple[str, Any, float]] = []

        def call(self, method: str, request: Any, timeout: float) -> Any:
            self.calls.append((method, request, timeout))
            return GOT

        def close(self) -> None:
            self.calls.append(("close", None, 0))

    transport = Recorded()
    with pd_handoff.DecodeClient(transport=transport) as client:
        assert client.get(1, max_wait=2).attempt == 3
    assert [(method, timeout) for method, _, timeout in transport.calls] == [("Get", 7.0), ("close", 0)]


@pytest.mark.parametrize(
    "target",
    [
        *("", "store", "store:", ":50071", "::1:50071", "store:http", "store: 50071", "store:50071/path"),
        *("store:0", "store:-1", "store:65536", "store:99999", "store:500710"),
        *("http://store:50071", "grpc://store:50071", "tcp:store:50071"),
    ],
)
def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"give host:port \(port from 1 to 65535\) or unix:PATH"):
        pd_handoff.DecodeClient(target)


@pytest.mark.parametrize(
    "target", ["store:1", "10.0.0.1:65535", "[::1]:50071", "store.example.:50071", "dns:///store", "ipv4:127.0.0.1:80"]
)
def test_what_is_an_address_is_taken(target: str) -> None:
    pd_handoff.DecodeClient(target).close()


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}", "{}"])
async def test_a_socket_path_longer_than_the_kernel_takes(form: str, connect: Any) -> None:
    longest = form.format("/" + "ü" * 53)
    connect("DecodeClient", target=longest)
    with pytest.raises(ValueError, match="the path of a Unix socket has 1 to 107 bytes, not 108"):
        connect("DecodeClient", target=longest + "x")


def test_the_digest_of_a_prompt_does_not_depend_on_what_holds_it() -> None:
    ids = [1, 2**31, 128_000]
    made = digest_of_prompt(ids)
    assert len(made) == 16
    assert made == digest_of_prompt(tuple(ids)) == digest_of_prompt(array("I", ids)) == digest_of_prompt(iter(ids))
    assert made == digest_of_prompt(np.array(ids, dtype=np.int64))
    assert made.hex() == "18c16930b1a80a366de63a122572c4f1"
    others = [[], [1], ids[::-1], [*ids, 0], [0, *ids], [1, 2**31, 128_001]]
    assert len({made, *map(digest_of_prompt, others)}) == len(others) + 1
    with pytest.raises(TypeError):
        digest_of_prompt([1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        digest_of_prompt("text")  # type: ignore[arg-type]
