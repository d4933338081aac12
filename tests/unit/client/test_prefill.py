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


async def test_an_exception_after_the_put_ends_it_for_readers_too(connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    manager = client.raw.prefill(7)
    handoff = await client.enter(manager)
    await handoff.put(RECORD)
    await client.leave(manager, RuntimeError("the transfer of the cache failed"))
    assert failure_sent(store).reason == "PRODUCER_FAILED"


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
