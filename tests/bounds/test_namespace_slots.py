"""`--namespace-slots`: a namespace at its quota is refused or waits, and holds up no other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.lifecycle import Failure, Spec, State
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Parked, Published, Query, Reserved

from tests.support import records, requests
from tests.support.caller import Pending
from tests.support.clock import FakeClock
from tests.support.failures import HOPELESS, refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps
from tests.support.waits import at_once

from .conftest import core


def a(room: int) -> rp.HandoffKey:
    return rp.HandoffKey(namespace="a", room=room)


def b(room: int) -> rp.HandoffKey:
    return rp.HandoffKey(namespace="b", room=room)


pytestmark = pytest.mark.settings(slots=4, namespace_slots=("a=2",))


def test_at_the_quota_and_one_more(steps: Steps) -> None:
    steps.reserve(a(1))
    steps.put_once(a(2))
    with refused("ARENA_FULL", slots_total=2, in_use=2) as caught:
        steps.reserve(a(3))
    assert "'a'" in caught.error.message
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        steps.put_once(a(3))
    steps.reserve(a(1))  # renewed
    steps.reserve(b(1))
    steps.reserve(2)
    with refused("ARENA_FULL", slots_total=4, in_use=4):
        steps.reserve(3)


def test_a_batch_is_whole(unary: Steps) -> None:
    def batch(*keys: rp.HandoffKey) -> pb.BatchReserveResponse:
        request = pb.BatchReserveRequest(requests=[requests.reserve(key) for key in keys])
        answer: pb.BatchReserveResponse = unary.caller.call("BatchReserve", request)
        return answer

    with refused("ARENA_FULL", slots_total=2, in_use=0):
        batch(b(1), a(1), a(2), a(3))
    assert unary.free == 4
    assert len(batch(b(1), a(1), a(2)).responses) == 3
    assert len(batch(a(1), a(2)).responses) == 2  # renewed
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        batch(a(2), a(3))


def test_what_counts(steps: Steps) -> None:
    token = steps.publish(a(1))
    steps.reserve(a(2))
    with refused("ARENA_FULL"):
        steps.reserve(a(3))
    steps.get(a(1), reader="d")  # consumed: whoever needs the slot can have it
    steps.reserve(a(3))
    steps.release(a(1), token=token)
    with refused("ARENA_FULL"):
        steps.reserve(a(4))
    steps.reserve(a(3), attempt=1)  # in the place of its own first attempt
    steps.abort(a(2))
    steps.reserve(a(4))


def test_a_restarted_producer_gets_its_slots_back(steps: Steps) -> None:
    for room in (1, 2):
        steps.reserve(a(room), producer=("p", 1))
    with refused("ARENA_FULL"):
        steps.reserve(a(3), "other", producer=("q", 9))
    steps.reserve(a(3), "again", producer=("p", 2))


def test_expiry_gives_room(store: LocalStore, steps: Steps) -> None:
    steps.reserve(a(1), lease=5)
    steps.reserve(a(2), lease=500)
    waiting = steps.start_reserve(a(3), max_wait=60)
    store.until_waiting(1)
    store.advance(5.1)
    assert waiting.result().token


def test_nobody_else_is_held_up(store: LocalStore, unary: Steps) -> None:
    first, second = unary.reserve(a(1)), unary.reserve(a(2))
    waiting = [unary.start_reserve(a(room), max_wait=20) for room in (3, 4, 5)]
    store.until_waiting(3)
    unary.reserve(b(1))
    unary.put_once(b(2))
    unary.abort(b(1))
    unary.reserve(b(3), max_wait=60)
    assert not any(pending.done() for pending in waiting)
    unary.release(a(2), token=second.token)
    assert waiting[0].result().token
    unary.release(a(1), token=first.token)
    assert waiting[1].result().token
    assert not waiting[2].done()
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        unary.reserve(a(9))
    store.advance(31)
    with refused("ARENA_FULL", slots_total=2, in_use=2):
        waiting[2].result()


def test_first_come_first_served_within_the_namespace(store: LocalStore, unary: Steps) -> None:
    tokens = [unary.reserve(a(room)).token for room in (1, 2)]
    pair = pb.BatchReserveRequest(requests=[requests.reserve(a(room), max_wait=60) for room in (3, 4)])
    both = unary.caller.start("BatchReserve", pair)
    store.until_waiting(1)
    single = unary.start_reserve(a(5), max_wait=60)
    store.until_waiting(2)
    unary.release(a(1), token=tokens[0])
    assert not single.done()  # there is room for one, but two stand before it
    with refused("ARENA_FULL", slots_total=2, in_use=1):
        unary.reserve(a(6))
    unary.release(a(2), token=tokens[1])
    assert len(both.result().responses) == 2
    unary.abort(a(3))
    assert single.result().token


def test_a_full_arena_and_a_used_up_quota(store: LocalStore, unary: Steps) -> None:
    for room in (1, 2):
        unary.reserve(a(room))
        unary.reserve(b(room))
    waits: list[Pending] = []
    for key in (a(3), b(3), a(4)):
        waits.append(unary.start_reserve(key, max_wait=60))
        store.until_waiting(len(waits))
    unary.abort(b(1))
    assert waits[1].result().token
    assert not waits[0].done()
    unary.abort(a(1))
    assert waits[0].result().token
    assert not waits[2].done()


def test_what_can_never_fit_does_not_wait(start: Start) -> None:
    steps = start(slots=4, namespace_slots=("a=2", "none=0")).steps()
    with refused("ARENA_FULL", slots_total=0, in_use=0) as caught:
        steps.reserve(rp.HandoffKey(namespace="none", room=1), max_wait=60)
    assert HOPELESS in caught.error.message
    with refused("ARENA_FULL", slots_total=0, in_use=0):
        steps.put_once(rp.HandoffKey(namespace="none", room=1), max_wait=60)
    three = pb.BatchReserveRequest(requests=[requests.reserve(a(room), max_wait=60) for room in range(3)])
    with refused("ARENA_FULL", slots_total=2, in_use=0) as caught:
        steps.caller.call("BatchReserve", three)
    assert f"'a' may hold 2 slots and this asks for 3 at once: {HOPELESS}" in caught.error.message
    assert "--namespace-slots" in caught.error.message


def test_the_empty_namespace_can_have_a_quota(start: Start) -> None:
    steps = start(slots=4, namespace_slots=("=1",)).steps()
    steps.reserve(1)
    with refused("ARENA_FULL", slots_total=1):
        steps.reserve(2)


# -- whatever happens --------------------------------------------------------------------------------------------------

NAMESPACES = ("a", "b", "c")
LIMITS = {"a": 2, "b": 3}
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("reserve", "reserve", "pair", "put", "get", "abort", "expire", "cancel")),
        st.sampled_from(NAMESPACES),
        st.integers(0, 5),
        st.integers(0, 1),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_quotas_hold_and_nobody_waits_who_need_not(actions: list[tuple[str, str, int, int]]) -> None:
    clock = FakeClock()
    store = core(
        clock, slots=4, namespace_slots=[f"{name}={limit}" for name, limit in LIMITS.items()], lease_default=50
    )
    waits: list[tuple[str, Parked, list[Any]]] = []

    def park(namespace: str, answer: object, got: list[Any]) -> None:
        if not isinstance(answer, Reserved | Published | list):
            waits.append((namespace, answer, got))  # type: ignore[arg-type]

    for serial, (action, namespace, room, attempt) in enumerate(actions):
        key, owner, got = (namespace, room, 0), f"o{serial}", []  # type: ignore[var-annotated]
        try:
            if action == "reserve":
                park(namespace, store.reserve(Spec(key, owner, attempt), 10**12, got.append), got)
            elif action == "pair":
                specs = [Spec(key, owner, attempt), Spec((NAMESPACES[(room + 1) % 3], room + 10, 0), owner)]
                park("pair", store.reserve_all(specs, 10**12, got.append), got)
            elif action == "put":
                park(namespace, store.put_reserving(Spec(key, owner, attempt), records.record(), 0, got.append), got)
            elif action == "get":
                store.get(Query(key, 0, "r", True), 0, got.append)
            elif action == "abort":
                store.abort(key, Failure(500, "X", ""), b"", None, at_once)
            elif action == "expire":
                clock.advance(51)
                store.tick()
            elif waits:
                waits.pop(room % len(waits))[1].cancel()
        except Refusal:
            pass
        waits = [wait for wait in waits if not wait[2]]
        lifecycle = store._lifecycle
        held = dict.fromkeys(NAMESPACES, 0)
        for handoff in lifecycle.handoffs():
            held[handoff.key[0]] += handoff.state is not State.CONSUMED
        for name, limit in LIMITS.items():
            assert lifecycle.quotas.held[name] == held[name] <= limit
        census = store.census()
        assert census.free + census.reserved + census.published + census.consumed == 4
        assert census.published == sum(handoff.state is State.PUBLISHED for handoff in lifecycle.handoffs())
        assert census.waiting_claimants == len(waits) == store.waiting
        if lifecycle.available and not any(name == "pair" for name, *_ in waits):
            for name, *_ in waits:
                assert held[name] >= LIMITS.get(name, 5), f"{name} waits without need"


def test_a_batch_of_two_namespaces_that_gets_room_in_one_of_them(start: Start) -> None:
    """It goes on waiting for the other, and keeps its place in both lines. The store looks at it once per change."""
    store = start(slots=4, namespace_slots=("a=1", "b=1"))
    unary = store.steps()
    unary.reserve(a(1))
    unary.reserve(b(1))
    pair = pb.BatchReserveRequest(requests=[requests.reserve(key, max_wait=60) for key in (a(2), b(2))])
    both = unary.caller.start("BatchReserve", pair)
    store.until_waiting(1)
    unary.abort(a(1))
    assert not both.done()
    with refused("ARENA_FULL"):
        unary.reserve(a(3))  # the batch came first, in the line of `a` too
    unary.reserve(9)  # others are not held up
    unary.abort(b(1))
    assert len(both.result().responses) == 2
    assert store.waiting == 0
