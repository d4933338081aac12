"""The layout of a row: large enough for whatever the limits allow, and no larger than that needs."""

from __future__ import annotations

from dataclasses import astuple, fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.arena.layout import ALIGNMENT, HEADER, WIDTHS, Layout, Limits, varint_size
from pd_handoff_server.arena.packed_record import measure

from .strategies import largest

sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 13, 25, 31, 32, 42, 63, 64, 127, 128, 129, 300]) | st.integers(0, 700)
any_limits = st.builds(Limits, st.integers(1, 12), *[sizes] * 7, st.just(0) | sizes, st.just(16) | sizes)

BYTES_OF_AN_ELEMENT = {
    "top_logprobs": 9,  # a float and an id, of every token
    "token_ids_logprobs": 9,
    "sampling_mask_tokens": 9,
    "speculative_topk": 14,  # a float and an int64
    "dsa_topk_indices": 10,
    "customized_info_bytes": 1,
    "hidden_state_bytes": 1,
    "engine_state_bytes": 1,
}


@settings(deadline=None)
@given(any_limits, st.booleans())
@example(Limits(), False)
@example(Limits(1, 0, 0, 0, 0, 0, 0, 0), True)
@example(Limits(1, 0, 0, 0, 0, 0, 0, 1), True)
@example(Limits(12, 700, 700, 700, 700, 700, 700, 700), False)
@example(Limits(12, 700, 700, 700, 700, 700, 700, 700, 700, 700), False)
@example(Limits(12, 13, 13, 0, 0, 0, 0, 0, 1, 25), False)
@example(Limits(1, 0, 0, 0, 0, 0, 0, 0, 1, 0), True)
def test_the_largest_legal_record_always_fits(limits: Limits, empty_tensor: bool) -> None:
    layout = Layout(limits)
    draft = measure(largest(limits, empty_tensor=empty_tensor), layout)
    assert len(draft.image) <= layout.image_bytes
    assert HEADER.size + layout.image_bytes <= layout.row_bytes


@pytest.mark.parametrize(
    "limits",
    [
        Limits(1, 1 << 20, 0, 0, 0, 0, 0, 0),
        Limits(1, 0, 0, 1 << 20, 0, 0, 0, 0),
        Limits(1, 0, 0, 0, 1 << 16, 1 << 20, 0, 0),
        Limits(1, 0, 0, 0, 0, 0, 1 << 26, 0),
        Limits(1, 0, 0, 0, 0, 0, 0, 1 << 26),
        Limits(1024, 0, 0, 0, 0, 0, 0, 0),
        Limits(1, 0, 0, 0, 0, 0, 0, 0, 1 << 26),
        Limits(1, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 12),
        Limits(1, 1 << 20, 0, 0, 0, 0, 0, 0, 1, 1 << 12),
    ],
    ids=str,
)
def test_the_largest_record_fits_at_the_bounds_of_the_settings(limits: Limits) -> None:
    """Lengths of lists and of the messages around them take up to five bytes there."""
    layout = Layout(limits)
    assert largest(limits).ByteSize() <= layout.image_bytes


@settings(deadline=None)
@given(any_limits)
def test_rows_are_aligned_and_hold_little_air(limits: Limits) -> None:
    layout = Layout(limits)
    assert layout.row_bytes % ALIGNMENT == 0
    assert ALIGNMENT == 64
    assert layout.row_bytes - HEADER.size - layout.image_bytes < ALIGNMENT
    assert layout.image_bytes - largest(limits).ByteSize() <= 96 + 32 * limits.tokens


@settings(deadline=None)
@given(any_limits)
def test_the_columns_are_the_row(limits: Limits) -> None:
    layout = Layout(limits)
    assert sum(column.bytes for column in layout.columns) == layout.image_bytes
    assert len({column.name for column in layout.columns}) == len(layout.columns)
    assert all(column.bytes >= 0 and column.elements >= 0 for column in layout.columns)
    assert layout.widths == astuple(limits)


@pytest.mark.parametrize("name", sorted(BYTES_OF_AN_ELEMENT))
@given(limits=any_limits, width=st.integers(1, 5000))
@settings(deadline=None, max_examples=50)
def test_a_width_of_0_gives_its_bytes_back(name: str, limits: Limits, width: int) -> None:
    """All of them: nothing but a frame of a few bytes may stay."""
    without = Layout(replace(limits, **{name: 0})).image_bytes
    number = width * (limits.tokens if name.endswith("logprobs") else 1)
    assert Layout(replace(limits, **{name: width})).image_bytes - without >= number * BYTES_OF_AN_ELEMENT[name]
    off = Layout(replace(limits, **{name: 0}))
    stem = name.removesuffix("_tokens").removesuffix("_bytes")
    left = [column for column in off.columns if stem in column.name and not column.name.endswith("shape")]
    assert sum(column.bytes for column in left) <= 2
    assert sum(column.elements for column in left) == 0


def test_the_limits_are_those_of_the_message() -> None:
    assert {*WIDTHS} == {field.name for field in pb.Widths.DESCRIPTOR.fields}
    assert tuple(field.name for field in fields(Limits)) == WIDTHS


def test_the_defaults_are_those_of_the_contract() -> None:
    assert Limits() == Limits(
        tokens=8,
        top_logprobs=128,
        token_ids_logprobs=128,
        sampling_mask_tokens=1024,
        speculative_topk=16,
        dsa_topk_indices=2048,
        customized_info_bytes=4 << 10,
        hidden_state_bytes=32 << 10,
        engine_state_bytes=0,
        draft_tokens=16,
        attachment_bytes=0,
    )


@pytest.mark.parametrize(
    ("limits", "row_bytes"),
    [
        (Limits(), 85_824),
        (Limits(tokens=1), 69_440),
        (Limits(hidden_state_bytes=2 * 7168), 67_392),
        (Limits(1, 0, 0, 0, 0, 0, 0, 0), 320),
        (Limits(1, 20, 20, 64, 8, 24, 256, 512), 2_368),
    ],
)
def test_rows_of_an_engine_without_a_state_keep_their_bytes(limits: Limits, row_bytes: int) -> None:
    """As they were before there were engine states: header, layout and size."""
    assert Layout(limits).row_bytes == row_bytes
    assert Layout(replace(limits, draft_tokens=0)).row_bytes == row_bytes
    assert HEADER.size == 64
    assert Layout(replace(limits, engine_state_bytes=1)).row_bytes > row_bytes


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_varint_sizes(value: int) -> None:
    size = varint_size(value)
    assert 1 <= size <= 10
    assert value < 1 << (7 * size)
    assert size == 1 or value >= 1 << (7 * (size - 1))
