"""Cases 39 to 46 of the field: what one caller does costs no other a hand-off, a fence or a turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.handlers.call import Call
from pd_handoff_server.lifecycle import Failure

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps
from tests.support.waits import PATIENCE, eventually

pytestmark = pytest.mark.internals

NATIVE = pytest.mark.parametrize("native", ["required", "off"])


def key(namespace: str, room: int) -> rp.HandoffKey:
    """A key in a namespace."""
    return rp.HandoffKey(namespace=namespace, room=room)


def both(first: int, second: int, max_wait: float = 300) -> pb.BatchGetRequest:
    """A consuming Get of two rooms, which waits for them."""
    return pb.BatchGetRequest(requests=[requests.get(room, reader="d", max_wait=max_wait) for room in (first, second)])


# -- 39: BatchGet counts its readers when its whole answer is made -----------------------------------------------------


@NATIVE
def test_case_39_a_batch_that_is_given_up_counts_nobody(start: Start, native: str) -> None:
    store = start(native=native)
    steps = store.steps()
    steps.put_once(1)
    leaving = store.steps()
    given_up = leaving.caller.start("BatchGet", both(1, 2), None)
    store.until_waiting(1)
    assert (store.sight(1).state, store.sight(1).readers_done) == (admin_pb2.HANDOFF_STATE_PUBLISHED, 0)
    assert not given_up.done()
    store.close_channels()
    store.until_waiting(0)
    assert store.sight(1).state == admin_pb2.HANDOFF_STATE_PUBLISHED
    assert store.steps().get(1, reader="another").record == records.record()


@NATIVE
def test_case_39_all_are_counted_with_the_answer(start: Start, native: str) -> None:
    store = start(native=native, consumed_grace=30.0, retention=300.0)
    steps = store.steps()
    steps.put_once(1, records.full())
    waiting = steps.caller.start("BatchGet", both(1, 2), None)
    store.until_waiting(1)
    store.advance(60)  # far beyond the grace, which runs from the answer on
    steps.put_once(2)
    answer: pb.BatchGetResponse = waiting.result()
    assert [item.response.record for item in answer.results] == [records.full(), records.record()]
    for room in (1, 2):
        assert store.sight(room).state == admin_pb2.HANDOFF_STATE_CONSUMED
    store.advance(29)
    assert steps.get(1, reader="d").record == records.full()
    store.advance(2)
    with refused("ALREADY_CONSUMED"):
        steps.get(1, reader="d")


@pytest.mark.clock
@pytest.mark.settings(slots=1)
def test_case_39_the_only_slot_is_not_given_away_before_the_answer(store: LocalStore) -> None:
    steps = store.steps()
    steps.put_once(1)
    batch = steps.caller.start("BatchGet", both(1, 2, max_wait=5), None)
    store.until_waiting(1)
    claim = store.steps().start_reserve(2, max_wait=300)
    store.until_waiting(2)
    assert not claim.done()
    store.advance(6)  # the second item's wait is over: the answer is whole, and the first one counted
    answer: pb.BatchGetResponse = batch.result()
    assert answer.results[0].response.record == records.record()
    assert answer.results[1].HasField("error")
    claim.result()


@pytest.mark.wire
def test_case_39_what_ended_meanwhile_is_told(store: LocalStore) -> None:
    steps = store.steps()
    steps.put_once(1)
    batch = steps.caller.start("BatchGet", both(1, 2), None)
    store.until_waiting(1)
    steps.abort(1)
    steps.put_once(2)
    answer: pb.BatchGetResponse = batch.result()
    assert [item.WhichOneof("result") for item in answer.results] == ["error", "response"]


# -- 40: fences are shared out by namespace ----------------------------------------------------------------------------


@pytest.mark.settings(tombstones=64)
def test_case_40_a_namespace_keeps_its_tombstones(store: LocalStore) -> None:
    steps = store.steps("session")
    for room in range(8):
        steps.abort(key("good", room))
    for room in range(500):
        steps.abort(key("evil", room))
    for room in range(8):
        with refused("HANDOFF_ABORTED"):
            steps.reserve(key("good", room))
    steps.reserve(key("evil", 0))  # evil's own oldest are gone
    with refused("HANDOFF_ABORTED"):
        steps.reserve(key("evil", 499))
    assert store.core.census().tombstones == 64


def test_case_40_a_namespace_keeps_its_producers(store: LocalStore) -> None:
    store.core._lifecycle._producers._capacity = 64
    steps = store.steps("session")
    steps.reserve(key("good", 1), producer=("p", 7))
    for number in range(500):
        steps.reserve(key("evil", 1), producer=(f"p{number}", 1))
    with refused("PRODUCER_RESTARTED"):
        steps.reserve(key("good", 2), producer=("p", 6))
    assert store.core.census().producers == 64


# -- 41: a batch keeps its place in the line of each namespace ---------------------------------------------------------


@pytest.mark.internals  # settings name a namespace
@pytest.mark.settings(slots=8, namespace_slots=("a=1", "b=1"))
def test_case_41_a_batch_is_not_overtaken(store: LocalStore) -> None:
    steps = store.steps()
    held = {name: steps.reserve(key(name, 1)).token for name in ("a", "b")}
    first = store.steps().start_reserve(key("a", 2), max_wait=300)
    store.until_waiting(1)
    request = pb.BatchReserveRequest(requests=[requests.reserve(key(name, 3), max_wait=300) for name in ("a", "b")])
    batch = store.steps().caller.start("BatchReserve", request, None)
    store.until_waiting(2)
    last = store.steps().start_reserve(key("a", 4), max_wait=300)
    store.until_waiting(3)
    steps.release(key("a", 1), token=held["a"])
    token = first.result().token
    steps.release(key("a", 2), token=token)
    store.until_waiting(2)
    assert not last.done()  # there is room for it in a, and the batch came before
    assert not batch.done()
    steps.release(key("b", 1), token=held["b"])
    tokens = [one.token for one in batch.result().responses]
    assert not last.done()
    steps.release(key("a", 3), token=tokens[0])
    last.result()
    assert steps.reserve(key("c", 1)).token


@pytest.mark.settings(slots=2, namespace_slots=("a=1",))
def test_case_41_who_waits_for_a_quota_holds_up_no_thread(store: LocalStore) -> None:
    steps = store.steps()
    steps.reserve(key("a", 1))
    steps.reserve(2)
    waiting = store.steps().start_reserve(key("a", 2), max_wait=300)
    store.until_waiting(1)
    done = threading.Event()

    def touch() -> None:
        store.core.abort(
            ("", 2, 0), Failure(500, "GONE", ""), b"", None, lambda _: None
        )  # a slot is free, and no room in a
        done.set()

    threading.Thread(target=touch, daemon=True).start()
    assert done.wait(PATIENCE), "the store hangs in its lock"
    assert not waiting.done()
    steps.abort(key("a", 1))
    waiting.result()


# -- 43: readers that wake together ------------------------------------------------------------------------------------


@NATIVE
def test_case_43_readers_that_wake_together_share_one_image(
    start: Start, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start(native=native, max_hidden_state_bytes=1 << 20)
    steps = store.steps()
    token = steps.reserve(1).token
    readers = [store.steps("session").start_get(1, reader=f"d{number}", consume=False) for number in range(24)]
    store.until_waiting(24)
    arena = store.core._arena
    reads: list[tuple[int, ...]] = []
    whole = arena.read

    def read(*where: int) -> bytes:
        reads.append(where)
        return bytes(whole(*where))

    monkeypatch.setattr(arena, "read", read)
    steps.put(1, token, records.full())
    assert all(reader.result().record == records.full() for reader in readers)
    assert len(reads) == 1


@pytest.mark.parametrize("consume", [False, True])
def test_case_43_the_bound_is_looked_at_before_a_record_is_copied(
    start: Start, consume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 300_000
    store = start(max_unread_bytes=limit, max_hidden_state_bytes=1 << 16)
    record = records.record(customized_info=b"x" * 4096)
    size = record.ByteSize()
    steps = store.steps()
    token = steps.reserve(1, readers=1).token
    kept: list[int] = []
    unread = store.app.gate.unread
    readers = [store.steps("session").start_get(1, reader=f"d{n}", consume=consume) for n in range(200)]
    store.until_waiting(200)
    hold_more = unread.hold_more

    def hold(call: Call, size: int) -> None:
        hold_more(call, size)
        kept.append(unread.held)

    monkeypatch.setattr(unread, "hold_more", hold)
    steps.put(1, token, record)
    outcomes: list[object] = []
    for reader in readers:
        try:
            outcomes.append(reader.result().record == record)
        except Exception as error:  # the refusal is looked at below
            outcomes.append(getattr(error, "reason", repr(error)))
    assert set(outcomes) <= {True, "TOO_MANY_WAITERS"}
    assert outcomes.count(True) * size > limit // 3
    assert max(kept) < limit + 2 * size
    assert "TOO_MANY_WAITERS" in outcomes
    eventually(lambda: unread.held == 0, "nothing is kept")


def test_case_43_hundreds_of_batches_that_wake_together_are_answered(store: LocalStore) -> None:
    """One after the other: the answer of one does not hold up, or stand within, that of another."""
    steps = store.steps()
    steps.put_once(1)
    batch = pb.BatchGetRequest(requests=[requests.get(1), requests.get(2, max_wait=300)])
    waiting = [steps.caller.start("BatchGet", batch, None) for _ in range(300)]
    store.until_waiting(300)
    steps.put_once(2)
    for each in waiting:
        answer: pb.BatchGetResponse = each.result()
        assert [item.WhichOneof("result") for item in answer.results] == ["response"] * 2


# -- 46: pages of the listing ------------------------------------------------------------------------------------------


@pytest.mark.settings(slots=64, tombstones=512)
def test_case_46_a_page_costs_the_same_wherever_it_is(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = store.steps("session")
    for room in range(20):
        steps.reserve(room)
    for room in range(100, 400):
        steps.abort(room)
    looked: list[int] = []
    lifecycle = store.core._lifecycle
    entry = lifecycle.entry

    def look(position: int) -> object:
        looked.append(position)
        return entry(position)

    monkeypatch.setattr(lifecycle, "entry", look)
    states = [admin_pb2.HANDOFF_STATE_RESERVED, admin_pb2.HANDOFF_STATE_ABORTED]
    rooms: list[int] = []
    costs: list[int] = []
    for page in pages(store, states):
        rooms += [handoff.key.room for handoff in page.handoffs]
        costs.append(len(looked))
        looked.clear()
    assert sorted(rooms) == [*range(20), *range(100, 400)]
    assert max(costs) <= 64 + 10 + 1
    assert sum(costs) <= 64 + 300 + len(costs)


@pytest.mark.wire
@pytest.mark.settings(slots=16)
def test_case_46_what_ends_between_two_pages_moves_no_other(store: LocalStore) -> None:
    steps = store.steps()
    for room in range(16):
        steps.reserve(room)
    seen: list[int] = []
    for number, page in enumerate(pages(store, [admin_pb2.HANDOFF_STATE_RESERVED], size=4)):
        seen += [handoff.key.room for handoff in page.handoffs]
        if number == 0:
            for room in seen:
                steps.abort(room)
    assert sorted(seen) == list(range(16))


def pages(
    store: LocalStore, states: list[admin_pb2.HandoffState.ValueType], size: int = 10
) -> Iterator[admin_pb2.ListHandoffsResponse]:
    """Page after page."""
    caller, token = store.caller(), ""
    while True:
        request = admin_pb2.ListHandoffsRequest(states=states, page_size=size, page_token=token)
        page: admin_pb2.ListHandoffsResponse = caller.call("ListHandoffs", request)
        yield page
        token = page.next_page_token
        if not token:
            return


# -- while the store drains --------------------------------------------------------------------------------------------


def test_a_renewal_is_granted_while_draining(store: LocalStore, kind: str) -> None:
    steps: Steps = store.steps(kind)
    token = steps.reserve(1, lease=60).token
    store.give_notice()
    store.advance(50)
    assert steps.reserve(1, lease=60).token == token
    store.advance(50)
    steps.put(1, token)
    with refused("DRAINING"):
        steps.reserve(2)
    with refused("DRAINING"):
        steps.reserve(1, owner="another")


def test_batches_are_answered_item_by_item_while_draining(store: LocalStore) -> None:
    steps = store.steps()
    token = steps.reserve(1).token
    steps.put_once(3)
    store.give_notice()
    puts = pb.BatchPutRequest(requests=[requests.put(1, token), requests.put_once(2)])
    answer: pb.BatchPutResponse = steps.caller.call("BatchPut", puts)
    assert [item.WhichOneof("result") for item in answer.results] == ["response", "error"]
    gets = pb.BatchGetRequest(requests=[requests.get(3, reader="d"), requests.get(4, max_wait=10)])
    got: pb.BatchGetResponse = steps.caller.call("BatchGet", gets)
    assert [item.WhichOneof("result") for item in got.results] == ["response", "error"]
    renewal = pb.BatchReserveRequest(requests=[requests.reserve(5), requests.reserve(6)])
    with refused("DRAINING"):
        steps.caller.call("BatchReserve", renewal)
