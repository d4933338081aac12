"""Contract section 8: what other engines hand over, and refusals that proxies and retries understand."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.records import Token, record
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

STATE = rp.EngineState(type="vllm/NixlConnector;v=1", data=b"\x00\xff" * 100)


def varint_field(number: int, value: int) -> bytes:
    """One field of the wire, of a number below 16 and a value below 128."""
    return bytes((number << 3, value))


# -- token presence ----------------------------------------------------------------------------------------------------

NO_TOKEN: dict[str, bytes] = {
    "empty token": b"",
    "logprob alone": rp.SampledToken(logprob=-1.0).SerializeToString(),
    "token_id as bytes": b"\x0a\x01\x07",
    "token_id as 32 bits": b"\x0d\x07\x00\x00\x00",
    "under another number": varint_field(9, 7),
}


@pytest.mark.parametrize("what", NO_TOKEN)
def test_case_34_a_token_without_an_id_is_no_token_0(shared: Steps, room: int, what: str) -> None:
    wrong = record(Token(token_id=1))
    wrong.tokens.add().MergeFromString(NO_TOKEN[what])
    token = shared.reserve(room).token
    with refused("INVALID_RECORD") as caught:
        shared.put(room, token, wrong)
    assert caught.error.violations == {"record.tokens[1].token_id": "is required; 0 is a token"}
    with refused("RECORD_NOT_READY"):
        shared.get(room)
    shared.put(room, token, record(Token(token_id=0)))
    got = shared.record(room).tokens[0]
    assert (got.HasField("token_id"), got.token_id) == (True, 0)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_with_fields_of_a_newer_schema_is_refused_everywhere(unary: Steps) -> None:
    unary.publish(7)
    newer = rp.HandoffKey.FromString(requests.key(7).SerializeToString() + varint_field(15, 1))
    calls: list[tuple[str, Any]] = [
        ("Reserve", requests.reserve(newer)),
        ("Put", requests.put(newer, b"token")),
        ("Put", requests.put_once(newer)),
        ("Get", requests.get(newer)),
        ("Release", pb.ReleaseRequest(key=newer, reader_id="r")),
        ("Abort", requests.abort(newer)),
    ]
    for name, request in calls:
        with refused("INVALID_REQUEST") as caught:
            unary.caller.call(name, request)
        assert "key" in caught.error.violations, name
        assert "upgrade the store" in caught.error.violations["key"]
    assert unary.record(7) == records.record()


def test_unknown_fields_elsewhere_do_no_harm(shared: Steps, room: int) -> None:
    request = pb.ReserveRequest.FromString(requests.reserve(room).SerializeToString() + varint_field(15, 1))
    assert shared.caller.call("Reserve", request).token


# -- tokens of another store -------------------------------------------------------------------------------------------


@pytest.mark.internals
@pytest.mark.parametrize("use", ["put", "release", "abort"])
def test_a_token_of_another_store_is_told_by_both_epochs(start: Start, kind: str, use: str) -> None:
    here, there = start().steps(kind), start().steps(kind)
    token = there.reserve(7).token
    epochs = {
        "token_epoch": there.capabilities().store_epoch,
        "store_epoch": here.capabilities().store_epoch,
    }
    with refused("STALE_RESERVATION", state="NONE", **epochs) as caught:
        if use == "put":
            here.put(7, token)
        elif use == "release":
            here.release(7, token=token)
        else:
            here.abort(7, token=token)
    assert "two stores" in caught.error.message


def test_a_token_of_this_store_or_of_none_has_no_epochs(shared: Steps, room: int) -> None:
    token = shared.reserve(room).token
    for stale in (token, b"no token at all"):
        with refused("STALE_RESERVATION", state="NONE") as caught:
            shared.put(-room % (1 << 64), stale)
        assert caught.error.metadata.keys() == {"state"}


# -- further fields ----------------------------------------------------------------------------------------------------


def test_a_store_takes_and_returns_further_parts_by_default(shared: Steps, room: int) -> None:
    sent = records.complete(7)
    assert shared.exchange(room, sent) == sent


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (rp.DATA_TYPE_INT32, 4),
        (rp.DATA_TYPE_INT64, 8),
        (rp.DATA_TYPE_UINT8, 1),
        (rp.DATA_TYPE_UINT16, 2),
        (rp.DATA_TYPE_FLOAT8_E4M3FNUZ, 1),
        (rp.DATA_TYPE_FLOAT8_E5M2FNUZ, 1),
    ],
)
def test_tensors_of_further_element_types(shared: Steps, room: int, dtype: int, size: int) -> None:
    sent = records.with_hidden(dtype, [3, 2], bytes(range(6 * size)))
    token = shared.reserve(room).token
    with refused("INVALID_RECORD") as caught:
        shared.put(room, token, records.with_hidden(dtype, [3, 2], bytes(6 * size + 1)))
    assert list(caught.error.violations) == ["record.speculative.hidden_states.data"]
    shared.put(room, token, sent)
    assert shared.record(room) == sent


def ranked(*ranks: int) -> rp.HandoffRecord:
    """Two top logprobs with these ranks."""
    return record(Token(top_logprobs=rp.Logprobs(values=[-1, -2], token_ids=[1, 2], ranks=ranks)))


FURTHER: dict[str, tuple[rp.HandoffRecord, str]] = {
    "rank 0": (record(Token(rank=0)), "record.tokens[0].rank"),
    "fewer ranks than ids": (ranked(1), "record.tokens[0].top_logprobs.ranks"),
    "more ranks than ids": (ranked(1, 2, 3), "record.tokens[0].top_logprobs.ranks"),
    "a rank of 0 among them": (ranked(1, 0), "record.tokens[0].top_logprobs.ranks"),
    "negative draft token": (
        record(speculative=rp.SpeculativeState(draft_token_ids=[1, -1])),
        "record.speculative.draft_token_ids",
    ),
    "long trace context": (record(traceparent="0" * 65), "record.traceparent"),
}


@pytest.mark.parametrize("what", FURTHER)
def test_malformed_further_part(shared: Steps, room: int, what: str) -> None:
    wrong, field = FURTHER[what]
    with refused("INVALID_RECORD") as caught:
        shared.put_once(room, wrong)
    assert list(caught.error.violations) == [field]


def test_draft_tokens_up_to_the_limit(shared: Steps, room: int) -> None:
    limit = shared.capabilities().limits.draft_tokens
    assert limit == 16
    sent = record(speculative=rp.SpeculativeState(draft_token_ids=range(limit)))
    assert shared.exchange(room, sent) == sent
    sent.speculative.draft_token_ids.append(1)
    with refused("FIELD_OVERFLOW", field="draft_tokens", requested=17, limit=16):
        shared.put_once(-room % (1 << 64), sent)
    with refused("FIELD_OVERFLOW", field="draft_tokens", requested=17, limit=16):
        shared.reserve(-room % (1 << 64), widths=pb.Widths(draft_tokens=17))


# -- engine state ------------------------------------------------------------------------------------------------------


def test_engine_state_is_off_by_default(shared: Steps, room: int) -> None:
    assert shared.capabilities().limits.engine_state_bytes == 0
    with refused("FIELD_OVERFLOW", field="engine_state_bytes", requested=200, limit=0):
        shared.put_once(room, record(engine_state=STATE))
    with refused("FIELD_OVERFLOW", field="engine_state_bytes", requested=1, limit=0):
        shared.reserve(room, widths=pb.Widths(engine_state_bytes=1))


@pytest.mark.settings(max_engine_state_bytes=200)
def test_engine_state_up_to_the_limit_with_and_without_tokens(steps: Steps) -> None:
    for room, sent in enumerate((record(engine_state=STATE), rp.HandoffRecord(engine_state=STATE)), 1):
        assert steps.exchange(room, sent) == sent
    longer = rp.EngineState(type=STATE.type, data=STATE.data + b"x")
    with refused("FIELD_OVERFLOW", field="engine_state_bytes", requested=201, limit=200):
        steps.put_once(9, rp.HandoffRecord(engine_state=longer))
    with refused("INVALID_RECORD") as caught:
        steps.put_once(9, rp.HandoffRecord(prompt_tokens=1))
    assert list(caught.error.violations) == ["record.tokens"]


@pytest.mark.settings(max_engine_state_bytes=200)
@pytest.mark.parametrize("kind_of_state", ["", "x" * 65, "vllm Nixl", "vllm\n", "\u00e9"])
def test_a_type_of_engine_state_that_is_none(steps: Steps, kind_of_state: str) -> None:
    with refused("INVALID_RECORD") as caught:
        steps.put_once(7, record(engine_state=rp.EngineState(type=kind_of_state, data=b"x")))
    assert list(caught.error.violations) == ["record.engine_state.type"]


@pytest.mark.settings(max_engine_state_bytes=200)
@pytest.mark.parametrize("kind_of_state", ["x", "x" * 64, "trtllm/disagg+ctx;v=0.2_a.b-c"])
def test_a_type_of_engine_state_at_its_bounds(steps: Steps, kind_of_state: str) -> None:
    sent = record(engine_state=rp.EngineState(type=kind_of_state))
    assert steps.exchange(7, sent) == sent


# -- refusals through proxies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["\u4e2d", "\u0416", "\u304b", "\U0001f600", "%", "a"])
def test_case_35_the_longest_text_of_any_script_fits_a_proxys_buffer(unary: Steps, letter: str) -> None:
    text = letter * (1024 // len(letter.encode()))
    unary.reserve(7)
    unary.abort(7, why=requests.failure(message=text))
    with refused("HANDOFF_ABORTED") as caught:  # which measures the headers
        unary.get(7)
    assert caught.error.message == text  # of the details; grpc-message may be shorter
