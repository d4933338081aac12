"""The context manager around a prefill: reserve, renew, then put or abort."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pd_handoff
import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff import Failure, Record, Retries, Token, Widths, aio, errors
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb

RECORD = Record(tokens=[Token(5)])


def reserved(token: bytes = b"t", lease_ms: int = 60_000) -> pb.ReserveResponse:
    lease = Duration()
    lease.FromMilliseconds(lease_ms)
    return pb.ReserveResponse(token=token, lease=lease)


@pytest.fixture(autouse=True)
def answers(store: Any) -> None:
    store.script("Reserve", reserved())
    store.script("Put", pb.PutResponse(store_epoch="e"))
    store.script("Abort", pb.AbortResponse(ended=True))


def failure_sent(store: Any) -> Failure:
    (call,) = store.of("Abort")
    assert call.request.token == b"t"
    return Failure.from_proto(call.request.failure)


async def test_put_and_leave(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7, widths=Widths(top_logprobs=20), lease=30, expected_readers=2, attempt=1, owner="me")
    handoff = await client.enter(manager)
    assert manager.reservation.token == b"t"
    assert (await handoff.put(RECORD)).store_epoch == "e"
    assert manager.published is not None
    await client.leave(manager)
    assert [call.method for call in store.calls] == ["Reserve", "Put"]
    request = store.calls[0].request
    assert (request.owner, request.lease.seconds, request.expected_readers, request.attempt) == ("me", 30, 2, 1)
    assert request.widths.top_logprobs == 20


async def test_leaving_without_a_put_aborts(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    await client.enter(manager)
    await client.leave(manager)
    assert failure_sent(store) == Failure(500, "PRODUCER_DID_NOT_PUT", "the prefill ended without a record")


class TeapotError(Exception):
    http_status = 418
    reason = "TEAPOT"


class OddError(Exception):
    http_status = 400
    reason = "not upper snake"


OUTCOMES = [
    (ValueError("secret"), Failure(500, "PRODUCER_FAILED", "the prefill failed: ValueError")),
    (KeyboardInterrupt(), Failure(500, "PRODUCER_FAILED", "the prefill failed: KeyboardInterrupt")),
    (TeapotError("short and stout"), Failure(418, "TEAPOT", "short and stout")),
    (OddError("odd"), Failure(400, "PRODUCER_FAILED", "odd")),
    (
        errors.overflow("top_logprobs", 129, 128),
        Failure(400, "TOP_LOGPROBS_OVERFLOW", str(errors.overflow("top_logprobs", 129, 128))),
    ),
    (
        errors.HandoffAborted("too long", metadata={"http_status": "400", "failure_reason": "INPUT_TOO_LONG"}),
        Failure(400, "INPUT_TOO_LONG", "too long"),
    ),
]


@pytest.mark.parametrize(("error", "failure"), OUTCOMES, ids=lambda value: type(value).__name__)
async def test_an_exception_aborts_with_its_failure(
    error: BaseException, failure: Failure, connect: Any, store: Any
) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    await client.enter(manager)
    await client.leave(manager, error)
    assert failure_sent(store) == failure


async def test_after_the_put_leaving_changes_nothing(connect: Any, store: Any, refusal: Any) -> None:
    client = connect("PrefillClient")
    store.script("Put", pb.PutResponse(), refusal("ALREADY_EXISTS", "RECORD_IMMUTABLE"))
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    await handoff.put(RECORD)
    with pytest.raises(errors.RecordImmutable) as caught:
        await handoff.put(Record(tokens=[Token(6)]))
    await client.leave(manager, caught.value)
    assert store.of("Abort") == []


async def test_what_was_published_by_another_way_stays(connect: Any, store: Any, refusal: Any) -> None:
    client = connect("PrefillClient")
    store.script("Put", pb.PutResponse(), refusal("ALREADY_EXISTS", "RECORD_IMMUTABLE"))
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    await client.put(manager.reservation, RECORD)
    with pytest.raises(errors.RecordImmutable) as caught:
        await handoff.put(Record(tokens=[Token(6)]))
    await client.leave(manager, caught.value)
    assert store.of("Abort") == []


class MuteError(Exception):
    http_status = 503

    def __str__(self) -> str:
        raise RuntimeError("no words")


class SpringError(Exception):
    @property
    def http_status(self) -> int:
        raise RuntimeError("no status")


AWKWARD = [
    (TeapotError("a \ud800 b"), Failure(418, "TEAPOT", "a ? b")),
    (TeapotError("x" * (12 << 20)), Failure(418, "TEAPOT", "x" * 1024)),
    (TeapotError("x" + "\u6f22" * 1000), Failure(418, "TEAPOT", "x" + "\u6f22" * 341)),
    (MuteError(), Failure(503, "PRODUCER_FAILED", "MuteError without a text")),
    (SpringError("spring"), Failure(500, "PRODUCER_FAILED", "the prefill failed: SpringError")),
    (
        errors.HandoffAborted("\udcff", metadata={"http_status": "400", "failure_reason": "INPUT_TOO_LONG"}),
        Failure(400, "INPUT_TOO_LONG", "?"),
    ),
]


@pytest.mark.parametrize(
    ("error", "failure"), AWKWARD, ids=["surrogate", "12-mb", "cut", "mute", "property", "aborted"]
)
async def test_any_text_is_made_sendable(error: BaseException, failure: Failure, connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    await client.enter(manager)
    await client.leave(manager, error)
    assert failure_sent(store) == failure


@pytest.mark.parametrize(
    ("text", "sent"), [("a \ud800 b", "a ? b"), ("x" * (12 << 20), "x" * 1024)], ids=["odd", "long"]
)
async def test_so_is_that_of_an_abort(text: str, sent: str, connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    assert await client.abort(7, Failure(400, "NO", text)) is True
    assert store.of("Abort")[0].request.failure.message == sent


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("because", "failure must be a Failure, not 'because' \\(str\\)"),
        (Failure("400"), "failure.http_status: must be an int, not '400'"),  # type: ignore[arg-type]
        (Failure(400, 7), "failure.reason: must be a str, not 7"),  # type: ignore[arg-type]
        (Failure(400, "NO", b"text"), "a failure's message must be a str, not bytes"),  # type: ignore[arg-type]
    ],
    ids=["text", "status", "reason", "message"],
)
async def test_no_failure_at_all(failure: Any, words: str, connect: Any, store: Any) -> None:
    with pytest.raises(TypeError, match=words):
        await connect("PrefillClient").abort(7, failure)
    assert store.calls == []


def test_the_original_exception_is_never_masked(server: Any, store: Any, refusal: Any) -> None:
    store.script("Abort", refusal("INTERNAL", "INTERNAL"))
    error = ValueError("original")
    with pd_handoff.PrefillClient(server.target) as client:
        with pytest.raises(ValueError, match="original") as caught, client.prefill(7):
            raise error
        assert caught.value is error
        with pytest.raises(errors.StoreInternalError), client.prefill(7):
            pass


async def test_a_task_cancelled_while_computing_aborts(server: Any, store: Any) -> None:
    computing = asyncio.Event()

    async def compute(client: aio.PrefillClient) -> None:
        async with client.prefill(7):
            computing.set()
            await asyncio.Event().wait()

    async with aio.PrefillClient(server.target) as client:
        task = asyncio.create_task(compute(client))
        await computing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert failure_sent(store).message == "the prefill failed: CancelledError"


async def test_refused_at_entry_nothing_else_is_sent(connect: Any, store: Any, refusal: Any) -> None:
    store.script("Reserve", refusal("RESOURCE_EXHAUSTED", "ARENA_FULL", retry_after=0.1))
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    with pytest.raises(errors.ArenaFull):
        await client.enter(manager)
    with pytest.raises(RuntimeError, match="not reserved"):
        _ = manager.reservation
    assert [call.method for call in store.calls] == ["Reserve"]


PERMANENT = [
    ("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW", Failure(400, "TOP_LOGPROBS_OVERFLOW", "no")),
    ("RESOURCE_EXHAUSTED", "FIELD_OVERFLOW", Failure(400, "FIELD_OVERFLOW", "no")),
    ("INVALID_ARGUMENT", "INVALID_REQUEST", Failure(400, "INVALID_REQUEST", "no")),
]


@pytest.mark.parametrize(("code", "reason", "failure"), PERMANENT, ids=[row[1] for row in PERMANENT])
async def test_an_entry_that_can_never_succeed_aborts_the_attempt(
    code: str, reason: str, failure: Failure, connect: Any, store: Any, refusal: Any
) -> None:
    store.script("Reserve", refusal(code, reason))
    client = connect("PrefillClient")
    with pytest.raises(errors.HandoffError) as caught:
        await client.enter(client.raw.prefill(7, attempt=3))
    assert caught.value.reason == reason
    (call,) = store.of("Abort")
    assert (call.request.key.room, call.request.attempt, call.request.token) == (7, 3, b"")
    assert Failure.from_proto(call.request.failure) == failure


async def test_nor_does_its_own_refusal_replace_that_of_the_entry(connect: Any, store: Any, refusal: Any) -> None:
    store.script("Reserve", refusal("RESOURCE_EXHAUSTED", "FIELD_OVERFLOW"))
    store.script("Abort", refusal("PERMISSION_DENIED"))
    client = connect("PrefillClient")
    with pytest.raises(errors.FieldOverflow):
        await client.enter(client.raw.prefill(7))
    with pytest.raises(errors.InvalidRequest, match=r"key\.room"):
        await client.enter(client.raw.prefill(-1))


KEPT = [("RESOURCE_EXHAUSTED", "TOO_MANY_WAITERS"), ("ALREADY_EXISTS", "HANDOFF_EXISTS"), ("UNAUTHENTICATED", "")]


@pytest.mark.parametrize(("code", "reason"), KEPT)
async def test_another_leaves_the_key_alone(code: str, reason: str, connect: Any, store: Any, refusal: Any) -> None:
    store.script("Reserve", refusal(code, reason))
    client = connect("PrefillClient", retries=NO_RETRIES)
    with pytest.raises(errors.HandoffError):
        await client.enter(client.raw.prefill(7))
    assert store.of("Abort") == []


async def test_a_refused_put_can_be_mended(connect: Any, store: Any, refusal: Any) -> None:
    store.script("Put", refusal("RESOURCE_EXHAUSTED", "TOP_LOGPROBS_OVERFLOW"), pb.PutResponse())
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    with pytest.raises(errors.TopLogprobsOverflow):
        await handoff.put(RECORD)
    await handoff.put(RECORD)
    await client.leave(manager)
    assert store.of("Abort") == []


async def test_an_abort_of_ones_own(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    assert await handoff.abort(Failure(429, "BUSY")) is True
    await client.leave(manager)
    assert failure_sent(store) == Failure(429, "BUSY", "")


async def test_the_lease_is_renewed_while_computing(connect: Any, store: Any) -> None:
    renewed = threading.Event()

    def answer(request: pb.ReserveRequest, context: Any) -> pb.ReserveResponse:
        if len(store.of("Reserve")) >= 4:
            renewed.set()
        return reserved(b"t%d" % len(store.of("Reserve")), lease_ms=30)

    store.script("Reserve", answer)
    client = connect("PrefillClient")
    manager = client.raw.prefill(7, widths=Widths(tokens=2), expected_readers=3)
    handoff = await client.enter(manager)
    assert await asyncio.to_thread(renewed.wait, 10)
    await handoff.put(RECORD)
    await client.leave(manager)
    assert len({call.request.owner for call in store.of("Reserve")}) == 1
    assert {call.request.expected_readers for call in store.of("Reserve")} == {3}
    (put,) = store.of("Put")
    assert int(put.request.token[1:]) >= 3  # the newest token, should the store have come back empty
    assert store.of("Abort") == []


async def test_renewal_survives_an_outage_and_learns_of_the_loss(connect: Any, store: Any, refusal: Any) -> None:
    aborted = refusal("ABORTED", "HANDOFF_ABORTED", "no", metadata={"http_status": "499", "failure_reason": "GONE"})
    away = [refusal("UNAVAILABLE"), refusal("UNAVAILABLE", "DRAINING"), refusal("RESOURCE_EXHAUSTED", "ARENA_FULL")]
    store.script("Reserve", reserved(lease_ms=30), *away, reserved(lease_ms=30), aborted)
    client = connect("PrefillClient", retries=NO_RETRIES)
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    for _ in range(1000):
        if manager.lost is not None:
            break
        await asyncio.sleep(0.01)
    assert isinstance(manager.lost, errors.HandoffAborted)
    with pytest.raises(errors.HandoffAborted) as caught:
        await handoff.put(RECORD)
    assert caught.value.failure == Failure(499, "GONE", "no")
    await client.leave(manager)
    assert len(store.of("Reserve")) == 6
    assert store.of("Put") == store.of("Abort") == []


async def test_an_interrupt_does_not_wait_for_a_store_that_is_away(connect: Any, server: Any) -> None:
    client = connect("PrefillClient", retries=Retries(total_seconds=3600, initial_backoff=3000, max_backoff=3000))
    manager = client.raw.prefill(7)
    await client.enter(manager)
    await asyncio.to_thread(server.stop)
    await client.leave(manager, KeyboardInterrupt())  # would sleep for most of an hour otherwise


WATCHING = ["callback", "look"]


@pytest.mark.parametrize("way", WATCHING)
async def test_an_abort_is_known_without_a_renewal(way: str, connect: Any, store: Any, refusal: Any) -> None:
    waits, aborts = threading.Event(), threading.Event()

    def wait(request: pb.GetRequest, context: Any) -> Any:
        waits.set()
        assert aborts.wait(30)
        return refusal("ABORTED", "HANDOFF_ABORTED", "no", metadata={"http_status": "499", "failure_reason": "GONE"})

    store.script("Get", wait)
    told: list[errors.HandoffError] = []
    known = threading.Event()

    def tell(error: errors.HandoffError) -> None:
        told.append(error)
        known.set()
        raise RuntimeError("of the caller's own")  # harms nothing

    client = connect("PrefillClient")
    manager = client.raw.prefill(7, attempt=2, on_abort=tell if way == "callback" else None)
    handoff = await client.enter(manager)
    if way == "look":
        assert manager.aborted is False
    assert await asyncio.to_thread(waits.wait, 30)
    assert manager.lost is None
    aborts.set()
    if way == "callback":
        assert await asyncio.to_thread(known.wait, 30)
        (error,) = told
        assert isinstance(error, errors.HandoffAborted)
    for _ in range(3000):
        if manager.aborted:
            break
        await asyncio.sleep(0.01)
    assert isinstance(manager.lost, errors.HandoffAborted)
    assert manager.lost.failure == Failure(499, "GONE", "no")
    with pytest.raises(errors.HandoffAborted):
        await handoff.put(RECORD)
    await client.leave(manager)
    assert len(store.of("Reserve")) == 1
    (get,) = store.of("Get")
    assert (get.request.key.room, get.request.attempt, get.request.consume) == (7, 2, False)
    assert store.of("Put") == store.of("Abort") == []


async def test_who_does_not_look_sends_no_get(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    await handoff.put(RECORD)
    await client.leave(manager)
    assert manager.aborted is False  # and none is sent now
    assert [call.method for call in store.calls] == ["Reserve", "Put"]


ENDINGS = [("PERMISSION_DENIED", ""), ("UNAUTHENTICATED", ""), ("UNIMPLEMENTED", "")]


@pytest.mark.parametrize(("code", "reason"), ENDINGS)
async def test_who_may_not_watch_goes_on(code: str, reason: str, connect: Any, store: Any, refusal: Any) -> None:
    refused = threading.Event()

    def refuse(*_: Any) -> Any:
        refused.set()
        return refusal(code, reason)

    store.script("Get", refuse)
    client = connect("PrefillClient")
    manager = client.raw.prefill(7, on_abort=lambda _: None)
    handoff = await client.enter(manager)
    assert await asyncio.to_thread(refused.wait, 30)
    await handoff.put(RECORD)
    await client.leave(manager)
    assert manager.aborted is False
    assert len(store.of("Get")) == 1
