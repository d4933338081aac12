"""Wherever SGLang's class is right, the adapter gives the same, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff.engines.sglang import (
    RowShape,
    StoreMetadataBuffers,
    append_to_request,
    record_from_request,
    record_from_row,
    row_from_record,
    write_row,
)
from pd_handoff.v1 import record_pb2

from examples.sglang.requests import shown
from tests.sglang.making import Made, right_requests, shapes
from tests.sglang.sides import SHAPE, Sides, bits, commit, real_buffers

shaped = shapes().flatmap(lambda shape: st.tuples(st.just(shape), right_requests(shape)))
fresh_rooms = itertools.count(1 << 40)


@settings(max_examples=2000)
@given(shaped)
def test_the_row_equals_that_of_the_real_class(drawn: tuple[RowShape, Made]) -> None:
    shape, made = drawn
    real = real_buffers(shape)
    source = made.request()
    real.set_buf(source)
    if made.checksum:
        real.set_kv_checksum(source, *made.checksum)

    sent = record_from_request(source, kv_checksum=made.checksum).SerializeToString()
    record = record_pb2.HandoffRecord.FromString(sent)
    assert made.room is not None
    ours = row_from_record(record, made.room, shape, top_logprobs_num=made.top_num)

    assert list(map(bits, ours)) == list(map(bits, real.get_buf(0)))
    checksum = (record.kv_checksum.digest, record.kv_checksum.layout_signature)
    assert checksum == real.get_kv_checksum(0)


@settings(max_examples=500)
@given(shaped, st.booleans())
def test_what_decode_adds_to_its_request_equals_what_it_adds_from_the_real_class(
    drawn: tuple[RowShape, Made], speculative: bool
) -> None:
    shape, made = drawn
    real = real_buffers(shape)
    source = made.request()
    real.set_buf(source)
    theirs = commit(real, made.request(computed=False), speculative=speculative)

    ours = made.request(computed=False)
    append_to_request(ours, record_from_request(source))

    expected = shown(theirs)
    for name in ("hidden", "topk", "sparse"):  # set by the engine, from get_buf
        expected.pop(name, None)
    assert shown(ours) == expected


@pytest.fixture(scope="module")
def module_sides(target: str) -> Any:
    both = Sides(target)
    yield both
    both.close()


@settings(max_examples=500)
@given(made=right_requests(SHAPE), speculative=st.booleans())
def test_through_a_store_and_rows_used_again_and_again(module_sides: Sides, made: Made, speculative: bool) -> None:
    made.room = next(fresh_rooms)  # many requests, few rows: what the former owner left would show
    source = made.request()
    real = real_buffers()
    real.set_buf(source)

    row = module_sides.hand_over(source, made.request(computed=False), checksum=made.checksum)

    assert list(map(bits, row)) == list(map(bits, real.get_buf(0)))
    theirs = commit(real, made.request(computed=False), speculative=speculative)
    ours = commit(_Row(row), made.request(computed=False), speculative=speculative)
    assert shown(ours) == shown(theirs)


class _Row:
    """A row that was read, for SGLang's commit to read again."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    def get_buf(self, idx: int) -> tuple[Any, ...]:
        return self._row


@settings(max_examples=300)
@given(made=right_requests(SHAPE))
def test_over_the_bridge_from_a_row_of_the_real_class_and_back_into_one(made: Made) -> None:
    assert made.room is not None
    prefill, decode = real_buffers(), real_buffers()
    source = made.request()
    prefill.set_buf(source)
    if made.checksum:
        prefill.set_kv_checksum(source, *made.checksum)
    topk = 0 if made.topk_p is None else made.topk_p.numel()

    record = record_from_row(prefill.get_buf(0), source, speculative_topk=topk, kv_checksum=prefill.get_kv_checksum(0))
    write_row(decode, 0, record, made.room)

    assert list(map(bits, decode.get_buf(0))) == list(map(bits, prefill.get_buf(0)))
    assert decode.get_kv_checksum(0) == prefill.get_kv_checksum(0)


def test_the_sizes_that_the_adapter_stands_in_for_are_those_of_the_constructor(sides: Sides) -> None:
    real = real_buffers(size=4)
    assert isinstance(sides.prefill, StoreMetadataBuffers)
    assert sides.prefill.enable_sampling_mask == real.enable_sampling_mask
    addresses, total, rows = sides.prefill.get_buf_infos()
    assert (len(addresses), total, rows) == (1, [4 * 64], [64])
    assert len(real.get_buf_infos()[0]) == 15
