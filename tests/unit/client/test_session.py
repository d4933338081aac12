"""Calls over a Session through real gRPC, by both faces: when they go over it, and what they do without it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import grpc
import pytest
from pd_handoff import Key, Record, Reservation, Retries, Token, aio, errors
from pd_handoff._transport import stream
from pd_handoff._transport.session_policy import FEW
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb

RECORD = Record(tokens=[Token(5)])
HELD = Reservation(Key(7, 0, ""), b"t", "me", 0, 30.0, "e")
PATIENT = Retries(total_seconds=30, initial_backoff=0.01, max_backoff=0.05)


@pytest.fixture(autouse=True)
def answers(store: Any) -> None:
    store.script("Put", pb.PutResponse(store_epoch="e"))
    store.script("Get", pb.GetResponse(store_epoch="e"))
    store.script("Abort", pb.AbortResponse(ended=True))
    store.script("Capabilities", pb.CapabilitiesResponse(max_batch=128))
    store.serve_sessions()


def ways(store: Any) -> Counter[str]:
    return Counter(call.method for call in store.calls)


@pytest.fixture(params=["raw", "public"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the names of gRPC that are not public."""
    if request.param == "public":
        monkeypatch.setattr(stream, "_NAMES", ("NoSuchOperation",))
    return str(request.param)


async def test_each_single_call(connect: Any, store: Any, refusal: Any, wire: str) -> None:
    store.script("Reserve", pb.ReserveResponse(token=b"t"))
    store.script("Release", pb.ReleaseResponse())
    prefill, decode = (connect(kind, session="always") for kind in ("PrefillClient", "DecodeClient"))
    await prefill.capabilities()
    await prefill.reserve(1)
    assert (await prefill.put(HELD, RECORD)).store_epoch == "e"
    await prefill.put_once(1, RECORD)
    assert (await decode.get(1)).store_epoch == "e"
    await decode.get(1, max_wait=300)
    await prefill.release(HELD)
    assert await decode.abort(1) is True
    assert not [method for method in ways(store) if method not in ("Session",) and not method.startswith("Session.")]
    store.script("Put", refusal("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", "no", metadata={"limit": "20"}))
    with pytest.raises(errors.TopLogprobsOverflow) as caught:
        await prefill.put(HELD, RECORD)
    assert caught.value.limit == 20
    store.script("Get", refusal("UNAVAILABLE", "DRAINING", retry_after=0.01), pb.GetResponse(store_epoch="later"))
    assert (await decode.get(1)).store_epoch == "later"


async def test_a_client_switches_by_itself(connect: Any, store: Any) -> None:
    client = connect("DecodeClient")
    for _ in range(FEW + 5):
        await client.get(1)
    assert ways(store) == {"Get": FEW, "Session": 1, "Session.Capabilities": 1, "Session.Get": 5}


async def test_never(connect: Any, store: Any) -> None:
    client = connect("DecodeClient", session="never")
    for _ in range(FEW + 5):
        await client.get(1)
    assert ways(store) == {"Get": FEW + 5}


async def test_calls_with_metadata_of_their_own_go_alone(connect: Any, store: Any) -> None:
    client = connect("DecodeClient", metadata=lambda: (("traceparent", "00-ab-cd-01"),))
    for _ in range(FEW + 5):
        await client.get(1)
    assert ways(store) == {"Get": FEW + 5}


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "UNKNOWN", "UNAVAILABLE", "INTERNAL"])
async def test_without_a_session_calls_go_alone(code: str, connect: Any, store: Any) -> None:
    store.script("Session", lambda _, context: context.abort(grpc.StatusCode[code], "no streams here"))
    client = connect("DecodeClient", retries=NO_RETRIES)
    for _ in range(FEW + 5):
        await client.get(1)
    assert ways(store) == {"Get": FEW + 5, "Session": 1}
    always = connect("DecodeClient", session="always", retries=NO_RETRIES)
    with pytest.raises(errors.NotAStore if code == "UNIMPLEMENTED" else errors.StoreUnavailable):
        await always.get(1)


async def test_a_way_that_holds_answers_back(connect: Any, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("session", "session_aio"):
        monkeypatch.setattr(f"pd_handoff._transport.{module}.PROBE_SECONDS", 0.05)
    store.script("Capabilities", None)
    client = connect("DecodeClient")
    for _ in range(FEW + 5):
        await client.get(1)
    assert ways(store) == {"Get": FEW + 5, "Session": 1, "Session.Capabilities": 1}


async def test_streams_that_break(connect: Any, store: Any) -> None:
    def brief(requests: Any, context: Any) -> Any:
        answers = store._session(requests, context)
        yield next(answers)
        yield next(answers)
        context.abort(grpc.StatusCode.UNAVAILABLE, "no long streams here")

    store.script("Session", brief)
    client = connect("DecodeClient", retries=PATIENT)
    for _ in range(FEW + 40):
        await client.get(1)
    seen = ways(store)
    assert seen["Session"] == 3
    assert seen["Get"] >= FEW + 37


async def test_outstanding_calls_follow_their_own_retry_rules(
    connect: Any, store: Any, server: Any, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("session", "session_aio"):
        monkeypatch.setattr(f"pd_handoff._transport.{module}.FRESH", 0.0)  # no stream was dead before
    store.script("Get", None, pb.GetResponse(store_epoch="later"))
    stubborn = connect("DecodeClient", session="always", retries=PATIENT)
    waiting = asyncio.ensure_future(stubborn.get(1, max_wait=60))
    await until(lambda: ways(store)["Session.Get"] == 1)
    await asyncio.to_thread(server.stop)
    server.start()
    assert (await waiting).store_epoch == "later"


async def test_without_retries_the_end_is_told(connect: Any, store: Any, server: Any) -> None:
    store.script("Get", None)
    client = connect("DecodeClient", session="always", retries=NO_RETRIES)
    waiting = asyncio.ensure_future(client.get(1, max_wait=60))
    await until(lambda: ways(store)["Session.Get"] == 1)
    await asyncio.to_thread(server.stop)
    with pytest.raises(errors.StoreUnavailable):
        await waiting


async def test_an_idle_stream_that_died_harms_no_call(connect: Any, store: Any, server: Any, wire: str) -> None:
    client = connect("DecodeClient", session="always", retries=NO_RETRIES)
    await client.get(1)
    await asyncio.to_thread(server.stop)
    server.start()
    outcomes = []
    for _ in range(100):
        try:
            outcomes.append(await client.get(1))
            break
        except errors.StoreUnavailable:  # the channel itself comes back in its own time
            await asyncio.sleep(0.05)
    assert outcomes


async def test_timeouts(connect: Any, store: Any, wire: str) -> None:
    store.script("Get", None, pb.GetResponse(store_epoch="e"))
    client = connect("DecodeClient", session="always", timeout=0.3)
    with pytest.raises(errors.DeadlineExceeded):
        await client.get(1)
    assert (await client.get(1)).store_epoch == "e"
    assert ways(store)["Session"] == 1


async def test_closing_ends_what_is_under_way(connect: Any, store: Any, wire: str) -> None:
    store.script("Get", None)
    client = connect("DecodeClient", session="always")
    waiting = [asyncio.ensure_future(client.get(room, max_wait=300)) for room in range(3)]
    await until(lambda: ways(store)["Session.Get"] == 3)
    await client.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [errors.ClientClosed] * 3
    with pytest.raises(errors.ClientClosed):
        await client.get(1)
    await client.close()


async def test_a_renewed_token_opens_a_stream_of_its_own(connect: Any, store: Any) -> None:
    tokens = ["one"]
    client = connect("DecodeClient", session="always", token=lambda: tokens[0])
    await client.get(1)
    await client.get(1)
    tokens[0] = "two"
    await client.get(1)
    seen = [call.metadata["authorization"] for call in store.of("Session.Get")]
    assert seen == ["Bearer one", "Bearer one", "Bearer two"]
    assert ways(store)["Session"] == 2


async def test_what_is_large_goes_alone(connect: Any, store: Any) -> None:
    client = connect("PrefillClient", session="always")
    await client.put(HELD, Record(tokens=[Token(5)], customized_info=bytes(2 << 20)))
    assert ways(store)["Put"] == 1


async def test_many_at_a_time(connect: Any, store: Any, wire: str) -> None:
    store.script("Get", lambda request, _: pb.GetResponse(store_epoch=str(request.key.room)))
    client = connect("DecodeClient", session="always")
    rooms = range(100)
    found = await asyncio.gather(*(client.get(room) for room in rooms))
    assert [one.store_epoch for one in found] == [str(room) for room in rooms]
    assert ways(store)["Session"] == 1


async def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def test_a_dropped_client_leaves_no_thread(store: Any, server: Any, wire: str) -> None:
    before = set(threading.enumerate())
    client = aio.DecodeClient(server.target, session="always")
    assert (await client.get(1)).store_epoch == "e"
    assert "pd-handoff-session" in {thread.name for thread in set(threading.enumerate()) - before}
    del client
    gc.collect()
    await until(lambda: "pd-handoff-session" not in {thread.name for thread in set(threading.enumerate()) - before})


async def test_a_cancelled_task_harms_no_other(store: Any, server: Any, wire: str) -> None:
    store.script("Get", None, None, pb.GetResponse(store_epoch="e"))
    async with aio.DecodeClient(server.target, session="always") as client:
        for _ in range(2):
            gone = asyncio.ensure_future(client.get(1, max_wait=60))
            seen = ways(store)["Session.Get"]
            await until(lambda seen=seen: ways(store)["Session.Get"] > seen)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        assert (await client.get(2)).store_epoch == "e"
    assert ways(store)["Session"] == 1


async def test_a_long_get_waits_in_parts(
    store: Any, server: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pd_handoff._transport.session_aio._SLICE", 0.5)
    not_yet = refusal("DEADLINE_EXCEEDED", "RECORD_NOT_READY", "not yet", metadata={"state": "NONE"})
    store.script("Get", not_yet, not_yet, pb.GetResponse(store_epoch="e"))
    async with aio.DecodeClient(server.target, session="always", retries=NO_RETRIES) as client:
        assert (await client.get(1, max_wait=60)).store_epoch == "e"
        waits = [call.request.max_wait.ToTimedelta().total_seconds() for call in store.of("Session.Get")]
        assert waits == [0.5] * 3
        store.script("Get", not_yet)
        with pytest.raises(errors.RecordNotReady):
            await client.get(1, max_wait=0.2)
