"""The client's methods and exceptions against a real store, by both faces."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
import pytest
import torch
from pd_handoff import (
    CachedTokens,
    DataType,
    Failure,
    FinishReason,
    GetItem,
    Key,
    KvChecksum,
    Logprobs,
    ModalityTokens,
    Record,
    ReserveItem,
    SamplingMask,
    SpeculativeState,
    Tensor,
    Token,
    Widths,
    digest_of_prompt,
    errors,
)
from pd_handoff._values import exact
from pd_handoff.admin import HandoffState

pytestmark = pytest.mark.internals

PLAIN = Record(tokens=[Token(5, -0.5)])
BITS = [0x7FA00001, 0xFFC12345, 0x7F800000, 0x80000000, 0x00000001, 0xBF000000]


def wide(count: int) -> Record:
    """A record of `count` top logprobs."""
    return Record(tokens=[Token(1), Token(2, top_logprobs=Logprobs([-1.0] * count, range(count)))])


async def test_every_part_comes_back_bit_for_bit(connect: Any, room: int) -> None:
    floats = np.array(BITS, "<u4").view("<f4")
    hidden = torch.randn(3, 4096, dtype=torch.float32).bfloat16()
    record = Record(
        tokens=[
            Token(np.int64(5), torch.tensor(-0.25), Logprobs(torch.from_numpy(floats.copy()), np.arange(6))),
            Token(0, floats[0], Logprobs(), Logprobs([], [])),
            Token(2**31 - 1),
        ],
        cached_tokens=CachedTokens(total=2**40, device=0),
        modality_tokens=ModalityTokens(image=0),
        sampling_mask=SamplingMask(torch.arange(3), floats[:3], truncated=True),
        speculative=SpeculativeState(floats[:2], torch.tensor([-1, 2**62]), hidden, [-1, 0]),
        kv_checksum=KvChecksum(2**64 - 1, 1),
        finish_reason=FinishReason.STOP,
        reasoning_tokens=0,
        customized_info=bytes(range(256)),
    )
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    await prefill.put_once(room, record)
    found = await decode.get(room)
    assert found.proto.SerializeToString(deterministic=True) == record.to_proto().SerializeToString(deterministic=True)
    packed = struct.pack("<6I", *BITS)
    assert exact.float32_bytes(found.proto.tokens[0].top_logprobs, "values") == packed
    assert exact.float32_bytes(found.proto.tokens[1], "logprob") == packed[:4]
    back = found.record
    assert back.tokens[1].top_logprobs == Logprobs()
    assert back.tokens[2].top_logprobs is None
    states = back.speculative.hidden_states
    assert isinstance(states, Tensor)
    assert (states.dtype, states.shape) == (DataType.BFLOAT16, (3, 4096))
    assert torch.equal(states.to_torch(), hidden)


async def test_a_get_waits_for_reserve_and_put(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    waiting = asyncio.ensure_future(decode.get(room, max_wait=30))
    with pytest.raises(errors.RecordNotReady) as caught:
        await decode.get(room, max_wait=0.01)
    assert caught.value.state == "NONE"
    held = await prefill.reserve(room, lease=30)
    with pytest.raises(errors.RecordNotReady) as caught:
        await decode.get(room)
    assert caught.value.state == "RESERVED"
    published = await prefill.put(held, PLAIN)
    found = await waiting
    assert found.record == PLAIN
    assert (found.published_at, found.store_epoch) == (published.published_at, held.store_epoch)
    assert found.reserved_at <= found.published_at
    assert await prefill.put(held, PLAIN) == published


async def test_the_limits_refuse_before_and_after_with_the_same_words(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    known = await prefill.capabilities()
    limit = known.limits.top_logprobs
    told = []
    for refused in (
        prefill.reserve(room, widths=Widths(top_logprobs=limit + 1)),
        prefill.capabilities(required=Widths(top_logprobs=limit + 1)),
    ):
        with pytest.raises(errors.TopLogprobsOverflow) as caught:
            await refused
        told.append((str(caught.value), caught.value.metadata, caught.value.code, caught.value.http_status))
    with pytest.raises(errors.TopLogprobsOverflow) as caught:
        known.require_top_logprobs(limit + 1)
    told.append((str(caught.value), caught.value.metadata, caught.value.code, caught.value.http_status))
    assert told[0] == told[1] == told[2]
    with pytest.raises(errors.FieldOverflow) as here:
        known.require(Widths(sampling_mask_tokens=10**6))
    with pytest.raises(errors.FieldOverflow) as there:
        await prefill.reserve(room, widths=Widths(sampling_mask_tokens=10**6))
    assert (str(here.value), here.value.metadata) == (str(there.value), there.value.metadata)
    held = await prefill.reserve(room, widths=Widths(top_logprobs=limit))
    with pytest.raises(errors.TopLogprobsOverflow) as caught:
        await prefill.put(held, wide(limit + 1))
    assert (caught.value.requested, caught.value.limit, caught.value.token_index) == (limit + 1, limit, 1)
    assert caught.value.retry_after is None
    await prefill.put(held, wide(known.clamp_top_logprobs(limit + 1)))
    assert (await decode.get(room)).record == wide(limit)


async def test_conflicts_and_endings(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    with pytest.raises(errors.HandoffNotFound):
        await decode.get(room)
    held = await prefill.reserve(room, owner="me")
    assert (await prefill.reserve(room, owner="me")).token == held.token
    assert (await prefill.renew(held)).token == held.token
    with pytest.raises(errors.HandoffExists) as caught:
        await prefill.reserve(room)
    assert caught.value.metadata["state"] == "RESERVED"
    second = await prefill.reserve(room, attempt=1)
    with pytest.raises(errors.StaleReservation):
        await prefill.put(held, PLAIN)
    await prefill.put(second, PLAIN)
    with pytest.raises(errors.RecordImmutable):
        await prefill.put(second, wide(1))
    assert (await decode.get(room, attempt=1)).attempt == 1
    with pytest.raises(errors.InvalidRequest) as invalid:
        await decode.get(room, reader_id="")
    assert invalid.value.violations
    with pytest.raises(errors.InvalidRecord) as bad:
        await prefill.put_once(room + 10**6, Record(tokens=[Token(1, top_logprobs=Logprobs([0.5] * 3, range(5)))]))
    assert bad.value.violations
    with pytest.raises(errors.StoreRestarted) as restarted:
        await decode.get(room, expected_store_epoch="another")
    assert restarted.value.metadata["expected"] == "another"
    with pytest.raises(errors.SchemaMismatch):
        await decode.capabilities(expected_schema_fingerprint="another")


async def test_an_abort_reaches_every_reader(connect: Any, room: int) -> None:
    prefill = connect("PrefillClient")
    readers = [connect("DecodeClient", reader_id=f"rank{rank}") for rank in range(4)]
    held = await prefill.reserve(room, expected_readers=4)
    waiting = [asyncio.ensure_future(reader.get(room, max_wait=300)) for reader in readers]
    assert await prefill.abort(held, Failure(400, "INPUT_TOO_LONG", "input too long")) is True
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, errors.HandoffAborted)
        assert ended.failure == Failure(400, "INPUT_TOO_LONG", "input too long")
        assert (ended.http_status, str(ended)) == (400, "input too long")
    assert await readers[0].abort(room, attempt=0) is False
    with pytest.raises(errors.HandoffAborted):
        await prefill.put(held, PLAIN)


async def test_readers_and_releases(connect: Any, room: int) -> None:
    prefill = connect("PrefillClient")
    one, two = connect("DecodeClient"), connect("DecodeClient")
    held = await prefill.reserve(room, expected_readers=2)
    await prefill.put(held, PLAIN)
    assert (await one.get(room)) == (await one.get(room))
    await two.release(room)
    await prefill.release(held)  # consumed: freed at once
    with pytest.raises(errors.AlreadyConsumed):
        await one.get(room)
    held = await prefill.reserve(room, attempt=1)
    await prefill.release(held)
    with pytest.raises(errors.HandoffAborted) as caught:
        await one.get(room, attempt=1)
    assert caught.value.failure.reason == "RELEASED"


async def test_batches(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient", namespace="batch"), connect("DecodeClient", namespace="batch")
    keys = [Key(room, sample) for sample in range(3)]
    held = await prefill.reserve_many([keys[0], ReserveItem(keys[1], owner="mine"), keys[2]])
    assert len({one.token for one in held}) == 3
    with pytest.raises(errors.InvalidRequest):
        await prefill.reserve_many([Key(room, 9), Key(room, 9)])
    results = await prefill.put_many([(held[0], PLAIN), (held[1], Record()), (held[2], wide(2))])
    assert [isinstance(result, errors.InvalidRecord) for result in results] == [False, True, False]
    assert isinstance(results[1], errors.InvalidRecord)
    assert [violation.field for violation in results[1].violations] == ["record.tokens"]
    assert str(results[1]).startswith("record.tokens: ")
    found = await decode.get_many([*keys, Key(room, 9)], max_wait=0.05)
    assert found[0].record == PLAIN
    assert isinstance(found[1], errors.RecordNotReady)
    assert found[2].record == wide(2)
    assert isinstance(found[3], errors.RecordNotReady)


async def test_admin(connect: Any, room: int) -> None:
    prefill, admin = connect("PrefillClient", namespace="admin", instance_id="p0"), connect("AdminClient")
    held = await prefill.reserve(room, owner="me", widths=Widths(top_logprobs=3), expected_readers=2)
    (info,) = [one for one in await admin.list_handoffs(namespace="admin") if one.key.room == room]
    assert (info.key, info.state, info.owner) == (held.key, HandoffState.RESERVED, "me")
    assert (info.expected_readers, info.widths.top_logprobs, info.instance_id) == (2, 3, "p0")
    assert info.epoch is not None
    await prefill.abort(held, Failure(418, "TEAPOT"))
    info = await admin.get_handoff(held.key)
    assert (info.state, info.failure, info.slot) == (HandoffState.ABORTED, Failure(418, "TEAPOT"), None)


async def test_a_restart_of_the_producer(connect: Any, room: int) -> None:
    name = f"producer-{room}"
    before = connect("PrefillClient", instance_id=name, epoch=1)
    after = connect("PrefillClient", instance_id=name, epoch=2)
    decode = connect("DecodeClient")
    held = await before.reserve(room)
    await after.reserve(room + 10**6)
    with pytest.raises(errors.ProducerRestarted):
        await decode.get(room, max_wait=30)
    with pytest.raises(errors.ProducerRestarted):
        await before.put(held, PLAIN)


async def test_the_context_manager_outlives_its_lease(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    # Long enough that a busy machine renews in time, at a third of it.
    manager = prefill.raw.prefill(room, lease=1.5)
    handoff = await prefill.enter(manager)
    for _ in range(3):  # three leases of computing
        with pytest.raises(errors.RecordNotReady):
            await decode.get(room, max_wait=1.5)
    await handoff.put(PLAIN)
    await prefill.leave(manager)
    assert (await decode.get(room)).record == PLAIN


async def test_the_context_manager_learns_that_it_was_superseded(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    manager = prefill.raw.prefill(room, lease=0.1)
    handoff = await prefill.enter(manager)
    await decode.abort(room, Failure(499, "CLIENT_GONE"))
    with pytest.raises(errors.HandoffAborted):
        await handoff.put(PLAIN)
    await prefill.leave(manager, errors.HandoffAborted("gone"))
    with pytest.raises(errors.HandoffAborted) as caught:
        await decode.get(room)
    assert caught.value.failure.reason == "CLIENT_GONE"


async def test_leaving_with_an_exception_tells_the_reader_at_once(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    manager = prefill.raw.prefill(room)
    await prefill.enter(manager)
    waiting = asyncio.ensure_future(decode.get(room, max_wait=300))
    await prefill.leave(manager, MemoryError("cuda"))
    with pytest.raises(errors.HandoffAborted) as caught:
        await waiting
    assert caught.value.failure == Failure(500, "PRODUCER_FAILED", "the prefill failed: MemoryError")


@pytest.mark.parametrize("room", [0, 2**63, 2**64 - 1])
async def test_edge_rooms(connect: Any, room: int, request: pytest.FixtureRequest) -> None:
    namespace = f"edge-{request.node.callspec.params['connect']}"
    prefill, decode = connect("PrefillClient", namespace=namespace), connect("DecodeClient", namespace=namespace)
    await prefill.put_once(Key(room), PLAIN)
    assert (await decode.get(Key(room))).record == PLAIN


async def test_put_soon(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    held = [await prefill.reserve(Key(room, sample)) for sample in range(20)]
    waiting = [asyncio.ensure_future(decode.get(Key(room, sample), max_wait=60)) for sample in range(20)]
    futures = [prefill.raw.put_soon(one, PLAIN) for one in held]
    await prefill.close()
    assert [(await one).record for one in waiting] == [PLAIN] * 20
    assert all(one.done() and not one.exception() for one in futures)


async def test_batches_larger_than_the_store_takes(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    keys = [Key(room, sample) for sample in range(150)]
    held = [*await prefill.reserve_many(keys[:100]), *await prefill.reserve_many(keys[100:])]
    assert not [one for one in await prefill.put_many([(one, PLAIN) for one in held]) if isinstance(one, Exception)]
    found = await decode.get_many(keys, max_wait=60)
    assert [one.record for one in found] == [PLAIN] * 150


async def test_a_waiting_get_holds_up_nothing(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    waiting = [asyncio.ensure_future(decode.get(Key(room, sample), max_wait=60)) for sample in range(5)]
    for sample in range(50, 100):
        await prefill.put_once(Key(room, sample), PLAIN)
        assert (await decode.get(Key(room, sample))).record == PLAIN
    assert not any(one.done() for one in waiting)
    for sample in range(5):
        await prefill.put_once(Key(room, sample), PLAIN)
    assert [(await one).record for one in waiting] == [PLAIN] * 5


MINE, OTHER = digest_of_prompt([1, 2, 3]), digest_of_prompt([1, 2, 4])


async def test_a_record_reaches_only_its_own_request(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    keys = [Key(room, sample) for sample in range(5)]
    held = await prefill.reserve(keys[0], request_digest=MINE)
    assert held.request_digest == MINE
    assert (await prefill.renew(held)).request_digest == MINE
    with pytest.raises(errors.RequestMismatch) as caught:
        await decode.get(keys[0], max_wait=60, request_digest=OTHER)
    assert (caught.value.state, caught.value.http_status) == ("RESERVED", 409)
    with pytest.raises(errors.HandoffExists):
        await prefill.reserve(keys[0], owner=held.owner, request_digest=OTHER)
    await prefill.put(held, PLAIN)
    await prefill.put_once(keys[1], PLAIN, request_digest=MINE)
    many = await prefill.reserve_many([keys[2], ReserveItem(keys[3], request_digest=OTHER)], request_digest=MINE)
    assert [one.request_digest for one in many] == [MINE, OTHER]
    await prefill.put_many([(one, PLAIN) for one in many])
    manager = prefill.raw.prefill(keys[4], request_digest=MINE)
    handoff = await prefill.enter(manager)
    await handoff.put(PLAIN)
    await prefill.leave(manager)
    for key, digest in zip(keys, [MINE, MINE, MINE, OTHER, MINE], strict=True):
        wrong = OTHER if digest == MINE else MINE
        with pytest.raises(errors.RequestMismatch):
            await decode.get(key, request_digest=wrong)
        assert (await decode.get(key, request_digest=digest, consume=False)).record == PLAIN
    found = await decode.get_many([*keys[:2], GetItem(keys[3], request_digest=OTHER)], request_digest=MINE)
    assert [one.record for one in found] == [PLAIN] * 3
    found = await decode.get_many(keys[:2], request_digest=OTHER)
    assert [type(one) for one in found] == [errors.RequestMismatch] * 2
    for odd in ("text", 7):
        with pytest.raises(errors.InvalidRequest, match="request_digest: must be bytes"):
            await decode.get(keys[0], request_digest=odd)
        with pytest.raises(errors.InvalidRequest, match="request_digest: must be bytes"):
            await prefill.reserve(keys[0], request_digest=odd)
    with pytest.raises(errors.InvalidRequest, match="at most 32 are legal"):
        await decode.get(keys[0], request_digest=bytes(33))
