"""What engines hand over comes back as it was, or is refused by the name that the engine gives it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pd_handoff import EngineState, InvalidRecord, Logprobs, Record, SpeculativeState, Token
from pd_handoff.engines import dynamo, lmdeploy, openengine, payload, tensorrt_llm
from pd_handoff.v1 import record_pb2 as pb

from tests.support import engine_samples as samples

TRTLLM, LMDEPLOY = samples.TRTLLM["full"], samples.LMDEPLOY["rdma"]
DYNAMO = samples.DYNAMO["vllm"][1]


def sent(record: Record) -> Record:
    """As it comes from the wire."""
    return Record.from_proto(pb.HandoffRecord.FromString(record.to_proto().SerializeToString()))


def refused_field(make: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InvalidRecord) as caught:
        make(*arguments, **options)
    assert str(caught.value).startswith(f"{caught.value.violations[0].field}: ")
    return caught.value.violations[0].field


def changed(sample: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**sample, **fields}


def without(sample: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in sample.items() if field != name}


# -- TensorRT-LLM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samples.TRTLLM)
def test_tensorrt_llm_round_trip(name: str) -> None:
    given = samples.TRTLLM[name]
    kept = copy.deepcopy(given)
    assert tensorrt_llm.params_of(sent(tensorrt_llm.record_of(given))) == given
    assert given == kept  # record_of changes nothing of the caller's


def test_tensorrt_llm_fills_the_typed_parts() -> None:
    record = tensorrt_llm.record_of(TRTLLM)
    candidates = Logprobs([-0.25, -1.5, -17.75], [9707, 0, 151643], [1, 2, 151936])
    assert record.tokens == [Token(9707, -0.25, candidates, rank=1)]
    assert record.speculative == SpeculativeState(draft_token_ids=[11, 0, 358])
    assert record.prompt_tokens == 279
    assert record.cached_tokens is not None
    assert record.cached_tokens.total == 256
    assert record.engine_state is not None
    for name in (b"first_gen_tokens", b"first_gen_log_probs", b"draft_tokens", b"cached_tokens", b'"prompt_tokens"'):
        assert name not in record.engine_state.data


def test_tensorrt_llm_none_and_empty_are_two_things() -> None:
    for tokens, drafts in ((None, None), ([], [])):
        given: dict[str, Any] = {"first_gen_tokens": tokens, "draft_tokens": drafts}
        assert tensorrt_llm.params_of(sent(tensorrt_llm.record_of(given))) == given


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"first_gen_tokens": [1, 2]}, "first_gen_tokens"),
        ({"first_gen_tokens": [-1]}, "first_gen_tokens[0]"),
        ({"first_gen_tokens": [1 << 31]}, "first_gen_tokens[0]"),
        ({"first_gen_tokens": [True]}, "first_gen_tokens[0]"),
        ({"first_gen_tokens": "12"}, "first_gen_tokens"),
        ({"first_gen_tokens": None}, "first_gen_log_probs"),
        ({"first_gen_log_probs": [-0.5, -0.5]}, "first_gen_log_probs"),
        ({"first_gen_log_probs": {"1": -0.5}}, "first_gen_log_probs"),
        ({"first_gen_log_probs": ["-0.5"]}, "first_gen_log_probs[0]"),
        ({"first_gen_log_probs": [1e300]}, "first_gen_log_probs[0]"),
        ({"first_gen_log_probs": [[{"token_id": 1}]]}, "first_gen_log_probs[0][0].logprob"),
        ({"first_gen_log_probs": [[{"logprob": -1}]]}, "first_gen_log_probs[0][0].token_id"),
        ({"first_gen_log_probs": [[{"token_id": 1, "logprob": -1, "rank": 0}]]}, "first_gen_log_probs[0][0].rank"),
        ({"first_gen_log_probs": [[{"token_id": 1, "logprob": -1, "text": "a"}]]}, "first_gen_log_probs[0][0].text"),
        (
            {
                "first_gen_log_probs": [
                    [{"token_id": 1, "logprob": -1, "rank": 1}, {"token_id": 2, "logprob": -2, "rank": None}]
                ]
            },
            "first_gen_log_probs[0]",
        ),
        ({"first_gen_logits": [{"data": "", "shape": [0], "dtype": "float16"}]}, "first_gen_logits"),
        ({"multimodal_embedding_handles": [{}]}, "multimodal_embedding_handles"),
        ({"mrope_position_ids_handle": {}}, "mrope_position_ids_handle"),
        ({"mrope_position_deltas_handle": {}}, "mrope_position_deltas_handle"),
        ({"request_type": "prefill"}, "request_type"),
        ({"draft_tokens": [3, 1.0]}, "draft_tokens[1]"),
        ({"ctx_usage": 3}, "ctx_usage"),
        ({"ctx_usage": {"prompt_tokens": -1}}, "ctx_usage.prompt_tokens"),
        ({"ctx_usage": {"prompt_tokens_details": 1}}, "ctx_usage.prompt_tokens_details"),
        (
            {"ctx_usage": {"prompt_tokens_details": {"cached_tokens": 1 << 64}}},
            "ctx_usage.prompt_tokens_details.cached_tokens",
        ),
        ({"opaque_state": b"bytes"}, "opaque_state"),
        ({"ctx_request_id": 1 << 64}, "ctx_request_id"),
    ],
    ids=str,
)
def test_tensorrt_llm_refuses_by_name(fields: dict[str, Any], named: str) -> None:
    assert refused_field(tensorrt_llm.record_of, changed(TRTLLM, **fields)) == named


def test_tensorrt_llm_hands_over_one_token() -> None:
    record = tensorrt_llm.record_of(TRTLLM)
    record.tokens = [Token(1), Token(2)]
    with pytest.raises(payload.UnusableHandoff, match="2 tokens"):
        tensorrt_llm.params_of(record)


# -- Dynamo ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samples.DYNAMO)
def test_dynamo_round_trip(name: str) -> None:
    engine, given, link = samples.DYNAMO[name]
    kept = copy.deepcopy(given)
    record = sent(dynamo.record_of(engine, given, migration_link=link))
    assert dynamo.prefill_result_of(engine, record) == given == kept
    assert dynamo.migration_link_of(record) == link


def test_dynamo_fills_the_typed_parts() -> None:
    link = samples.DYNAMO["vllm"][2]
    record = dynamo.record_of("vllm", DYNAMO, migration_link=link)
    assert record.cached_tokens is not None
    assert record.cached_tokens.total == 256
    assert record.modality_tokens is None
    assert record.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with_audio = dynamo.record_of(*samples.DYNAMO["sglang"][:2])
    assert with_audio.modality_tokens is not None
    assert with_audio.modality_tokens.audio == 17


def test_dynamo_names_the_engine() -> None:
    with pytest.raises(payload.UnusableHandoff, match="dynamo/vllm;v=1, not for dynamo/trtllm;v=1"):
        dynamo.prefill_result_of("trtllm", dynamo.record_of("vllm", DYNAMO))


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ({"prompt_tokens_details": None}, "disaggregated_params"),
        ({"disaggregated_params": {"a": [1, {2}]}}, "disaggregated_params.a[1]"),
        ({"disaggregated_params": {"a": {1: "x"}}}, "disaggregated_params.a"),
        ({"disaggregated_params": float("nan")}, "disaggregated_params"),
        ({"disaggregated_params": 1 << 64}, "disaggregated_params"),
        ({"disaggregated_params": 1, "prompt_tokens_details": 4}, "prompt_tokens_details"),
        (
            {"disaggregated_params": 1, "prompt_tokens_details": {"cached_tokens": -1}},
            "prompt_tokens_details.cached_tokens",
        ),
        (
            {"disaggregated_params": 1, "prompt_tokens_details": {"audio_tokens": 1.5}},
            "prompt_tokens_details.audio_tokens",
        ),
    ],
    ids=str,
)
def test_dynamo_refuses_by_name(result: dict[str, Any], named: str) -> None:
    assert refused_field(dynamo.record_of, "vllm", result) == named


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ({"span_id": "00f067aa0ba902b7"}, "trace_id"),
        ({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}, "span_id"),
        ({"trace_id": "4BF92F3577B34DA6A3CE929D0E0E4736", "span_id": "00f067aa0ba902b7"}, "trace_id"),
        ({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "0" * 16}, "span_id"),
        ({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "state": "a=b"}, "state"),
    ],
    ids=str,
)
def test_dynamo_refuses_a_link_by_name(link: dict[str, str], named: str) -> None:
    assert refused_field(dynamo.record_of, "vllm", DYNAMO, migration_link=link) == f"migration_link.{named}"


def test_dynamo_reads_no_trace_of_another_version() -> None:
    record = dynamo.record_of("vllm", DYNAMO)
    record.traceparent = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with pytest.raises(payload.UnusableHandoff, match="traceparent"):
        dynamo.migration_link_of(record)


# -- OpenEngine --------------------------------------------------------------------------------------------------------


def test_openengine_round_trip() -> None:
    given = samples.session(exact=2.0**53, beyond="9007199254740993", fraction=0.1, off=False, nothing=None, tp=[1, 2])
    record = sent(openengine.record_of(given, prompt_tokens=279, cached_tokens=0))
    assert openengine.session_of(samples.KvSessionRef, record) == given
    assert record.prompt_tokens == 279
    assert record.cached_tokens is not None
    assert record.cached_tokens.total == 0


def test_openengine_keeps_a_field_of_a_later_version() -> None:
    given = samples.KvSessionRef.FromString(samples.session().SerializeToString() + b"\xf8\x07\x2a")  # field 127
    record = sent(openengine.record_of(given))
    assert openengine.session_of(samples.KvSessionRef, record).SerializeToString().count(b"\xf8\x07\x2a") == 1
    assert (record.prompt_tokens, record.cached_tokens) == (None, None)


def test_openengine_sends_equal_sessions_as_equal_bytes() -> None:
    one, other = samples.session(), samples.KvSessionRef()
    other.CopyFrom(one)
    other.attributes_struct.Clear()
    for name in reversed(list(one.attributes_struct.fields)):
        other.attributes_struct.fields[name].CopyFrom(one.attributes_struct.fields[name])
    assert openengine.record_of(one) == openengine.record_of(other)


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"remote_port": 2.0**53 + 2}, "remote_port"),
        ({"ids": [1, [2, -(2.0**60)]]}, "ids[1][1]"),
        ({"kv": {"engine": 2.0**64}}, "kv.engine"),
    ],
    ids=str,
)
def test_openengine_refuses_a_rounded_integer_by_name(attributes: dict[str, Any], named: str) -> None:
    found = refused_field(openengine.record_of, samples.session(**attributes))
    assert found == f"kv_session.attributes_struct.{named}"


def test_openengine_refuses_other_messages() -> None:
    assert refused_field(openengine.record_of, samples.KvEndpoint()) == "kv_session"
    assert refused_field(openengine.record_of, {"session_id": "1"}) == "kv_session"
    assert refused_field(openengine.record_of, samples.session(), prompt_tokens=-1) == "usage.prompt_tokens"
    assert refused_field(openengine.record_of, samples.session(), cached_tokens=1.0) == "usage.cached_prompt_tokens"
    with pytest.raises(TypeError, match=r"must be the class of openengine\.v1\.KvSessionRef, is KvEndpoint"):
        openengine.session_of(samples.KvEndpoint, openengine.record_of(samples.session()))
    with pytest.raises(payload.UnusableHandoff, match="no openengine"):
        openengine.session_of(samples.KvSessionRef, Record(engine_state=EngineState(openengine.TYPE, b"\x0a\x05x")))


# -- LMDeploy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samples.LMDEPLOY)
def test_lmdeploy_round_trip(name: str) -> None:
    given = samples.LMDEPLOY[name]
    kept = copy.deepcopy(given)
    assert lmdeploy.request_of(sent(lmdeploy.record_of(given))) == given == kept


def test_lmdeploy_hands_over_its_token_and_a_dummy_prefill_none() -> None:
    assert lmdeploy.record_of(LMDEPLOY).tokens == [Token(9707)]
    assert lmdeploy.record_of(samples.LMDEPLOY["a dummy prefill"]).tokens == []


@pytest.mark.parametrize("name", sorted(set(LMDEPLOY) - {"is_dummy_prefill"}))
def test_lmdeploy_needs_each_field(name: str) -> None:
    assert refused_field(lmdeploy.record_of, without(LMDEPLOY, name)) == name
    assert refused_field(lmdeploy.record_of, changed(LMDEPLOY, **{name: None})) == name


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"remote_token_id": -1}, "remote_token_id"),
        ({"remote_token_id": "1"}, "remote_token_id"),
        ({"remote_block_ids": 3}, "remote_block_ids"),
        ({"remote_block_ids": [1, "2"]}, "remote_block_ids[1]"),
        ({"is_dummy_prefill": "false"}, "is_dummy_prefill"),
        ({"protocol": {2}}, "protocol"),
    ],
    ids=str,
)
def test_lmdeploy_refuses_by_name(fields: dict[str, Any], named: str) -> None:
    assert refused_field(lmdeploy.record_of, changed(LMDEPLOY, **fields)) == named


def test_lmdeploy_reads_one_token() -> None:
    record = lmdeploy.record_of(LMDEPLOY)
    record.tokens = []
    with pytest.raises(payload.UnusableHandoff, match="0 tokens"):
        lmdeploy.request_of(record)


# -- all of them -------------------------------------------------------------------------------------------------------

READERS: dict[str, Any] = {
    tensorrt_llm.TYPE: tensorrt_llm.params_of,
    dynamo.type_of("vllm"): lambda record: dynamo.prefill_result_of("vllm", record),
    openengine.TYPE: lambda record: openengine.session_of(samples.KvSessionRef, record),
    lmdeploy.TYPE: lmdeploy.request_of,
}


@pytest.mark.parametrize("kind", READERS)
def test_a_reader_refuses_what_is_not_for_it(kind: str) -> None:
    for record, why in (
        (Record(tokens=[Token(1)]), "no engine state"),
        (Record(tokens=[Token(1)], engine_state=EngineState("vllm/NixlConnector;v=1", b"{}")), "is for vllm/Nixl"),
    ):
        with pytest.raises(payload.UnusableHandoff, match=why):
            READERS[kind](record)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a":NaN}', b"[" * 100_000, b"\xff"], ids=lambda data: repr(data[:9])
)
@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != openengine.TYPE])
def test_a_reader_refuses_what_is_no_object(kind: str, data: bytes) -> None:
    with pytest.raises(payload.UnusableHandoff, match="no JSON object"):
        READERS[kind](Record(engine_state=EngineState(kind, data)))


def test_counters_of_a_foreign_writer_have_a_place_to_go() -> None:
    record = tensorrt_llm.record_of({"ctx_usage": {"prompt_tokens": 3}})
    record.engine_state = EngineState(tensorrt_llm.TYPE, b'{"ctx_usage":[]}')
    with pytest.raises(payload.UnusableHandoff, match="ctx_usage"):
        tensorrt_llm.params_of(record)
    record = dynamo.record_of("vllm", {"disaggregated_params": 1, "prompt_tokens_details": {"cached_tokens": 3}})
    record.engine_state = EngineState(dynamo.type_of("vllm"), b'{"prompt_tokens_details":[]}')
    with pytest.raises(payload.UnusableHandoff, match="prompt_tokens_details"):
        dynamo.prefill_result_of("vllm", record)


def test_equal_fields_are_the_same_put_whatever_their_order() -> None:
    backwards = dict(reversed(list(TRTLLM.items())))
    assert tensorrt_llm.record_of(TRTLLM) == tensorrt_llm.record_of(backwards)


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert refused_field(dynamo.record_of, "vllm", {"disaggregated_params": endless}).startswith(
        "disaggregated_params[0]"
    )


def test_tuples_come_back_as_lists() -> None:
    given = {"disaggregated_params": {"remote_block_ids": ((1, 2), (3,))}}
    back = dynamo.prefill_result_of("vllm", dynamo.record_of("vllm", given))
    assert back == {"disaggregated_params": {"remote_block_ids": [[1, 2], [3]]}}
