"""Inputs that broke systems of this kind in production: what a record may hold, and what comes back."""

from __future__ import annotations

import itertools
import random

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.records import Token, logprobs, record, with_hidden
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

CAP = 4096  # of customized_info
MASK = 1024
ROW = 32768  # of hidden states


@pytest.mark.parametrize("width", [0, 1, 127, 128])
def test_case_01_top_logprobs_up_to_the_limit(shared: Steps, room: int, width: int) -> None:
    sent = records.with_top(width)
    got = shared.exchange(room, sent)
    assert got == sent
    assert got.tokens[0].HasField("top_logprobs")  # 0 is present and empty


def test_case_01_no_top_logprobs_at_all(shared: Steps, room: int) -> None:
    assert not shared.exchange(room, record()).tokens[0].HasField("top_logprobs")


@pytest.mark.parametrize("width", [129, 100_000])
def test_case_01_overflow_leaves_reservation_and_neighbour_alone(steps: Steps, store: LocalStore, width: int) -> None:
    steps.publish(1, records.full(1))
    neighbour = steps.reserve(3).token
    token = steps.reserve(2).token
    before = store.sight(2)
    with refused("TOP_LOGPROBS_OVERFLOW", requested=width, limit=128, token_index=0):
        steps.put(2, token, records.with_top(width))
    after = store.sight(2)
    assert (after.state, after.slot, after.generation) == (before.state, before.slot, before.generation)
    with refused("RECORD_NOT_READY", state="RESERVED"):
        steps.get(2)
    clamped = records.with_top(steps.capabilities().limits.top_logprobs)
    steps.put(2, token, clamped)
    steps.put(3, neighbour, records.full(3))
    assert steps.record(2) == clamped
    assert steps.record(1) == records.full(1)
    assert steps.record(3) == records.full(3)


@pytest.mark.internals
def test_case_01_a_refused_put_wakes_nobody(steps: Steps, store: LocalStore) -> None:
    token = steps.reserve(7).token
    waiting = steps.start_get(7)
    store.until_waiting(1)
    with refused("TOP_LOGPROBS_OVERFLOW"):
        steps.put(7, token, records.with_top(129))
    assert store.waiting == 1
    steps.put(7, token, records.with_top(128))
    assert waiting.result().record == records.with_top(128)


@pytest.mark.parametrize("width", [0, 1, 127, 128])
def test_case_02_widths_at_reserve_up_to_the_limit(shared: Steps, room: int, width: int) -> None:
    assert shared.reserve(room, widths=pb.Widths(top_logprobs=width)).token


@pytest.mark.parametrize("width", [129, 100_000])
def test_case_02_the_same_error_at_reserve_before_anything_is_computed(
    steps: Steps, store: LocalStore, width: int
) -> None:
    with refused("TOP_LOGPROBS_OVERFLOW", requested=width, limit=128) as early:
        steps.reserve(7, widths=pb.Widths(top_logprobs=width))
    assert store.listing() == []
    token = steps.reserve(7).token
    with refused("TOP_LOGPROBS_OVERFLOW", requested=width, limit=128) as late:
        steps.put(7, token, records.with_top(width))
    assert late.error.message.startswith(early.error.message.partition(";")[0])


def test_case_04_three_tokens_with_20_0_and_no_top_logprobs(shared: Steps, room: int) -> None:
    sent = record(
        Token(token_id=10, logprob=-0.5, top_logprobs=logprobs(20, 100)),
        Token(token_id=11, logprob=0.0, top_logprobs=logprobs(0)),
        Token(token_id=12),
    )
    got = shared.exchange(room, sent)
    assert got == sent
    assert [token.HasField("top_logprobs") for token in got.tokens] == [True, True, False]
    assert [token.HasField("logprob") for token in got.tokens] == [True, True, False]
    assert list(got.tokens[0].top_logprobs.token_ids) == list(range(100, 120))


def test_case_04_ragged_rows_keep_order_and_pairing(shared: Steps, room: int) -> None:
    rng = random.Random(4)
    tokens = []
    for index, (top, listed) in enumerate(itertools.product([None, 0, 128], [None, 0, 37])):
        token = Token(token_id=index)
        for name, width in (("top_logprobs", top), ("token_ids_logprobs", listed)):
            if width is not None:
                ids = rng.sample(range(1 << 31), width)
                values = [rng.uniform(-30, 0) for _ in ids]
                getattr(token, name).CopyFrom(rp.Logprobs(values=values, token_ids=ids))
        tokens.append(token)
    for chosen in (tokens[:8], tokens[1:], tokens[::-1][:8]):
        sent = record(*chosen)
        number = room * 100 + tokens.index(chosen[0])
        shared.put_once(number, sent)
        assert shared.record(number, reader="decode").SerializeToString() == sent.SerializeToString()


def test_case_04_a_batch_with_0_1_20_and_128(unary: Steps) -> None:
    sent = [record(), *(records.with_top(width) for width in (0, 1, 20, 128))]
    reserved: pb.BatchReserveResponse = unary.caller.call(
        "BatchReserve", pb.BatchReserveRequest(requests=[requests.reserve(room) for room in range(5)])
    )
    puts = [requests.put(room, reserved.responses[room].token, sent[room]) for room in range(5)]
    unary.caller.call("BatchPut", pb.BatchPutRequest(requests=puts))
    gets = [requests.get(room, reader="decode") for room in (3, 1, 4, 0, 2)]
    got: pb.BatchGetResponse = unary.caller.call("BatchGet", pb.BatchGetRequest(requests=gets))
    assert [result.response.record for result in got.results] == [sent[room] for room in (3, 1, 4, 0, 2)]


@pytest.mark.parametrize(("values", "ids"), [(3, 5), (0, 129), (5, 3), (1, 0), (129, 128)])
def test_case_05_unequal_lengths_are_never_padded(shared: Steps, room: int, values: int, ids: int) -> None:
    unequal = rp.Logprobs(values=[-1.0] * values, token_ids=range(ids))
    token = shared.reserve(room).token
    for name in ("top_logprobs", "token_ids_logprobs"):
        with refused("INVALID_RECORD") as caught:
            shared.put(room, token, record(Token(token_id=1, **{name: unequal})))
        (description,) = caught.error.violations.values()
        assert str(values) in description
        assert str(ids) in description
    with refused("RECORD_NOT_READY"):
        shared.get(room)


@pytest.mark.parametrize("size", [0, 1, CAP - 1, CAP])
def test_case_13_customized_info_up_to_the_cap(shared: Steps, room: int, size: int) -> None:
    sent = record(customized_info=bytes(index % 256 for index in range(size)))
    got = shared.exchange(room, sent)
    assert got.customized_info == sent.customized_info
    assert got.HasField("customized_info")


def test_case_13_absent_and_empty_are_two_things(shared: Steps, room: int) -> None:
    assert not shared.exchange(room, record()).HasField("customized_info")


def test_case_13_one_byte_over_the_cap_is_refused_alone(unary: Steps, store: LocalStore) -> None:
    sizes = [CAP, CAP + 1, 1]
    tokens = [unary.reserve(room).token for room in range(3)]
    puts = [requests.put(room, tokens[room], record(customized_info=b"\xff" * size)) for room, size in enumerate(sizes)]
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=puts))
    assert [result.WhichOneof("result") for result in answer.results] == ["response", "error", "response"]
    unary.put(1, tokens[1], record(customized_info=b"short"))
    assert [len(unary.record(room).customized_info) for room in range(3)] == [CAP, 5, 1]
    assert store.sight(1).widths.customized_info_bytes == 5


@pytest.mark.settings(slots=1)
def test_case_13_no_tail_of_the_longer_one(steps: Steps) -> None:
    for size in (CAP, 10, 0, CAP - 1, 1):
        sent = record(customized_info=bytes([size % 251 + 1]) * size)
        assert steps.exchange(size, sent).customized_info == sent.customized_info
    assert not steps.exchange(9, record()).HasField("customized_info")


@pytest.mark.settings(slots=1)
def test_no_part_of_a_former_record_comes_back(steps: Steps) -> None:
    shorter = [record(), record(cached_tokens=rp.CachedTokens()), records.with_top(1), record(Token())]
    for number, sent in enumerate(shorter):
        steps.exchange(100 + number, records.full(1 << 20))
        got = steps.exchange(number, sent)
        assert got.SerializeToString() == sent.SerializeToString()


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("size", [0, 1, MASK])
def test_case_14_sampling_mask_up_to_its_cap(shared: Steps, room: int, size: int, truncated: bool) -> None:
    sent = record(
        sampling_mask=rp.SamplingMask(
            token_ids=range(size, 0, -1), logprobs=[-index / 3 for index in range(size)], truncated=truncated
        )
    )
    got = shared.exchange(room, sent)
    assert got == sent
    assert got.HasField("sampling_mask")
    assert got.sampling_mask.truncated is truncated


@pytest.mark.parametrize("truncated", [False, True])
def test_case_14_a_mask_over_its_cap_is_refused_whole(shared: Steps, room: int, truncated: bool) -> None:
    mask = rp.SamplingMask(token_ids=range(MASK + 1), logprobs=[-1.0] * (MASK + 1), truncated=truncated)
    with refused("FIELD_OVERFLOW", field="sampling_mask_tokens", requested=MASK + 1, limit=MASK):
        shared.put_once(room, record(sampling_mask=mask))
    with refused("HANDOFF_NOT_FOUND"):
        shared.get(room)


def test_case_14_a_mask_may_have_no_logprobs(shared: Steps, room: int) -> None:
    sent = record(sampling_mask=rp.SamplingMask(token_ids=[5, 6], truncated=True))
    assert shared.exchange(room, sent) == sent


COUNTS = [0, 1, 1000, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize(
    "counts",
    [
        {"total": 1000, "device": 600, "host": 300, "storage": 100},
        {"total": 1000},
        {"device": 600, "storage": 0},
        {"total": 0},
        {},
        {"total": 1, "device": 600, "host": 300, "storage": 100},  # never added up
        *({"total": count, "storage": count} for count in COUNTS),
    ],
    ids=str,
)
def test_case_15_cached_tokens_are_kept_and_never_summed(shared: Steps, room: int, counts: dict[str, int]) -> None:
    got = shared.exchange(room, record(cached_tokens=rp.CachedTokens(**counts)))
    assert got.HasField("cached_tokens")
    assert {field.name: value for field, value in got.cached_tokens.ListFields()} == counts
    for name in ("total", "device", "host", "storage"):
        assert got.cached_tokens.HasField(name) == (name in counts)


def test_case_15_no_cached_tokens_at_all(shared: Steps, room: int) -> None:
    got = shared.exchange(room, record())
    assert not got.HasField("cached_tokens")
    assert not got.HasField("modality_tokens")


@pytest.mark.parametrize("count", COUNTS)
def test_case_15_modality_tokens_alike(shared: Steps, room: int, count: int) -> None:
    sent = record(modality_tokens=rp.ModalityTokens(image=count, video=0))
    got = shared.exchange(room, sent)
    assert got == sent
    assert not got.modality_tokens.HasField("audio")


@pytest.mark.parametrize("reason", ["STOP", "LENGTH", "ABORT"])
def test_case_16_first_token_is_the_end(shared: Steps, room: int, reason: str) -> None:
    number = rp.FinishReason.Value("FINISH_REASON_" + reason)
    got = shared.exchange(room, record(Token(token_id=2, logprob=-0.0), finish_reason=number))
    assert got.finish_reason == number
    assert len(got.tokens) == 1


def test_case_16_no_finish_reason_means_go_on(shared: Steps, room: int) -> None:
    assert not shared.exchange(room, record()).HasField("finish_reason")


@pytest.mark.parametrize("tokens", [0, 1, (1 << 32) - 1])
def test_reasoning_tokens_absent_and_zero_are_two_things(shared: Steps, room: int, tokens: int) -> None:
    assert shared.exchange(room, record(reasoning_tokens=tokens)).HasField("reasoning_tokens")
    shared.put_once(-room % (1 << 64))
    assert not shared.record(-room % (1 << 64), reader="decode").HasField("reasoning_tokens")


SIZES = {
    rp.DATA_TYPE_FLOAT32: 4,
    rp.DATA_TYPE_FLOAT16: 2,
    rp.DATA_TYPE_BFLOAT16: 2,
    rp.DATA_TYPE_FLOAT8_E4M3: 1,
    rp.DATA_TYPE_FLOAT8_E5M2: 1,
}


def test_case_17_hidden_states_of_3_by_4096_bf16(shared: Steps, room: int) -> None:
    data = random.Random(17).randbytes(3 * 4096 * 2)
    hidden = shared.exchange(room, with_hidden(rp.DATA_TYPE_BFLOAT16, [3, 4096], data)).speculative.hidden_states
    assert (hidden.dtype, list(hidden.shape), hidden.data) == (rp.DATA_TYPE_BFLOAT16, [3, 4096], data)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("shape", [[], [1], [0], [7], [2, 3], [3, 0, 5], [1] * 8, [2, 1, 2, 1, 2, 1, 2, 1]], ids=str)
def test_case_17_exact_dtype_and_shape(shared: Steps, room: int, dtype: int, shape: list[int]) -> None:
    elements = 1
    for dimension in shape:
        elements *= dimension
    sent = with_hidden(dtype, shape, random.Random(elements).randbytes(elements * SIZES[dtype]))  # type: ignore[index]
    assert shared.exchange(room, sent).SerializeToString() == sent.SerializeToString()


@pytest.mark.parametrize("dtype", SIZES)
def test_case_17_hidden_states_at_the_row_and_over(shared: Steps, room: int, dtype: int) -> None:
    size = SIZES[dtype]  # type: ignore[index]
    fits = with_hidden(dtype, [ROW // size], bytes(range(256)) * (ROW // 256))
    assert shared.exchange(room, fits) == fits
    with refused("FIELD_OVERFLOW", field="hidden_state_bytes", requested=ROW + size, limit=ROW):
        shared.put_once(-room % (1 << 64), with_hidden(dtype, [ROW // size + 1], bytes(ROW + size)))


@pytest.mark.parametrize("length", [0, 1, 4 * 4096 - 1, 4 * 4096 + 1, 2 * 4096, 8 * 4096])
def test_case_17_fp32_of_a_length_that_does_not_fit_its_shape(shared: Steps, room: int, length: int) -> None:
    with refused("INVALID_RECORD") as caught:
        shared.put_once(room, with_hidden(rp.DATA_TYPE_FLOAT32, [4096], bytes(length)))
    assert list(caught.error.violations) == ["record.speculative.hidden_states.data"]


def test_case_17_no_hidden_states_and_empty_ones_are_two_things(shared: Steps, room: int) -> None:
    got = shared.exchange(room, record(speculative=rp.SpeculativeState(topk_p=[1.0], topk_index=[3])))
    assert got.HasField("speculative")
    assert not got.speculative.HasField("hidden_states")
