"""Contract section 6: what a row cannot hold is refused at once, with both numbers, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.records import Token, logprobs, record
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

LIMITS = {
    "tokens": 8,
    "token_ids_logprobs": 128,
    "sampling_mask_tokens": 1024,
    "speculative_topk": 16,
    "dsa_topk_indices": 2048,
    "customized_info_bytes": 4096,
    "hidden_state_bytes": 32768,
    "engine_state_bytes": 0,
    "draft_tokens": 16,
}
"""The defaults of every width but `top_logprobs` and `attachment_bytes`, which have reasons and a heap of their own."""


def of_width(field: str, width: int) -> rp.HandoffRecord:
    """A well-formed record that needs exactly this of one width."""
    if field == "tokens":
        return record(*(Token(token_id=index) for index in range(width)))
    if field == "top_logprobs":
        return records.with_top(width)
    if field == "token_ids_logprobs":
        return record(Token(token_id=1, token_ids_logprobs=logprobs(width)))
    if field == "sampling_mask_tokens":
        return record(sampling_mask=rp.SamplingMask(token_ids=range(width), logprobs=[-1.0] * width))
    if field == "speculative_topk":
        return record(speculative=rp.SpeculativeState(topk_p=[0.5] * width, topk_index=range(width)))
    if field == "dsa_topk_indices":
        return record(speculative=rp.SpeculativeState(dsa_topk_indices=[-1] * width))
    if field == "customized_info_bytes":
        return record(customized_info=bytes(width))
    if field == "engine_state_bytes":
        return record(engine_state=rp.EngineState(type="x", data=bytes(width)))
    if field == "draft_tokens":
        return record(speculative=rp.SpeculativeState(draft_token_ids=range(width)))
    assert field == "hidden_state_bytes"
    return records.with_hidden(rp.DATA_TYPE_FLOAT8_E4M3, [width], bytes(width))


@pytest.mark.parametrize("requested", [129, 100_000])
def test_put_of_too_many_top_logprobs(shared: Steps, room: int, requested: int) -> None:
    token = shared.reserve(room).token
    with refused("TOP_LOGPROBS_OVERFLOW", requested=requested, limit=128, token_index=0) as caught:
        shared.put(room, token, records.with_top(requested))
    assert "exceeds disaggregation metadata capacity" in caught.error.message
    assert caught.error.quota[0][0] == "top_logprobs"
    assert caught.error.retry_after is None


def test_the_token_that_is_too_wide_is_named(shared: Steps, room: int) -> None:
    wide = record(
        Token(token_id=1, top_logprobs=logprobs(128)),
        Token(token_id=2),
        Token(token_id=3, top_logprobs=logprobs(130)),
    )
    token = shared.reserve(room).token
    with refused("TOP_LOGPROBS_OVERFLOW", requested=130, limit=128, token_index=2):
        shared.put(room, token, wide)


@pytest.mark.settings(slots=8)
def test_reserve_refuses_top_logprobs_that_can_never_fit(steps: Steps) -> None:
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129, limit=128) as caught:
        steps.reserve(7, widths=pb.Widths(top_logprobs=129))
    assert "token_index" not in caught.error.metadata
    assert steps.free == 8


def test_capabilities_refuses_top_logprobs_that_can_never_fit(steps: Steps) -> None:
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129, limit=128) as caught:
        steps.capabilities(required=pb.Widths(top_logprobs=129))
    assert "token_index" not in caught.error.metadata


@pytest.mark.settings(slots=8)
def test_one_shot_put_of_too_many_top_logprobs_leaves_no_reservation(steps: Steps, store: LocalStore) -> None:
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129, limit=128, token_index=0):
        steps.put_once(7, records.with_top(129))
    with refused("TOP_LOGPROBS_OVERFLOW", requested=200, limit=128):
        steps.put_once(7, widths=pb.Widths(top_logprobs=200))
    assert store.listing() == []
    assert steps.free == 8


@pytest.mark.parametrize("field", ["top_logprobs", *LIMITS])
def test_put_takes_each_width_at_its_limit(shared: Steps, room: int, field: str) -> None:
    limit = 128 if field == "top_logprobs" else LIMITS[field]
    widest = of_width(field, limit)
    assert shared.exchange(room, widest) == widest


@pytest.mark.parametrize("field", LIMITS)
def test_put_refuses_each_width_at_its_limit_and_one(shared: Steps, room: int, field: str) -> None:
    token = shared.reserve(room).token
    with refused("FIELD_OVERFLOW", field=field, requested=LIMITS[field] + 1, limit=LIMITS[field]) as caught:
        shared.put(room, token, of_width(field, LIMITS[field] + 1))
    assert caught.error.quota[0][0] == field
    shared.put(room, token, records.numbered(1))
    assert shared.record(room) == records.numbered(1)


@pytest.mark.parametrize("field", LIMITS)
def test_reserve_and_capabilities_give_the_error_that_put_would(shared: Steps, room: int, field: str) -> None:
    limit = LIMITS[field]
    too_wide = pb.Widths(**{field: limit + 1})
    with refused("FIELD_OVERFLOW", field=field, requested=limit + 1, limit=limit) as at_reserve:
        shared.reserve(room, widths=too_wide)
    with refused("FIELD_OVERFLOW", field=field, requested=limit + 1, limit=limit) as at_capabilities:
        shared.capabilities(required=too_wide)
    token = shared.reserve(room, widths=pb.Widths(**{field: limit})).token
    with refused("FIELD_OVERFLOW") as at_put:
        shared.put(room, token, of_width(field, limit + 1))
    assert at_reserve.error.status == at_capabilities.error.status == at_put.error.status
    shared.capabilities(required=pb.Widths(**{field: limit}))


@pytest.mark.internals
@pytest.mark.parametrize("field", ["top_logprobs", *(name for name in LIMITS if name != "tokens")])
def test_a_width_of_zero_switches_the_part_off(start: Start, kind: str, field: str) -> None:
    settings: dict[str, Any] = {f"max_{field}": 0}
    store = start(**settings)
    steps = store.steps(kind)
    assert getattr(steps.capabilities().limits, field) == 0
    token = steps.reserve(7).token
    with refused("TOP_LOGPROBS_OVERFLOW" if field == "top_logprobs" else "FIELD_OVERFLOW", requested=1, limit=0):
        steps.put(7, token, of_width(field, 1))
    empty = of_width(field, 0)
    steps.put(7, token, empty)
    assert steps.record(7) == empty


@pytest.mark.settings(max_top_logprobs=3, max_customized_info_bytes=5)
def test_limits_are_those_of_the_settings(steps: Steps) -> None:
    limits = steps.capabilities().limits
    assert (limits.top_logprobs, limits.customized_info_bytes) == (3, 5)
    with refused("TOP_LOGPROBS_OVERFLOW", requested=4, limit=3, token_index=0):
        steps.put_once(7, records.with_top(4))
    with refused("FIELD_OVERFLOW", field="customized_info_bytes", requested=6, limit=5):
        steps.put_once(7, record(customized_info=b"123456"))
    assert steps.exchange(7, records.with_top(3)) == records.with_top(3)


def test_top_logprobs_are_told_before_any_other_width(steps: Steps) -> None:
    both = records.with_top(129)
    both.customized_info = bytes(5000)
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129):
        steps.put_once(7, both)
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129):
        steps.reserve(7, widths=pb.Widths(tokens=9, top_logprobs=129))


def test_batch_reserve_refuses_all_for_one_width(store: LocalStore, unary: Steps) -> None:
    batch = pb.BatchReserveRequest(
        requests=[requests.reserve(1), requests.reserve(2, widths=pb.Widths(top_logprobs=129))]
    )
    with refused("TOP_LOGPROBS_OVERFLOW", requested=129, limit=128):
        unary.caller.call("BatchReserve", batch)
    assert store.listing() == []
