"""Limits decide before anything is submitted, in the store's own words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff import Capabilities, DataType, FieldOverflow, TopLogprobsOverflow, Widths
from pd_handoff.v1 import metadata_store_pb2 as pb

RESPONSE = pb.CapabilitiesResponse(
    limits=pb.Widths(tokens=8, top_logprobs=128, token_ids_logprobs=128, hidden_state_bytes=32768),
    slots_total=1024,
    slots_free=1000,
    row_bytes=85824,
    arena_bytes=85824 * 1024,
    lease_default=Duration(seconds=60),
    lease_min=Duration(seconds=1),
    lease_max=Duration(seconds=3600),
    max_wait=Duration(seconds=600),
    retention=Duration(seconds=300),
    consumed_grace=Duration(seconds=30),
    tombstone_time=Duration(seconds=120, nanos=500_000_000),
    max_batch=128,
    max_waiters=16384,
    max_message_bytes=11 << 20,
    hidden_state_dtypes=[1, 2, 3, 99],  # type: ignore[list-item]
    features=["session"],
    store_epoch="e",
    server_version="0.1.0",
    schema_fingerprint="f",
)
FOUND = Capabilities.from_proto(RESPONSE)


def test_fields_are_plain_values() -> None:
    assert FOUND.limits == Widths(tokens=8, top_logprobs=128, token_ids_logprobs=128, hidden_state_bytes=32768)
    assert (FOUND.slots_total, FOUND.slots_free, FOUND.lease_default, FOUND.tombstone_time) == (1024, 1000, 60.0, 120.5)
    assert FOUND.hidden_state_dtypes == (DataType.FLOAT32, DataType.FLOAT16, DataType.BFLOAT16)
    assert FOUND.features == ("session",)


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 0), (1, 1), (127, 127), (128, 128), (129, 128), (100_000, 128), (np.int64(129), 128)]
)
def test_clamp(asked: int, given: int) -> None:
    clamped = FOUND.clamp_top_logprobs(asked)
    assert (clamped, type(clamped)) == (given, int)


@pytest.mark.parametrize("method", ["clamp_top_logprobs", "require_top_logprobs"])
@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        *((1.5, TypeError, "1.5 (float)"), (True, TypeError, "True (bool)"), ("5", TypeError, "'5' (str)")),
        *((None, TypeError, "None"), (-1, ValueError, "-1")),
    ],
)
def test_what_is_no_number_of_top_logprobs(method: str, asked: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind) as caught:
        getattr(FOUND, method)(asked)
    assert str(caught.value) == f"top logprobs must be a number of them, from 0, not {told}"


@pytest.mark.parametrize(("width", "kind"), [(-1, ValueError), (2**32, ValueError), (1.5, TypeError)])
async def test_widths_that_are_none_are_named(width: Any, kind: type[Exception], connect: Any, store: Any) -> None:
    client = connect("PrefillClient")
    with pytest.raises(kind, match=r"^widths.top_logprobs: must be an integer from 0 to 2\*\*32 - 1, not "):
        await client.capabilities(required=Widths(tokens=1, top_logprobs=width))
    assert store.calls == []


def test_require_top_logprobs_at_the_limit_and_beyond() -> None:
    FOUND.require_top_logprobs(128)
    with pytest.raises(TopLogprobsOverflow) as caught:
        FOUND.require_top_logprobs(129)
    error = caught.value
    assert str(error).startswith("top_logprobs_num 129 exceeds disaggregation metadata capacity 128")
    assert (error.requested, error.limit, error.http_status, error.code) == (129, 128, 400, "RESOURCE_EXHAUSTED")
    assert error.metadata == {"requested": "129", "limit": "128"}


def test_require_widths() -> None:
    FOUND.require(Widths(tokens=8, top_logprobs=128, hidden_state_bytes=32768))
    with pytest.raises(TopLogprobsOverflow):
        FOUND.require(Widths(top_logprobs=129))
    with pytest.raises(FieldOverflow) as caught:
        FOUND.require(Widths(sampling_mask_tokens=1))
    assert (caught.value.field, caught.value.requested, caught.value.limit) == ("sampling_mask_tokens", 1, 0)


async def test_what_is_asked_for_reaches_the_store(connect: Any, store: Any) -> None:
    store.script("Capabilities", RESPONSE)
    client = connect("PrefillClient")
    assert await client.capabilities() == FOUND
    assert await client.capabilities(required=Widths(top_logprobs=20), expected_schema_fingerprint="f") == FOUND
    bare, asked = (call.request for call in store.calls)
    assert bare == pb.CapabilitiesRequest()
    assert asked == pb.CapabilitiesRequest(required=pb.Widths(top_logprobs=20), expected_schema_fingerprint="f")
