"""Each fault of SGLang's class, shown on the class itself, and what happens in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pd_handoff import HandoffAborted, InvalidRecord, Key
from pd_handoff.engines.sglang import (
    RowMismatch,
    RowShape,
    SlotAllocator,
    append_to_request,
    record_from_request,
    row_from_record,
    sample_keys,
)
from pd_handoff.engines.sglang.request import mask_logprobs
from pd_handoff.tensor import Tensor

from examples.sglang.engine import load
from tests.sglang.making import Made
from tests.sglang.sides import SHAPE, Sides, commit, decode_entry, real_buffers


def top(count: int, asked: int | None = None, **more: Any) -> Made:
    """A request with so many top logprobs, of as many asked for."""
    values = [-0.5 - index for index in range(count)]
    made = Made(logprob=-0.25, top_num=count if asked is None else asked, top_val=[values], **more)
    made.top_idx = [list(range(100, 100 + count))]
    return made


def drafted(hidden: torch.Tensor, topk: int = 4, **more: Any) -> Made:
    """A request with a draft model's state."""
    return Made(hidden=hidden, topk_p=torch.full((topk,), 0.5), topk_index=torch.arange(topk), **more)


def used_then(first: Made, second: Made, shape: RowShape = SHAPE) -> Any:
    """The real class after two requests that had the same row."""
    real = real_buffers(shape)
    real.set_buf(first.request())
    real.set_buf(second.request())
    return real


# Residue.


def test_residue_behind_a_shorter_list_of_top_logprobs(sides: Sides) -> None:
    real = used_then(top(20, room=1), top(3, asked=20, room=2))
    assert commit(real, top(3, asked=20, room=2).request(computed=False)).logprob.output_top_logprobs_idx == [
        [100, 101, 102, *range(103, 120)]  # 17 of them are the former request's
    ]

    sides.hand_over(top(20, room=1).request(), top(20, room=1).request(computed=False))
    row = sides.hand_over(top(3, room=2).request(), top(3, room=2).request(computed=False))
    assert row[5].tolist() == [100, 101, 102] + [0] * 125


def test_residue_of_a_draft_state_in_a_request_without_one(sides: Sides) -> None:
    secret = drafted(torch.full((16,), 7.0, dtype=torch.bfloat16), room=11, sparse=torch.arange(8, dtype=torch.int32))
    real = used_then(secret, Made(room=12))
    _, _, hidden, sparse, _ = real.get_buf(0)[9:]
    assert hidden.tolist() == [7.0] * 16
    assert sparse.tolist() == list(range(8))

    sides.hand_over(secret.request(), secret.request(computed=False))
    _, _, hidden, sparse, _ = sides.hand_over(Made(room=12).request(), Made(room=12).request(computed=False))[9:]
    assert hidden.tolist() == [0.0] * 16
    assert sparse.tolist() == [-1] * 8


def test_residue_of_a_kv_checksum(sides: Sides) -> None:
    real = used_then(Made(room=21), Made(room=22))
    real.set_kv_checksum(Made(room=21).request(), 123, 456)
    real.set_buf(Made(room=22).request())  # prefill never clears its rows
    assert real.get_kv_checksum(0) == (123, 456)

    first, second = Made(room=21).request(), Made(room=22).request()
    first.metadata_buffer_index = second.metadata_buffer_index = sides.prefill_slots.alloc()
    sides.prefill.set_kv_checksum(first, 123, 456)
    assert sides.prefill.set_buf(second)
    sides.decode.bind(0, Made(room=22).request(computed=False))
    assert sides.decode.get_kv_checksum(0) == (0, 0)


# Padding.


def test_padding_with_zero_where_fewer_logprobs_came_than_were_asked_for(sides: Sides) -> None:
    made = top(5, asked=20, room=31)
    real = real_buffers()
    real.set_buf(made.request())
    theirs = commit(real, made.request(computed=False)).logprob
    assert theirs.output_top_logprobs_val[0][5:] == [0.0] * 15  # probability 1, of token 0, fifteen times
    assert theirs.output_top_logprobs_idx[0][5:] == [0] * 15

    source, request = made.request(), made.request(computed=False)
    assert sides.publish(source)
    sides.decode.bind(0, request)
    ours = commit(sides.decode, request).logprob  # SGLang's own commit, unchanged
    assert ours.output_top_logprobs_val == [[-0.5, -1.5, -2.5, -3.5, -4.5]]
    assert ours.output_top_logprobs_idx == [[100, 101, 102, 103, 104]]


def test_padding_of_unpaired_values_and_token_ids(sides: Sides) -> None:
    made = Made(logprob=-0.25, top_num=5, top_val=[[-1.0, -2.0, -3.0]], top_idx=[[1, 2, 3, 4, 5]], room=32)
    real = real_buffers()
    real.set_buf(made.request())
    assert real.get_buf(0)[4][:5].tolist() == [-1.0, -2.0, -3.0, 0.0, 0.0]

    with pytest.raises(InvalidRecord, match="3 values for 5 token ids"):
        record_from_request(made.request())
    assert_refused(sides, made, 500, "3 values for 5 token ids")


def test_padding_of_129_token_ids_without_values(sides: Sides) -> None:
    made = Made(logprob=-0.25, top_num=5, top_idx=[list(range(129))], room=33)
    with pytest.raises(RuntimeError, match="expanded size"):  # into the scheduler's loop
        real_buffers().set_buf(made.request())

    assert_refused(sides, made, 500, "0 values for 129 token ids")


def test_padding_of_an_absent_logprob_with_zero(sides: Sides) -> None:
    absent, asking = Made(room=34), top(0, room=34)
    real = real_buffers()
    real.set_buf(absent.request())
    assert commit(real, asking.request(computed=False)).logprob.output_token_logprobs_val == [0.0]

    assert sides.publish(absent.request())
    request = asking.request(computed=False)
    sides.decode.bind(0, request)
    commit(sides.decode, request)
    assert (request.finished_reason.status_code, request.finished_reason.message) == (
        500,
        "prefill did not hand over the logprob of the first token, which the request asks for",
    )
    alone = asking.request(computed=False)
    append_to_request(alone, record_from_request(absent.request()))
    assert alone.logprob.output_token_logprobs_val == [None]


def test_padding_where_logprobs_of_listed_token_ids_are_lost() -> None:
    made = Made(logprob=-0.25, room=35)
    source, theirs, ours = made.request(), made.request(computed=False), made.request(computed=False)
    source.logprob.token_ids_logprob = theirs.logprob.token_ids_logprob = ours.logprob.token_ids_logprob = [7, 8]
    source.logprob.output_token_ids_logprobs_val.append(torch.tensor([-1.5, -2.5]))
    source.logprob.output_token_ids_logprobs_idx.append([7, 8])
    real = real_buffers()
    real.set_buf(source)
    assert commit(real, theirs).logprob.output_token_ids_logprobs_val == [[]]

    append_to_request(ours, record_from_request(source))
    assert ours.logprob.output_token_ids_logprobs_val == [[-1.5, -2.5]]
    assert ours.logprob.output_token_ids_logprobs_idx == [[7, 8]]


# Silent casts.


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.bfloat16, [1.0, 1e9 - 1755648.0, 0.10009765625, 5.0]),  # rounded
        (torch.float8_e4m3fn, [1.0, 448.0, 0.1015625, 5.0]),  # saturated
        (torch.float8_e5m2, [1.0, float("inf"), 0.09375, 5.0]),  # infinite
    ],
)
def test_silent_cast_of_hidden_states(dtype: torch.dtype, stored: list[float]) -> None:
    shape = RowShape(4, dtype, 16)
    made = drafted(torch.tensor([1.0, 1e9, 0.1, 5.0]))
    real = real_buffers(shape)
    real.set_buf(made.request())
    assert real.get_buf(0)[11].tolist() == stored

    record = record_from_request(made.request())
    assert Tensor.from_proto(record.speculative.hidden_states).to_torch().equal(torch.tensor([1.0, 1e9, 0.1, 5.0]))
    with pytest.raises(RowMismatch, match=r"hidden states are float32 .* never cast"):
        row_from_record(record, 7, shape)


def test_silent_cast_of_hidden_states_is_refused_before_it_is_sent(sides: Sides) -> None:
    made = drafted(torch.ones(16), room=41)
    assert_refused(sides, made, 500, "hidden states are float32 of shape [16], this engine's rows are bfloat16")


def test_silent_cast_of_a_logprob_beyond_float32() -> None:
    made = Made(logprob=-1.0, top_num=1, top_val=[[-1e39]], top_idx=[[5]])
    real = real_buffers()
    real.set_buf(made.request())
    assert real.get_buf(0)[4][0].item() == float("-inf")

    with pytest.raises(InvalidRecord, match="overflows float32"):
        record_from_request(made.request())


# Broadcasts.


def test_broadcast_of_hidden_states(sides: Sides) -> None:
    made = drafted(torch.tensor([3.0], dtype=torch.bfloat16), room=51)
    real = real_buffers()
    real.set_buf(made.request())
    assert real.get_buf(0)[11].tolist() == [3.0] * 16

    assert_refused(sides, made, 500, "hidden states are bfloat16 of shape [1], this engine's rows are")


def test_broadcast_of_one_index_over_all_candidates() -> None:
    made = drafted(torch.ones(16, dtype=torch.bfloat16))
    made.topk_index = torch.tensor([9])
    real = real_buffers()
    real.set_buf(made.request())
    assert real.get_buf(0)[10][:4].tolist() == [9] * 4

    with pytest.raises(InvalidRecord, match="4 probabilities for 1 indices"):
        record_from_request(made.request())


def test_broadcast_of_one_sparse_index(sides: Sides) -> None:
    made = drafted(torch.ones(16, dtype=torch.bfloat16), sparse=torch.tensor([4], dtype=torch.int32), room=52)
    real = real_buffers()
    real.set_buf(made.request())
    assert real.get_buf(0)[12].tolist() == [4] * 8

    assert_refused(sides, made, 500, "1 sparse attention indices, this engine's rows have 8")


# Rooms.


def test_room_0_means_not_written(upstream: Any, sides: Sides) -> None:
    made = Made(token=99, room=0)
    real = real_buffers()
    real.set_buf(made.request())
    theirs, polls = made.request(computed=False), [4]
    upstream._apply_metadata_gate(polls, [decode_entry(theirs)], real)
    assert polls == [3]  # Transferring, for as long as one waits
    commit(real, theirs)
    assert theirs.finished_reason.message.startswith("Metadata unexpectedly not ready")

    ours = made.request(computed=False)
    assert sides.publish(made.request())
    sides.decode.bind(0, ours)
    assert sides.decode.get_buf(0)[0][0].item() == 99
    assert sides.decode.ready(0)
    polls = [4]
    sides.decode.gate(polls, [decode_entry(ours)])
    assert polls == [4]


@pytest.mark.parametrize("room", [2**63, 2**64 - 1])
def test_rooms_from_2_to_63_raise(sides: Sides, room: int) -> None:
    made = Made(room=room)
    with pytest.raises((ValueError, RuntimeError, OverflowError)):  # which of them depends on torch
        real_buffers().set_buf(made.request())

    row = sides.hand_over(made.request(), made.request(computed=False))
    assert int(row[13].numpy()[0]) == room


def test_n_samples_of_neighbouring_rooms_share_one(sides: Sides) -> None:
    structures = load("srt.managers.io_struct")
    given = structures.GenerateReqInput(input_ids=[[1], [2]], sampling_params={"n": 2}, bootstrap_room=5)
    given.normalize_batch_and_arguments()
    assert given.bootstrap_room == [5, 6, 7, 8]
    # ... of which the tokenizer gives the first two out, to both samples of each prompt:
    assert [given[prompt].bootstrap_room for prompt in range(2) for _ in range(2)] == [5, 5, 6, 6]

    keys = sample_keys(5, 2) + sample_keys(6, 2)
    assert len(set(keys)) == 4
    assert keys[1] == Key(5, 1)
    got = []
    for sample in range(3):
        source, request = Made(token=sample, room=5).request(), Made(room=5).request(computed=False)
        source.handoff_sample = request.handoff_sample = sample
        got.append(sides.hand_over(source, request)[0][0].item())
    assert got == [0, 1, 2]


# Slots.


def test_double_free_gives_one_row_to_two_requests(upstream: Any) -> None:
    theirs = upstream.ReqToMetadataIdxAllocator(2)
    row = theirs.alloc()
    theirs.free(row)
    theirs.free(row)
    assert theirs.available_size() == 3
    assert [theirs.alloc() for _ in range(3)] == [1, 0, 0]

    ours = SlotAllocator(2)
    held = ours.alloc()
    assert held == 0
    assert ours.free(held)
    assert not ours.free(held)
    assert ours.available_size() == 2
    assert [ours.alloc(), ours.alloc(), ours.alloc()] == [1, 0, None]
    assert ours.refused == 1


def test_double_free_takes_a_row_from_its_next_owner(upstream: Any) -> None:
    theirs = upstream.ReqToMetadataIdxAllocator(1)
    row = theirs.alloc()
    theirs.free(row)
    assert theirs.alloc() == row  # another request's by now
    theirs.free(row)
    assert theirs.alloc() == row  # and a third one's

    ours = SlotAllocator(1)
    former = ours.alloc()
    assert former is not None
    assert ours.free(former)
    assert ours.alloc() == former
    assert not ours.free(former)
    assert ours.alloc() is None


def test_double_free_of_no_row_at_all(upstream: Any) -> None:
    theirs = upstream.ReqToMetadataIdxAllocator(1)
    theirs.free(-1)
    assert [theirs.alloc(), theirs.alloc()] == [0, -1]

    ours = SlotAllocator(1)
    row = ours.alloc()
    for no_row in (-1, 1, 0.5, None, "0"):
        assert not ours.free(no_row)  # type: ignore[arg-type]
    assert ours.refused == 5
    assert ours.alloc() is None
    assert row is not None
    assert ours.free(row)


# What raises into the scheduler's loop.


def test_overflow_of_top_logprobs_raises_after_the_prefill_was_paid_for(sides: Sides) -> None:
    with pytest.raises(RuntimeError, match="top_logprobs_num 129 exceeds disaggregation metadata capacity 128"):
        real_buffers().set_buf(top(129, room=61).request())

    assert_refused(sides, top(129, room=61), 400, "129 exceeds disaggregation metadata capacity 128")
    row = sides.hand_over(top(128, room=62).request(), top(128, room=62).request(computed=False))  # the next one
    assert row[5].tolist() == list(range(100, 228))


def test_overflow_of_top_logprobs_is_refused_before_the_prefill(sides: Sides) -> None:
    made = top(0, asked=129, room=63)
    source, request = made.request(), made.request(computed=False)
    sides.decode.bind(0, request)

    assert not sides.prefill.reserve(source)

    assert source.finished_reason.status_code == 400
    assert "129 exceeds disaggregation metadata capacity 128" in source.finished_reason.message
    assert_aborted(sides, request, 400, "129 exceeds disaggregation metadata capacity 128")


@pytest.mark.parametrize(
    ("made", "status", "text"),
    [  # the length of a mask follows from what the user asked for, the number of candidates from the engine's settings
        (Made(mask=list(range(1025)), mask_logprobs=[-1.0], room=64), 400, "sampling_mask_tokens 1025"),
        (drafted(torch.ones(16, dtype=torch.bfloat16), topk=17, room=68), 500, "speculative_topk 17"),
    ],
)
def test_overflow_of_other_parts_raises(sides: Sides, made: Made, status: int, text: str) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        real_buffers().set_buf(made.request())

    assert_refused(sides, made, status, text)


def test_overflow_of_counters_raises(sides: Sides) -> None:
    made = Made(cached=(2**40, 2**31, 0, 1), room=65)
    with pytest.raises(RuntimeError, match="without overflow"):
        real_buffers().set_buf(made.request())

    request = made.request(computed=False)
    assert sides.publish(made.request())
    sides.decode.bind(0, request)
    commit(sides.decode, request)
    assert (request.cached_tokens, request.cached_tokens_device, request.cached_tokens_storage) == (2**40, 2**31, 1)


def test_a_sampling_mask_raises_where_the_environment_switched_masks_off(sides: Sides) -> None:
    made = Made(mask=[5, 6], mask_logprobs=[-0.5], room=66)
    with pytest.raises(TypeError):
        real_buffers(RowShape(16, torch.bfloat16, 64, sampling_mask=False)).set_buf(made.request())

    request = made.request(computed=False)
    assert sides.publish(made.request())
    sides.decode.bind(0, request)
    commit(sides.decode, request)
    chunk = request.sampling_mask_rows.view()
    assert chunk.token_ids.tolist() == [5, 6]
    assert chunk.logprobs.tolist() == [-0.5]


def test_of_several_rows_of_sampling_masks_the_last_counts(sides: Sides) -> None:
    made = Made(mask=[5, 6], mask_logprobs=[-0.5], room=67)
    source = made.request()
    source.sampling_mask_rows.append(np.array([7], dtype=np.int32), np.array([-0.25], dtype=np.float32))
    real = real_buffers()
    real.set_buf(source)
    assert real.get_buf(0)[6][0].item() == 3  # ids of two tokens, as if of one

    record = record_from_request(source)  # as an optimistic prefill that was done again leaves them
    assert (list(record.sampling_mask.token_ids), mask_logprobs(record)) == ([7], [-0.25])


# Aborts.


def test_an_abort_of_prefill_never_reaches_decode(upstream: Any, sides: Sides) -> None:
    made = Made(room=71)
    real, request = real_buffers(), made.request(computed=False)
    upstream.prepare_abort(made.request(), "input too long", 400)
    polls = [4]
    upstream._apply_metadata_gate(polls, [decode_entry(request)], real)
    assert polls == [3]
    assert request.finished_reason is None

    source = made.request()
    sides.decode.bind(0, request)
    upstream.prepare_abort(source, "input too long", 400)
    sides.prefill.abort(source, "input too long", 400)  # the patch calls it at the end of prepare_abort
    assert_aborted(sides, request, 400, "input too long")


def test_a_request_that_decode_dropped_is_not_prefilled_for_nobody(sides: Sides) -> None:
    made = Made(room=72)
    sides.decode.bind(0, made.request(computed=False))
    sides.decode.clear_slot(0)
    sides.decode.link.settle()

    source = made.request()
    assert not sides.publish(source)
    assert source.finished_reason.message == "decode dropped the request before it had read its record"
    with pytest.raises(HandoffAborted) as raised:
        sides.prefill.link.prefill.reserve(Key(72), owner="someone")
    assert raised.value.failure.reason == "READER_GONE"


def assert_refused(sides: Sides, made: Made, status: int, text: str) -> None:
    """Prefill goes on, with the request aborted; decode's request is aborted with the same words."""
    source, request = made.request(), made.request(computed=False)
    sides.decode.bind(0, request)
    assert not sides.publish(source)
    assert source.finished_reason.status_code == status
    assert text in source.finished_reason.message
    assert_aborted(sides, request, status, text)


def assert_aborted(sides: Sides, request: Any, status: int, text: str) -> None:
    """The request of row 0 of decode has failed, whatever its transfer does, and SGLang's own commit ends it."""
    sides.decode.get_buf(0)  # waits for the answer
    assert request.finished_reason.status_code == status
    assert text in request.finished_reason.message
    polls = [3]
    sides.decode.gate(polls, [decode_entry(request)])
    assert polls == [0]
    sides.decode.clear_slot(0)
