"""Records on their way in: form before widths, every violation named, and nothing changed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.layout import WIDTHS, Layout, Limits
from pd_handoff_server.arena.packed_record import PRESENCE, check_widths, measure
from pd_handoff_server.refusal import Refusal

from tests.support import records as make
from tests.support.records import Token

from .strategies import SMALL, TRACE, field, largest, records

LAYOUT = Layout(SMALL)


def refusal(record: rp.HandoffRecord, layout: Layout = LAYOUT) -> Refusal:
    """What it is refused with."""
    with pytest.raises(Refusal) as caught:
        measure(record, layout)
    return caught.value


def violated(record: rp.HandoffRecord) -> list[str]:
    """Which fields are malformed."""
    refused = refusal(record)
    assert refused.reason == "INVALID_RECORD"
    assert refused.retry_after is None
    return [name for name, _ in refused.violations]


def violated_in(record: rp.HandoffRecord, layout: Layout) -> list[str]:
    """As `violated`, in a row of this layout."""
    return [name for name, _ in refusal(record, layout).violations]


@settings(deadline=None)
@given(records())
def test_a_legal_record_is_packed_bit_for_bit(record: rp.HandoffRecord) -> None:
    before = record.SerializeToString()
    draft = measure(record, LAYOUT)
    assert draft.image == before
    assert rp.HandoffRecord.FromString(draft.image) == rp.HandoffRecord.FromString(before)
    for name, bit in PRESENCE.items():
        assert bool(draft.presence & bit) == record.HasField(name)  # type: ignore[arg-type]
    assert len(draft.widths) == len(WIDTHS)
    assert draft.widths[0] == len(record.tokens)
    assert draft.widths[1] == max(len(token.top_logprobs.token_ids) for token in record.tokens)
    assert draft.widths[6] == len(record.customized_info)
    assert draft.widths[7] == len(record.speculative.hidden_states.data)


@settings(deadline=None)
@given(records(), records())
def test_digests_tell_records_apart(one: rp.HandoffRecord, other: rp.HandoffRecord) -> None:
    first, second = measure(one, LAYOUT), measure(other, LAYOUT)
    assert (first.digest() == second.digest()) == (first.image == second.image)


# -- widths ------------------------------------------------------------------------------------------------------------


def _grown(name: str, by: int) -> rp.HandoffRecord:
    """The largest record of SMALL, with one part wider."""
    limits = SMALL
    grown = Limits(**{each: getattr(limits, each) + (by if each == name else 0) for each in WIDTHS})
    return largest(grown)


@pytest.mark.parametrize("name", [name for name in WIDTHS if name != "attachment_bytes"])
def test_each_width_is_enforced_at_limit_and_limit_plus_1(name: str) -> None:
    limit = getattr(SMALL, name)
    assert measure(_grown(name, 0), LAYOUT).widths == LAYOUT.widths
    refused = refusal(_grown(name, 1))
    assert refused.metadata["requested"] == str(limit + 1)
    assert refused.metadata["limit"] == str(limit)
    assert "exceeds disaggregation metadata capacity" in refused.message
    assert str(limit + 1) in refused.message
    assert refused.retry_after is None
    if name == "top_logprobs":
        assert refused.reason == "TOP_LOGPROBS_OVERFLOW"
        assert refused.metadata["token_index"] == "0"
        assert "field" not in refused.metadata
    else:
        assert refused.reason == "FIELD_OVERFLOW"
        assert refused.metadata["field"] == name


def test_the_token_that_is_too_wide_is_named() -> None:
    record = make.record(Token(top_logprobs=make.logprobs(4)), Token(top_logprobs=make.logprobs(9)), Token())
    assert refusal(record).metadata == {"requested": "9", "limit": "5", "token_index": "1"}


def test_top_logprobs_are_named_before_other_widths() -> None:
    record = make.record(*[Token(top_logprobs=make.logprobs(6))] * 4, customized_info=bytes(1000))
    assert refusal(record).reason == "TOP_LOGPROBS_OVERFLOW"


def test_declared_widths_are_refused_alike_without_a_token_index() -> None:
    check_widths(LAYOUT.widths, LAYOUT)
    check_widths((0,) * len(WIDTHS), LAYOUT)
    for index, name in enumerate(WIDTHS):
        widths = tuple(limit + (at == index) for at, limit in enumerate(LAYOUT.widths))
        with pytest.raises(Refusal) as caught:
            check_widths(widths, LAYOUT)
        expected = {"requested": str(LAYOUT.widths[index] + 1), "limit": str(LAYOUT.widths[index])}
        if name == "top_logprobs":
            assert caught.value.reason == "TOP_LOGPROBS_OVERFLOW"
        else:
            assert caught.value.reason == "FIELD_OVERFLOW"
            expected["field"] = name
        assert caught.value.metadata == expected


def test_form_comes_before_widths() -> None:
    record = make.record(Token(token_id=-1, top_logprobs=make.logprobs(100)), customized_info=bytes(1000))
    assert violated(record) == ["record.tokens[0].token_id"]


@pytest.mark.parametrize("part", ["top_logprobs", "token_ids_logprobs"])
def test_a_part_that_is_switched_off_may_still_be_present_and_empty(part: str) -> None:
    layout = Layout(Limits(1, 0, 0, 0, 0, 0, 0, 0))
    token = Token(token_id=1)
    getattr(token, part).SetInParent()
    record = make.record(token, sampling_mask=rp.SamplingMask(truncated=True), customized_info=b"")
    record.speculative.SetInParent()
    assert measure(record, layout).image == record.SerializeToString()


# -- form --------------------------------------------------------------------------------------------------------------


def _uneven(values: int, ids: int) -> rp.Logprobs:
    return rp.Logprobs(values=[-1.0] * values, token_ids=range(ids))


def _ranked(ids: int, ranks: list[int]) -> rp.Logprobs:
    return rp.Logprobs(values=[-1.0] * ids, token_ids=range(ids), ranks=ranks)


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (rp.HandoffRecord(), ["record.tokens"]),
        (make.record(Token(top_logprobs=_uneven(3, 5))), ["record.tokens[0].top_logprobs"]),
        (make.record(Token(), Token(token_ids_logprobs=_uneven(0, 129))), ["record.tokens[1].token_ids_logprobs"]),
        (make.record(sampling_mask=rp.SamplingMask(token_ids=[1, 2], logprobs=[-1.0])), ["record.sampling_mask"]),
        (make.record(sampling_mask=rp.SamplingMask(logprobs=[-1.0])), ["record.sampling_mask"]),
        (make.record(speculative=rp.SpeculativeState(topk_p=[0.5])), ["record.speculative.topk_p"]),
        (make.record(speculative=rp.SpeculativeState(topk_index=[1, 2])), ["record.speculative.topk_p"]),
        (rp.HandoffRecord(tokens=[rp.SampledToken()]), ["record.tokens[0].token_id"]),
        (rp.HandoffRecord(tokens=[Token(), rp.SampledToken(logprob=-1.0)]), ["record.tokens[1].token_id"]),
        (make.record(Token(rank=0)), ["record.tokens[0].rank"]),
        (make.record(Token(top_logprobs=_ranked(3, [1, 2]))), ["record.tokens[0].top_logprobs.ranks"]),
        (make.record(Token(top_logprobs=_ranked(0, [1]))), ["record.tokens[0].top_logprobs.ranks"]),
        (make.record(Token(token_ids_logprobs=_ranked(2, [1, 0]))), ["record.tokens[0].token_ids_logprobs.ranks"]),
        (make.record(engine_state=rp.EngineState(data=b"x")), ["record.engine_state.type"]),
        (make.record(engine_state=rp.EngineState(type="t" * 65)), ["record.engine_state.type"]),
        (make.record(engine_state=rp.EngineState(type="a b")), ["record.engine_state.type"]),
        (make.record(engine_state=rp.EngineState(type="\u00e9")), ["record.engine_state.type"]),
        (rp.HandoffRecord(engine_state=rp.EngineState()), ["record.engine_state.type"]),
        (make.record(traceparent=""), ["record.traceparent"]),
        (make.record(traceparent=TRACE[:-1]), ["record.traceparent"]),
        (make.record(traceparent=TRACE.upper()), ["record.traceparent"]),
        (make.record(traceparent=f"{TRACE}-".ljust(65, "x")), ["record.traceparent"]),
        (rp.HandoffRecord(prompt_tokens=1, traceparent=TRACE), ["record.tokens"]),
        (make.record(finish_reason=0), ["record.finish_reason"]),
        (make.record(finish_reason=77), ["record.finish_reason"]),
    ],
)
def test_malformed_records(record: rp.HandoffRecord, fields: Sequence[str]) -> None:
    assert violated(record) == fields


def test_every_violation_is_listed() -> None:
    record = make.record(
        Token(token_id=-1, top_logprobs=_uneven(1, 2)),
        sampling_mask=rp.SamplingMask(token_ids=[-5]),
        finish_reason=9,
    )
    assert sorted(violated(record)) == [
        "record.finish_reason",
        "record.sampling_mask.token_ids",
        "record.tokens[0].token_id",
        "record.tokens[0].top_logprobs",
    ]


NEGATIVES = [-1, -2, -(2**31), -(2**31) + 1, -128, -129, -(2**20)]


@pytest.mark.parametrize("token_id", NEGATIVES)
@pytest.mark.parametrize(
    "where",
    [
        "tokens[0].token_id",
        "tokens[1].top_logprobs.token_ids",
        "tokens[1].token_ids_logprobs.token_ids",
        "sampling_mask.token_ids",
        "speculative.draft_token_ids",
    ],
)
def test_negative_ids_are_found_wherever_they_are(where: str, token_id: int) -> None:
    ids = rp.Logprobs(values=[-1.0, -2.0], token_ids=[3, token_id])
    record = make.record(
        Token(token_id=token_id if where == "tokens[0].token_id" else 1),
        Token(
            top_logprobs=ids if "top_logprobs" in where else None,
            token_ids_logprobs=ids if "token_ids_logprobs" in where else None,
        ),
        sampling_mask=rp.SamplingMask(token_ids=[token_id]) if "mask" in where else None,
        engine_state=rp.EngineState(type="x", data=b"\xff" * 12),
    )
    if "draft" in where:
        hidden = make.tensor(rp.DATA_TYPE_UINT8, [24], bytes(24))
        record.speculative.CopyFrom(rp.SpeculativeState(hidden_states=hidden, draft_token_ids=[1, token_id]))
    assert violated(record) == [f"record.{where}"]


@settings(deadline=None)
@given(records(), st.integers(-(2**31), -1), st.data())
def test_a_negative_id_among_whatever_else_is_found(
    record: rp.HandoffRecord, token_id: int, data: st.DataObject
) -> None:
    """Hidden states and the like may be beside it, whose bytes can look like anything."""
    lists = [("sampling_mask.token_ids", record.sampling_mask.token_ids)]
    for index, token in enumerate(record.tokens):
        lists.append((f"tokens[{index}].top_logprobs.token_ids", token.top_logprobs.token_ids))
        lists.append((f"tokens[{index}].token_ids_logprobs.token_ids", token.token_ids_logprobs.token_ids))
    lists.append(("speculative.draft_token_ids", record.speculative.draft_token_ids))
    full = [(name, ids) for name, ids in lists if ids]
    name, ids = data.draw(st.sampled_from([*full, ("tokens[0].token_id", None)]))
    if ids is None:
        record.tokens[0].token_id = token_id
    else:
        ids[data.draw(st.integers(0, len(ids) - 1))] = token_id
    assert violated(record) == [f"record.{name}"]


@settings(deadline=None)
@given(st.integers(-(2**31), -1))
def test_any_negative_id_is_found(token_id: int) -> None:
    assert violated(make.record(Token(token_id=token_id))) == ["record.tokens[0].token_id"]


@pytest.mark.parametrize("token_id", [536870911, 2**31 - 1, 0, 268435455])
def test_ids_that_end_like_a_negative_one_on_the_wire_are_legal(token_id: int) -> None:
    ids = rp.Logprobs(values=[-1.0], token_ids=[token_id])
    record = make.record(Token(token_id=token_id, top_logprobs=ids, token_ids_logprobs=ids))
    record.sampling_mask.token_ids.append(token_id)
    record.customized_info = b"\xff\xff\xff\xff\x01"
    assert measure(record, LAYOUT).image == record.SerializeToString()


def test_negative_indices_of_the_speculative_part_are_values() -> None:
    state = rp.SpeculativeState(topk_p=[0.5], topk_index=[-1], dsa_topk_indices=[-1, -(2**31)])
    assert measure(make.record(speculative=state), LAYOUT)


def test_an_engine_state_needs_no_token() -> None:
    record = rp.HandoffRecord(engine_state=rp.EngineState(type="vllm/NixlConnector;v=1", data=bytes(12)))
    draft = measure(record, LAYOUT)
    assert (draft.widths[0], draft.widths[8]) == (0, 12)
    refused = refusal(record, Layout(Limits()))  # switched off
    assert (refused.reason, refused.metadata["field"]) == ("FIELD_OVERFLOW", "engine_state_bytes")


def test_parts_of_engines_share_the_room_of_others_where_there_is_no_engine_state() -> None:
    layout = Layout(Limits())
    ranked = _ranked(128, [200_000] * 128)
    tokens = [Token(token_id=150_000, rank=7, top_logprobs=ranked, token_ids_logprobs=ranked)] * 8
    state = rp.SpeculativeState(draft_token_ids=[150_000] * 16)
    record = make.record(*tokens, speculative=state, prompt_tokens=100_000, traceparent=TRACE)
    assert measure(record, layout).image == record.SerializeToString()
    record = largest(Limits())
    assert measure(record, layout)
    for token in record.tokens:
        token.top_logprobs.ranks.extend([1] * 128)
    assert violated_in(record, layout) == ["record"]


def test_a_sampling_mask_needs_no_logprobs() -> None:
    for size in range(SMALL.sampling_mask_tokens + 1):
        assert measure(make.record(sampling_mask=rp.SamplingMask(token_ids=range(size))), LAYOUT).widths[3] == size


# -- tensors -----------------------------------------------------------------------------------------------------------

HIDDEN = "record.speculative.hidden_states"


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        (rp.DATA_TYPE_FLOAT32, [2, 3], 24),
        (rp.DATA_TYPE_FLOAT16, [3], 6),
        (rp.DATA_TYPE_BFLOAT16, [], 2),
        (rp.DATA_TYPE_FLOAT8_E4M3, [1] * 8, 1),
        (rp.DATA_TYPE_FLOAT8_E5M2, [4, 0, 2**32 - 1], 0),
        (rp.DATA_TYPE_FLOAT32, [0], 0),
    ],
)
def test_tensors_that_agree(dtype: int, shape: list[int], size: int) -> None:
    record = make.with_hidden(dtype, shape, bytes(range(size)))
    assert measure(record, LAYOUT).widths[7] == size


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "part"),
    [
        (rp.DATA_TYPE_UNSPECIFIED, [1], 4, "dtype"),
        (99, [1], 4, "dtype"),
        (rp.DATA_TYPE_FLOAT32, [2, 3], 23, "data"),
        (rp.DATA_TYPE_FLOAT32, [2, 3], 25, "data"),
        (rp.DATA_TYPE_FLOAT32, [6], 12, "data"),
        (rp.DATA_TYPE_BFLOAT16, [], 0, "data"),
        (rp.DATA_TYPE_FLOAT32, [0], 4, "data"),
        (rp.DATA_TYPE_FLOAT32, [2**32 - 1] * 8, 4, "data"),
        (rp.DATA_TYPE_FLOAT32, [65536, 65536, 65536, 65536], 0, "data"),
        (rp.DATA_TYPE_FLOAT8_E4M3, [1] * 9, 1, "shape"),
    ],
)
def test_tensors_that_do_not(dtype: int, shape: list[int], size: int, part: str) -> None:
    assert violated(make.with_hidden(dtype, shape, bytes(size))) == [f"{HIDDEN}.{part}"]


# -- fields of a newer schema ------------------------------------------------------------------------------------------


def _with_unknown(size: int) -> rp.HandoffRecord:
    record = make.record()
    record.MergeFromString(b"\xa2\x06" + field(0, bytes(size))[1:])  # field 100, length-delimited
    return record


def test_unknown_fields_are_kept_while_they_fit() -> None:
    known = make.record().ByteSize()
    frame = _with_unknown(0).ByteSize() - known + 1
    largest_that_fits = LAYOUT.image_bytes - known - frame
    record = _with_unknown(largest_that_fits)
    assert record.ByteSize() == LAYOUT.image_bytes
    assert measure(record, LAYOUT).image == record.SerializeToString()
    refused = refusal(_with_unknown(largest_that_fits + 1))
    assert refused.reason == "INVALID_RECORD"
    assert [name for name, _ in refused.violations] == ["record"]


def test_refusals_show_no_contents() -> None:
    secret = b"s3cret"
    record = make.record(Token(token_id=-424242), customized_info=secret * 100)
    refused = refusal(record)
    assert "424242" not in refused.message
    assert "s3cret" not in refused.message + str(refused.metadata)
