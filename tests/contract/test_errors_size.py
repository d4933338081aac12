"""Contract section 6: a status with all its details stays under 4 KB, whatever was sent, and gets through as it is."""

from __future__ import annotations

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import MOST_BYTES, of_status, refused
from tests.support.fixtures import Start
from tests.support.records import Token
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

BAD_KEY = rp.HandoffKey(namespace="n" * 10_000, room=1)


def worst_token() -> rp.SampledToken:
    """A token with everything wrong that a token can have."""
    return Token(
        token_id=-1,
        top_logprobs=rp.Logprobs(values=[0.0] * 100, token_ids=[-1]),
        token_ids_logprobs=rp.Logprobs(values=[0.0] * 100, token_ids=[-1]),
    )


@pytest.mark.internals
def test_a_record_with_hundreds_of_violations(start: Start, kind: str) -> None:
    steps = start(max_tokens=256).steps(kind)
    worst = rp.HandoffRecord(tokens=[worst_token() for _ in range(256)])
    worst.finish_reason = rp.FINISH_REASON_UNSPECIFIED
    worst.speculative.topk_p[:] = [0.5] * 10
    worst.speculative.hidden_states.CopyFrom(records.tensor(rp.DATA_TYPE_FLOAT32, [1] * 8, b"x" * 1000))
    with refused("INVALID_RECORD") as caught:  # which checks the size
        steps.put_once(7, worst)
    assert len(caught.error.violations) >= 8


def test_128_items_each_wrong_in_every_field(unary: Steps) -> None:
    reserve = pb.ReserveRequest(key=BAD_KEY, owner="", expected_readers=2000)
    reserve.lease.seconds = reserve.max_wait.seconds = -1
    reserve.producer.instance_id = "\u00f6" * 200
    batch = pb.BatchReserveRequest(requests=[reserve] * 128)
    with refused("INVALID_REQUEST") as caught:
        unary.caller.call("BatchReserve", batch)
    assert len(caught.error.violations) >= 8


def test_each_item_of_a_batch_has_a_small_error(unary: Steps) -> None:
    put = pb.PutRequest(key=BAD_KEY, token=b"t", reserve=pb.ReserveRequest(key=BAD_KEY, owner="o" * 300))
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", pb.BatchPutRequest(requests=[put] * 128))
    assert len(answer.results) == 128
    for result in answer.results:
        assert of_status(result.error).reason == "INVALID_REQUEST"
        assert result.error.ByteSize() < MOST_BYTES
    get = pb.GetRequest(key=BAD_KEY, consume=True, expected_store_epoch="e" * 10_000)
    answers: pb.BatchGetResponse = unary.caller.call("BatchGet", pb.BatchGetRequest(requests=[get] * 128))
    assert all(result.error.ByteSize() < MOST_BYTES for result in answers.results)


@pytest.mark.parametrize("letter", ["a", "\u20ac", "\U0001f600", "\x00", '"'])
def test_the_longest_failure_gets_through(steps: Steps, letter: str) -> None:
    steps.abort(7, why=requests.failure(599, "R" * 63, letter * 4000))
    with refused("HANDOFF_ABORTED", http_status=599, failure_reason="R" * 63) as caught:
        steps.get(7)
    told = caught.error.message
    assert told == letter * len(told)
    assert 1024 - len(letter.encode()) < len(told.encode()) <= 1024


def test_long_expectations_are_cut_when_they_are_told_back(steps: Steps) -> None:
    with refused("STORE_RESTARTED"):
        steps.get(7, epoch="e" * 10_000)
    with refused("STORE_RESTARTED"):
        steps.get(7, epoch="\u20ac" * 10_000)
    with refused("SCHEMA_MISMATCH"):
        steps.capabilities(expected_schema_fingerprint="\u20ac" * 10_000)


@pytest.mark.parametrize("width", [(1 << 32) - 1])
def test_the_largest_numbers(steps: Steps, width: int) -> None:
    with refused("TOP_LOGPROBS_OVERFLOW", requested=width):
        steps.reserve(7, widths=pb.Widths(top_logprobs=width))
    with refused("FIELD_OVERFLOW", field="hidden_state_bytes", requested=(1 << 64) - 1):
        steps.reserve(7, widths=pb.Widths(hidden_state_bytes=(1 << 64) - 1))
