"""The public API as its users' type checkers see it; checked by `mypy --strict`, never run."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pd_handoff
import torch
from pd_handoff import (
    AdminClient,
    Capabilities,
    DecodeClient,
    Failure,
    FinishReason,
    GetItem,
    Handoff,
    HandoffAborted,
    HandoffError,
    HandoffInfo,
    HandoffState,
    Key,
    Logprobs,
    PrefillClient,
    Published,
    Record,
    Reservation,
    ReserveItem,
    Retries,
    SpeculativeState,
    Tensor,
    Token,
    TopLogprobsOverflow,
    Widths,
    aio,
    tls_credentials,
)
from pd_handoff.v1.record_pb2 import HandoffRecord
from typing_extensions import assert_type

assert_type(pd_handoff.__version__, str)


def records() -> Record:
    """Values of every kind that a record takes."""
    token = Token(
        token_id=np.int64(5),
        logprob=torch.tensor(-0.5),
        top_logprobs=Logprobs(np.zeros(3, np.float32), torch.arange(3)),
        token_ids_logprobs=Logprobs([0.5], (1,)),
    )
    state = SpeculativeState(topk_p=torch.zeros(2), topk_index=[1, 2], hidden_states=torch.zeros(1, 8).bfloat16())
    Tensor.from_array(np.zeros(3))
    Tensor.from_array(torch.zeros(3))
    record = Record(tokens=[token], speculative=state, finish_reason=FinishReason.STOP, customized_info=b"x")
    assert_type(record.to_json(), str)
    assert_type(Record.from_json("{}"), Record)
    assert_type(Record.from_proto(HandoffRecord()), Record)
    return record


def blocking(record: Record) -> None:
    """Both roles, blocking."""
    with PrefillClient("unix:/run/pd", namespace="ns", instance_id="p0", retries=Retries(total_seconds=3)) as prefill:
        assert_type(prefill, PrefillClient)
        found = prefill.capabilities(required=Widths(top_logprobs=20))
        assert_type(found, Capabilities)
        assert_type(found.limits.top_logprobs, int)
        assert_type(found.clamp_top_logprobs(200), int)
        held = prefill.reserve(Key(7, sample=1), widths=Widths(tokens=1), lease=30, max_wait=1.5)
        assert_type(held, Reservation)
        assert_type(prefill.renew(held), Reservation)
        published = prefill.put(held, record)
        assert_type(published, Published)
        assert_type(published.published_at, datetime)
        assert_type(prefill.put_once(7, HandoffRecord()), Published)
        assert_type(prefill.abort(held, Failure(400, "BAD", "text")), bool)
        assert_type(prefill.reserve_many([1, Key(2), ReserveItem(3, owner="me")]), list[Reservation])
        assert_type(prefill.put_many([(held, record)]), list[Published | HandoffError])
        prefill.release(held)
        with prefill.prefill(7, lease=30) as handoff:
            assert_type(handoff, pd_handoff.PrefillHandoff)
            assert_type(handoff.put(record), Published)
            assert_type(handoff.lost, HandoffError | None)
    with DecodeClient(credentials=tls_credentials(ca=b""), token=lambda: "t", reader_id="rank0") as decode:
        assert_type(decode, DecodeClient)
        got = decode.get(7, max_wait=300)
        assert_type(got, Handoff)
        assert_type(got.record, Record)
        assert_type(got.proto, HandoffRecord)
        assert_type(decode.get_many([1, GetItem(2, attempt=1)]), list[Handoff | HandoffError])
        decode.release(7)
    assert_type(AdminClient().list_handoffs(states=[HandoffState.RESERVED]), list[HandoffInfo])


async def asynchronous(record: Record) -> None:
    """Both roles, by asyncio."""
    async with aio.PrefillClient() as prefill, aio.DecodeClient(metadata=lambda: [("traceparent", "x")]) as decode:
        assert_type(prefill, aio.PrefillClient)
        assert_type(await prefill.capabilities(), Capabilities)
        assert_type(await prefill.put(await prefill.reserve(1), record), Published)
        async with prefill.prefill(1) as handoff:
            assert_type(handoff, aio.PrefillHandoff)
            assert_type(await handoff.put(record), Published)
        assert_type(await decode.get(1), Handoff)
        assert_type(await decode.get_many([1]), list[Handoff | HandoffError])
        assert_type(await decode.abort(1), bool)


def refusals(error: HandoffError) -> None:
    """What an exception tells."""
    assert_type(error.reason, str)
    assert_type(error.metadata, dict[str, str])
    assert_type(error.retry_after, float | None)
    if isinstance(error, TopLogprobsOverflow):
        assert_type((error.requested, error.limit), tuple[int, int])
        assert_type(error.token_index, int | None)
    if isinstance(error, HandoffAborted):
        assert_type(error.failure, Failure)


# What must not pass: each line carries the complaint it has to get.
Token("5")  # type: ignore[arg-type]
Key()  # type: ignore[call-arg]
Record(tokens=Token(1))  # type: ignore[arg-type]
PrefillClient(timeout="5")  # type: ignore[arg-type]
DecodeClient().put  # type: ignore[attr-defined]
