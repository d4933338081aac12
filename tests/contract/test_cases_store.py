"""Inputs that broke systems of this kind in production: restarts, hostile sizes, what Capabilities and a plan say."""

from __future__ import annotations

import json
import random

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.caller import STORE
from tests.support.failures import CallFailed, refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.process import run_command
from tests.support.records import Token, logprobs, record
from tests.support.steps import Steps

pytestmark = pytest.mark.internals

# -- 18: restarts ------------------------------------------------------------------------------------------------------


def test_case_18_store_restarts_between_put_and_get(start: Start, kind: str) -> None:
    first = start()
    steps = first.steps(kind)
    token = steps.publish(7)
    reserved = steps.reserve(8)
    first.close()

    second = start(listen=(first.target,))
    steps = second.steps(kind)
    epoch = steps.capabilities().store_epoch
    assert epoch != reserved.store_epoch
    with refused("STORE_RESTARTED", expected=reserved.store_epoch, actual=epoch):
        steps.get(7, reader="decode", max_wait=300, epoch=reserved.store_epoch)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(7)
    for room, stale in ((7, token), (8, reserved.token)):
        with refused("STALE_RESERVATION", state="NONE"):
            steps.put(room, stale)
    again = steps.reserve(8)
    assert again.store_epoch == epoch
    assert again.token != reserved.token
    assert steps.put(8, again.token).store_epoch == epoch
    assert steps.get(8).store_epoch == epoch


@pytest.mark.wire
def test_case_18_producer_restarts_with_three_reserved_and_one_published(steps: Steps, store: LocalStore) -> None:
    before, after = ("prefill-0", 1_700_000_000), ("prefill-0", 1_700_000_060)
    tokens = [steps.reserve(room, producer=before).token for room in range(3)]
    steps.publish(3, records.numbered(3), producer=before)
    steps.reserve(4, producer=("prefill-1", 1))
    waiting = [steps.start_get(room) for room in range(3)]
    store.until_waiting(3)
    steps.reserve(5, producer=after)
    for room in range(3):
        with refused("PRODUCER_RESTARTED"):
            waiting[room].result()
        with refused("PRODUCER_RESTARTED"):
            steps.put(room, tokens[room])
    assert steps.record(3, reader="decode") == records.numbered(3)
    assert sorted(handoff.key.room for handoff in store.listing()) == [3, 4, 5]
    assert steps.reserve(0, producer=after).token != tokens[0]  # its own new epoch may have the room again


# -- 20: hostile sizes and forms ---------------------------------------------------------------------------------------


@pytest.mark.wire
@pytest.mark.parametrize("size", [5 << 20, (5 << 20) + 1])
def test_case_20_a_record_of_5_mib(shared: Steps, room: int, size: int) -> None:
    with refused("FIELD_OVERFLOW", field="customized_info_bytes", requested=size):
        shared.put_once(room, record(customized_info=bytes(size)))
    hidden = records.with_hidden(rp.DATA_TYPE_FLOAT8_E4M3, [size], bytes(size))
    with refused("FIELD_OVERFLOW", field="hidden_state_bytes", requested=size):
        shared.put_once(room, hidden)
    assert shared.exchange(room)


def test_case_20_a_message_over_max_message_bytes(store: LocalStore, kind: str) -> None:
    steps = store.steps(kind)
    limit = steps.capabilities().max_message_bytes
    too_large = requests.put_once(7, record(customized_info=bytes(limit)))
    with pytest.raises(CallFailed) as caught:
        steps.caller.call("Put", too_large)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.reason == ""  # gRPC's own: the store never saw it
    assert store.steps(kind).exchange(7)  # the store serves on; a stream is another one
    assert store.waiting == 0


def test_case_20_the_largest_legal_batch_fits_into_a_message(start: Start) -> None:
    store = start(slots=128)
    unary = store.steps()
    limits = unary.capabilities()
    wide = logprobs(128, (1 << 31) - 129)
    widest = rp.HandoffRecord(
        tokens=[Token(token_id=(1 << 31) - 1, logprob=-1.0, top_logprobs=wide, token_ids_logprobs=wide)] * 8,
        sampling_mask=rp.SamplingMask(token_ids=[(1 << 31) - 1] * 1024, logprobs=[-1.0] * 1024),
        speculative=rp.SpeculativeState(
            topk_p=[0.5] * 16,
            topk_index=[-1] * 16,
            hidden_states=records.tensor(rp.DATA_TYPE_FLOAT8_E4M3, [32768], bytes(32768)),
            dsa_topk_indices=[-1] * 2048,
        ),
        customized_info=bytes(4096),
    )
    name = "n" * 128
    keys = [rp.HandoffKey(namespace=name, room=(1 << 64) - 1 - index, sample=(1 << 32) - 1) for index in range(128)]
    reserve = requests.reserve(None, "o" * 256, producer=("i" * 256, (1 << 64) - 1), attempt=(1 << 64) - 1)
    puts = pb.BatchPutRequest(requests=[requests.put_once(key, widest, reserve) for key in keys])
    assert puts.ByteSize() <= limits.max_message_bytes
    answer: pb.BatchPutResponse = unary.caller.call("BatchPut", puts)
    assert {result.WhichOneof("result") for result in answer.results} == {"response"}
    gets = pb.BatchGetRequest(requests=[requests.get(key, reader="r" * 256) for key in keys])
    got: pb.BatchGetResponse = unary.caller.call("BatchGet", gets)
    assert all(result.response.record == widest for result in got.results)
    assert got.ByteSize() <= limits.max_message_bytes


@pytest.mark.wire
def test_case_20_namespace_of_10000_bytes_and_missing_room(shared: Steps, room: int) -> None:
    with refused("INVALID_REQUEST") as caught:
        shared.put_once(rp.HandoffKey(namespace="n" * 10_000, room=room))
    assert list(caught.error.violations) == ["key.namespace"]
    with refused("INVALID_REQUEST") as caught:
        shared.put_once(rp.HandoffKey(namespace="n"))
    assert list(caught.error.violations) == ["key.room"]
    assert shared.exchange(room)


@pytest.mark.wire
def test_case_20_a_method_nobody_knows(shared_store: LocalStore, shared: Steps, room: int) -> None:
    for name in (f"/{STORE}/Steal", "/no.such.Service/Get", f"/{STORE}/get"):
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = shared_store.channel().unary_unary(name)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=20)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert shared.exchange(room)


@pytest.mark.wire
def test_case_20_noise_on_every_method(shared_store: LocalStore, shared: Steps, room: int) -> None:
    rng = random.Random(20)
    channel = shared_store.channel()
    for _ in range(40):
        noise = rng.randbytes(rng.choice([1, 3, 40, 4000]))
        for method in ("Capabilities", "Reserve", "Put", "Get", "Release", "Abort", "BatchReserve", "BatchPut"):
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{STORE}/{method}")
            answer: grpc.Future[bytes] = call.future(noise, timeout=20)
            error = answer.exception()
            assert error is None or error.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert shared.exchange(room)


# -- 21: nothing is left when idle -------------------------------------------------------------------------------------


@pytest.mark.settings(slots=16)
def test_case_21_after_a_thousand_mixed_hand_offs_all_is_free(steps: Steps, store: LocalStore) -> None:
    rng = random.Random(21)
    for room in range(1000):
        how = rng.randrange(7)
        if how == 0:
            steps.abort(room)
            continue
        if how == 1:
            steps.exchange(room)
            continue
        token = steps.reserve(room, lease=rng.choice([1, 60])).token
        waiting = steps.start_get(room, reader="decode") if how == 2 else None
        if how == 3:
            steps.release(room, token=token)
        elif how == 4:
            store.advance(61)
        elif how == 5:
            steps.abort(room, token=token)
        else:
            steps.put(room, token)
            if waiting is not None:
                waiting.result()
            else:
                steps.get(room, reader="decode")
    facts = steps.capabilities()
    assert (facts.slots_total, facts.slots_free) == (16, 16)
    assert store.waiting == 0
    store.advance(31)
    assert store.listing() == []
    assert steps.free == 16


# -- 22: a plan is what is allocated -----------------------------------------------------------------------------------


def test_case_22_a_plan_tells_what_capabilities_reports(start: Start) -> None:
    asked = ["--max-running-requests", "64", "--max-top-logprobs", "128"]
    hidden = ["--hidden-size", "7168", "--hidden-dtype", "bfloat16"]
    plan = json.loads(run_command("plan", *asked, *hidden, "--json").stdout)
    assert plan["slots"] == 2 * 64
    assert plan["limits"]["hidden_state_bytes"] == 2 * 7168
    store = start(slots=plan["slots"], max_hidden_state_bytes=plan["limits"]["hidden_state_bytes"])
    facts = store.steps().capabilities()
    assert (facts.row_bytes, facts.arena_bytes) == (plan["row_bytes"], plan["arena_bytes"])
    assert facts.arena_bytes == facts.row_bytes * facts.slots_total


def test_case_22_the_planner_of_two_times_2048_rows() -> None:
    run = run_command("plan", "--max-running-requests", "2048", "--hidden-size", "7168", "--json")
    plan = json.loads(run.stdout)
    assert plan["slots"] == 4096
    assert plan["arena_bytes"] == 4096 * plan["row_bytes"]
    assert plan["row_bytes"] % 64 == 0
    assert plan["row_bytes"] > 2 * 7168 + 8 * 128 * 8
