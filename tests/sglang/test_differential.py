"""Wherever SGLang's class is right, the adapter gives the same, bit for bit."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import Any

import numpy as np
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

from examples.sglang.engine import load
from examples.sglang.requests import shown
from tests.sglang.making import Made, right_requests, shapes
from tests.sglang.sides import SHAPE, Row, Sides, bits, commit, real_buffers

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

    expected, found = shown(theirs), shown(ours)
    for name in ("hidden", "topk", "sparse"):  # set by the engine, from get_buf
        expected.pop(name, None)
    if made.listed is not None:  # the one known difference: SGLang loses these and appends empty lists
        assert (expected.pop("listed"), expected.pop("listed_of")) == ([""], [[]])
        assert found.pop("listed_of") == [list(made.listed)]
        assert np.array_equal(
            np.frombuffer(bytes.fromhex(found.pop("listed")[0]), "<f4"),
            np.array(list(made.listed.values()), dtype="<f4"),
            equal_nan=True,
        )
    assert found == expected


def test_what_is_compared_is_all_that_sglangs_commit_sets_on_a_request(upstream: Any) -> None:
    commit_of = load("srt.disaggregation.decode").DecodeTransferQueue._commit_transfer_to_req
    tree = ast.parse(textwrap.dedent(inspect.getsource(commit_of)))
    set_there = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and "decode_req.req" in ast.unparse(node)
    }
    appended = {
        node.func.value.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and isinstance(node.func.value, ast.Attribute)
    }
    compared = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(shown)))
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("req.")
    }
    not_of_the_row = {"expected_kv_checksum", "pd_rebootstrap_forced_output_id"}
    assert set_there | appended <= compared | not_of_the_row


def test_a_swap_of_two_counters_does_not_pass_the_comparison() -> None:
    made = Made(modality=(1, 2, 3), cached=(4, 5, 6, 7))
    source, real = made.request(), real_buffers()
    real.set_buf(source)
    expected = shown(commit(real, made.request(computed=False)))
    record = record_from_request(source)
    for counters, one, other in (
        (record.modality_tokens, "image", "audio"),
        (record.modality_tokens, "audio", "video"),
        (record.cached_tokens, "total", "device"),
    ):
        before = getattr(counters, one), getattr(counters, other)
        for values in (before[::-1], before):
            setattr(counters, one, values[0])
            setattr(counters, other, values[1])
            ours = made.request(computed=False)
            append_to_request(ours, record)
            assert (shown(ours) == expected) is (values == before)


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
    ours = commit(Row(row), made.request(computed=False), speculative=speculative)
    assert shown(ours) == shown(theirs)


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
