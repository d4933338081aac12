"""Pages of the heap as the rules count them, beside those that the heap has given."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.heap import Heap
from pd_handoff_server.arena.layout import WIDTHS, HeapShape, Layout, Limits
from pd_handoff_server.lifecycle import Failure, Lifecycle, Pages, Policy, Quotas, Spec, TokenMint
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.embedded import EmbeddedStore
from pd_handoff_server.store.interface import Query, Reading, Reserved

from tests.support.clock import FakeClock
from tests.support.records import with_attachments

SECOND = 1_000_000_000
PAGE = 4096
TOTAL = 12
SHAPE = HeapShape(TOTAL, PAGE)
LIMITS = Limits(attachment_bytes=SHAPE.total)


class Store:
    """An embedded store with a heap of 12 pages, and everything that was completed."""

    def __init__(self, slots: int = 6, **quotas: int) -> None:
        self.clock = FakeClock()
        self.heap = Heap(SHAPE)
        self.arena = Arena(slots, Layout(LIMITS), heap=self.heap)
        policy = Policy(60 * SECOND, SECOND, 100 * SECOND, 300 * SECOND, 30 * SECOND, 120 * SECOND, 100)
        pages = Pages(SHAPE.pages, SHAPE.page_bytes)
        self.rules = Lifecycle(
            slots, policy, self.clock, TokenMint("ab" * 8), self.arena, quotas=Quotas(quotas), pages=pages
        )
        self.core = EmbeddedStore(
            self.arena, self.rules, self.clock, epoch="ab" * 8, max_wait=600 * SECOND, max_waiters=1000
        )

    def spec(self, room: int, pages: int = 0, namespace: str = "", owner: str = "o") -> Spec:
        """A Reserve that declares so many pages."""
        widths = (0,) * (len(WIDTHS) - 1) + (pages * PAGE,)
        return Spec((namespace, room, 0), owner, widths=widths)

    def reserve(self, *args: Any, wait: int = 0, told: list[Any] | None = None, **more: Any) -> Any:
        """A Reserve; what it is answered later goes to `told`."""
        return self.core.reserve(self.spec(*args, **more), wait, [].append if told is None else told.append)

    def check(self) -> None:
        """Hold the counts against what hand-offs hold, and what the heap has given."""
        pages, live = self.rules.pages, list(self.rules.handoffs())
        assert pages.free == TOTAL - sum(handoff.pages for handoff in live)
        assert pages.lent == sum(handoff.pages for handoff in live if handoff.state.value == "CONSUMED")
        used = 0
        for handoff in live:
            written = SHAPE.pages_for(self.heap.size(handoff.slot))
            assert written == (0 if handoff.state.value == "RESERVED" else handoff.pages)
            used += written
        assert self.heap.free == TOTAL - used


def record(pages: int, seed: int = 1) -> rp.HandoffRecord:
    """A record whose attachment takes so many pages; none for 0."""
    if not pages:
        return with_attachments()
    return with_attachments(x=random.Random(seed).randbytes(pages * PAGE - 60))


def refused(result: Any, reason: str = "ARENA_FULL") -> None:
    assert isinstance(result, Refusal)
    assert result.reason == reason


@pytest.mark.parametrize("seed", range(8))
def test_the_counts_agree_whatever_happens(seed: int) -> None:
    source = random.Random(seed)
    store = Store(slots=6, a=3)
    tokens: dict[tuple[str, int], bytes] = {}
    parked: list[Any] = []

    def act() -> None:
        namespace, room = source.choice("ab"), source.randrange(6)
        key, wait = (namespace, room, 0), source.choice((0, 5 * SECOND))
        told: list[Any] = []
        chance = source.randrange(9)
        if chance < 3:
            count = source.randrange(6)
            answer = store.reserve(room, count, namespace, f"o{source.randrange(2)}", wait=wait, told=told)
            if isinstance(answer, Reserved):
                tokens[namespace, room] = answer.token
            else:
                parked.append(answer)
        elif chance == 3:
            store.core.put(key, tokens.get((namespace, room), b"x"), record(source.randrange(5), seed), told.append)
        elif chance == 4:
            spec = store.spec(room, source.randrange(4), namespace)
            store.core.put_reserving(spec, record(source.randrange(5), seed), wait, told.append)
        elif chance == 5:
            found = store.core.get(Query(key, 0, "r", True), 0, told.append)
            assert isinstance(found, Reading)
            rp.HandoffRecord.FromString(found.image)
        elif chance == 6:
            specs = [store.spec(room + n, source.randrange(4), namespace) for n in range(2)]
            store.core.reserve_all(specs, wait, told.append)
        elif chance == 7:
            store.core.abort(key, Failure(500, "X", ""), b"", None, told.append)
        else:
            store.clock.advance(source.choice((1, 20, 70)))
            store.core.tick()

    for _ in range(1500):
        with contextlib.suppress(Refusal):
            act()
        store.check()
        if parked and source.random() < 0.1:
            parked.pop().cancel()
    store.clock.advance(10_000)
    store.core.tick()
    store.check()
    assert (store.rules.pages.free, store.heap.free) == (TOTAL, TOTAL)
    assert not store.heap.storage.any()


def test_a_renewal_takes_what_it_declares_beyond_what_it_holds_and_gives_nothing_back() -> None:
    store = Store()
    store.reserve(1, 4)
    store.reserve(1, 6)
    assert store.rules.pages.free == 6
    store.reserve(1, 2)
    store.reserve(1)
    assert store.rules.pages.free == 6
    store.reserve(2, 5)
    with pytest.raises(Refusal):
        store.reserve(1, 8)
    store.check()
    store.reserve(1, 7)
    assert store.rules.pages.free == 0


def test_consumed_ones_give_way_oldest_first_and_only_those_that_hold_pages() -> None:
    store = Store(slots=8)
    for room, count in enumerate((0, 4, 4, 4)):
        store.core.put_reserving(store.spec(room), record(count), 0, [].append)
        store.core.get(Query(("", room, 0), 0, "r", True), 0, [].append)
    store.reserve(9, 5)
    assert [handoff.key[1] for handoff in store.rules.handoffs()] == [0, 3, 9]
    store.check()


def test_a_quota_holds_up_nobody_in_the_line_for_the_heap() -> None:
    store, told = Store(a=1), [[], [], []]  # type: ignore[var-annotated]
    store.reserve(1, 6, "a")
    store.reserve(2, 6, "b")
    store.reserve(3, 3, "a", wait=60 * SECOND, told=told[0])
    store.reserve(4, 3, "b", wait=60 * SECOND, told=told[1])
    store.core.abort(("b", 2, 0), Failure(500, "X", ""), b"", None, [].append)
    assert not told[0]  # its namespace is full
    assert isinstance(told[1][0], Reserved)
    store.core.abort(("a", 1, 0), Failure(500, "X", ""), b"", None, [].append)
    assert isinstance(told[0][0], Reserved)
    store.check()


def test_whoever_gives_up_in_the_line_is_told_of_the_heap_and_lets_the_next_one_go() -> None:
    store, told = Store(), [[], []]  # type: ignore[var-annotated]
    store.reserve(1, 8)
    store.reserve(2, 10, wait=5 * SECOND, told=told[0])
    store.reserve(3, 2, wait=60 * SECOND, told=told[1])
    store.clock.advance(6)
    store.core.tick()
    refused(told[0][0])
    assert told[0][0].metadata["heap_in_use"] == str(8 * PAGE)
    assert isinstance(told[1][0], Reserved)
    store.check()


def test_damage_of_pages_ends_the_hand_off() -> None:
    store = Store()
    store.core.put_reserving(store.spec(1), record(3), 0, [].append)
    where = bytes(store.heap.storage.reshape(-1).numpy()).find(record(3).attachments[0].data[5000:5050])
    assert where >= 0
    store.heap.storage.reshape(-1)[where] ^= 1
    query = Query(("", 1, 0), 0, "r", True)
    assert isinstance(store.core.get(query._replace(attachments=frozenset()), 0, [].append), Reading)
    with pytest.raises(Refusal) as caught:
        store.core.get(query, 0, [].append)
    refused(caught.value, "HANDOFF_ABORTED")
    store.check()
    assert store.rules.pages.free == TOTAL
