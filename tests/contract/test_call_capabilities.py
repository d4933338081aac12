"""Contract section 5, Capabilities: free of cost, and what it advertises is what is enforced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire


@pytest.mark.internals
def test_defaults_are_those_of_the_contract(start: Start, kind: str) -> None:
    steps = start(slots=1024).steps(kind)
    facts = steps.capabilities()
    assert facts.limits == pb.Widths(
        tokens=8,
        top_logprobs=128,
        token_ids_logprobs=128,
        sampling_mask_tokens=1024,
        speculative_topk=16,
        dsa_topk_indices=2048,
        customized_info_bytes=4096,
        hidden_state_bytes=32768,
        draft_tokens=16,
    )
    assert (facts.lease_default, facts.lease_min, facts.lease_max) == tuple(
        Duration(seconds=seconds) for seconds in (60, 1, 3600)
    )
    assert facts.retention.seconds == 300
    assert facts.max_wait.seconds == 600
    assert facts.consumed_grace.seconds == 30
    assert facts.tombstone_time.seconds == 120
    assert facts.max_batch == 128
    assert facts.max_waiters > 0
    assert (facts.slots_total, facts.slots_free) == (1024, 1024)
    assert facts.arena_bytes == facts.row_bytes * 1024
    assert sorted(facts.hidden_state_dtypes) == sorted(set(rp.DataType.values()) - {rp.DATA_TYPE_UNSPECIFIED})
    assert "session" in facts.features
    assert facts.store_epoch
    assert facts.server_version
    assert facts.schema_fingerprint


@pytest.mark.settings(max_hidden_state_bytes=0)
def test_no_element_types_where_no_hidden_states_fit(steps: Steps) -> None:
    facts = steps.capabilities()
    assert (facts.limits.hidden_state_bytes, list(facts.hidden_state_dtypes)) == (0, [])


@pytest.mark.internals
def test_settings_are_advertised_and_enforced(start: Start, kind: str) -> None:
    store = start(
        slots=3,
        lease_default=7.5,
        lease_min=2.0,
        lease_max=9.0,
        retention=11.0,
        consumed_grace=13.0,
        max_wait=17.0,
        tombstone_time=19.0,
        max_batch=5,
        max_waiters=23,
    )
    steps = store.steps(kind)
    facts = steps.capabilities()
    assert (facts.slots_total, facts.max_batch, facts.max_waiters) == (3, 5, 23)
    assert facts.lease_default == Duration(seconds=7, nanos=500_000_000)
    for name, seconds in (
        ("lease_min", 2),
        ("lease_max", 9),
        ("retention", 11),
        ("consumed_grace", 13),
        ("max_wait", 17),
        ("tombstone_time", 19),
    ):
        assert getattr(facts, name) == Duration(seconds=seconds)
    assert steps.reserve(1).lease == facts.lease_default
    assert steps.reserve(1, lease=0.1).lease == facts.lease_min
    assert steps.reserve(1, lease=100).lease == facts.lease_max
    steps.publish(2)
    store.advance(10.99)
    steps.get(2, reader="decode")
    store.advance(12.99)
    steps.get(2, reader="decode")
    store.advance(0.01)
    with refused("ALREADY_CONSUMED"):
        steps.get(2, reader="decode")
    store.advance(18.99)
    with refused("ALREADY_CONSUMED"):
        steps.get(2, reader="decode")
    store.advance(0.01)
    with refused("HANDOFF_NOT_FOUND"):
        steps.get(2, reader="decode")


@pytest.mark.clock
def test_it_needs_no_slot_renews_nothing_and_answers_while_all_is_full(steps: Steps, store: LocalStore) -> None:
    for room in range(8):
        steps.reserve(room, lease=10)
    assert steps.free == 0
    before = store.listing()
    for _ in range(10):
        steps.capabilities(required=pb.Widths(top_logprobs=128))
    assert store.listing() == before
    store.advance(10)
    assert steps.free == 8


@pytest.mark.internals
def test_it_answers_while_draining(steps: Steps, store: LocalStore) -> None:
    store.core.drain()
    assert steps.capabilities().slots_total == 8


@pytest.mark.settings(slots=8)
def test_consumed_slots_count_as_free(steps: Steps) -> None:
    steps.reserve(1)
    steps.publish(2)
    steps.publish(3)
    assert steps.free == 5
    steps.get(3, reader="decode")
    assert steps.free == 6


def test_the_epoch_is_in_every_answer(steps: Steps) -> None:
    epoch = steps.capabilities().store_epoch
    reserved = steps.reserve(7)
    assert reserved.store_epoch == epoch
    assert steps.put(7, reserved.token).store_epoch == epoch
    assert steps.get(7).store_epoch == epoch
    assert steps.capabilities().store_epoch == epoch


@pytest.mark.internals
def test_two_stores_have_one_schema_and_two_epochs(start: Start) -> None:
    one, other = (start().steps().capabilities() for _ in range(2))
    assert one.schema_fingerprint == other.schema_fingerprint
    assert one.store_epoch != other.store_epoch


Batch = Callable[[int], tuple[str, pb.BatchReserveRequest | pb.BatchPutRequest | pb.BatchGetRequest]]

BATCHES: dict[str, Batch] = {
    "BatchReserve": lambda size: (
        "BatchReserve",
        pb.BatchReserveRequest(requests=[requests.reserve(room) for room in range(size)]),
    ),
    "BatchPut": lambda size: (
        "BatchPut",
        pb.BatchPutRequest(requests=[requests.put_once(room) for room in range(size)]),
    ),
    "BatchGet": lambda size: ("BatchGet", pb.BatchGetRequest(requests=[requests.get(room) for room in range(size)])),
}


@pytest.mark.internals
@pytest.mark.parametrize("batch", BATCHES)
def test_max_batch_is_enforced_at_the_limit_and_one(start: Start, batch: str) -> None:
    unary = start(slots=256).steps()
    most = unary.capabilities().max_batch
    for size in (0, most + 1, 5000):
        with refused("INVALID_REQUEST") as caught:
            unary.caller.call(*BATCHES[batch](size))
        assert list(caught.error.violations) == ["requests"]
        assert unary.free == 256
    answer = unary.caller.call(*BATCHES[batch](most))
    assert len(answer.responses if batch == "BatchReserve" else answer.results) == most


@pytest.mark.settings(max_waiters=3)
def test_max_waiters_is_enforced_at_the_limit_and_one(steps: Steps, store: LocalStore) -> None:
    waiting = [steps.start_get(room) for room in range(steps.capabilities().max_waiters)]
    store.until_waiting(3)
    with refused("TOO_MANY_WAITERS", limit=3):
        steps.get(9, max_wait=1)
    assert not any(each.done() for each in waiting)


def test_required_that_fits(steps: Steps) -> None:
    limits = steps.capabilities().limits
    assert steps.capabilities(required=limits).limits == limits
    assert steps.capabilities(required=pb.Widths()).limits == limits


def test_a_record_at_all_limits_at_once_is_taken(steps: Steps) -> None:
    steps.put_once(7, records.full(), widths=steps.capabilities().limits)
