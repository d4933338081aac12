"""Calls made together: what each alone would have come to, under one lock and with one commit."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.lifecycle import Handoff, Lifecycle, Policy, Quotas, Spec, TokenMint
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.embedded import EmbeddedStore
from pd_handoff_server.store.interface import Published, Query, Reading, Reserved

from tests.support import records as make
from tests.support.clock import FakeClock
from tests.support.waits import PATIENCE, at_once

from .strategies import SMALL

SECOND = 1_000_000_000
Key = tuple[str, int, int]


class Store:
    """A small store, who was told what, and how often it was committed."""

    def __init__(self, slots: int = 2, quotas: dict[str, int] | None = None) -> None:
        self.clock = FakeClock()
        policy = Policy(60 * SECOND, SECOND, 100 * SECOND, 300 * SECOND, 30 * SECOND, 120 * SECOND, 5)
        mint = TokenMint("ab" * 8, bytes)
        arena = Arena(slots, Layout(SMALL))
        self.lifecycle = Lifecycle(slots, policy, self.clock, mint, arena, (), Quotas(quotas or {}))
        self.core = EmbeddedStore(
            arena, self.lifecycle, self.clock, epoch="ab" * 8, max_wait=600 * SECOND, max_waiters=6
        )
        self.commits = 0
        self.core.commit = self._commit
        self.told: list[Any] = []

    def _commit(self) -> None:
        self.commits += 1

    def get(self, key: Key, wait: int = 600 * SECOND, reader: str = "r") -> Any:
        """A consuming Get."""
        return self.core.get(Query(key, 0, reader, True), wait, lambda result: self.told.append((key, plain(result))))

    def put(self, key: Key, owner: str = "o", wait: int = 0, attempt: int = 0, ids: int = 1) -> Any:
        """A Put that reserves."""
        spec = Spec(key, owner, attempt)
        record = make.numbered(ids)
        return self.core.put_reserving(spec, record, wait, lambda result: self.told.append((key, plain(result))))

    def reserve(self, key: Key, owner: str = "o", wait: int = 0) -> Any:
        """A Reserve."""
        return self.core.reserve(Spec(key, owner), wait, lambda result: self.told.append((key, plain(result))))

    def release(self, key: Key) -> int:
        """A reader gives its claim up."""
        self.core.release(key, b"", "r", at_once)
        return 0


def plain(result: Any) -> Any:
    """A result as something to compare."""
    if isinstance(result, Refusal):
        return result.reason, sorted(result.metadata.items())
    if isinstance(result, Reading):
        return "read", result.image, result.attempt
    if isinstance(result, Reserved | Published | int):
        return result
    if isinstance(result, Handoff):
        return "live", result.key, result.owner, result.slot, result.generation
    return "parked"


def outcome(act: Any) -> Any:
    """What a call comes to, as something to compare."""
    try:
        return plain(act())
    except Refusal as refused:
        return plain(refused)


KEYS: list[Key] = [(namespace, room, 0) for namespace in ("", "n") for room in range(2)]
keys = st.sampled_from(KEYS)
waits = st.sampled_from([0, 600 * SECOND])
names = st.sampled_from(["o", "p"])
calls = st.one_of(
    st.tuples(st.just("get"), keys, waits, names),
    st.tuples(st.just("put"), keys, names, waits, st.integers(0, 1), st.integers(1, 2)),
    st.tuples(st.just("reserve"), keys, names, waits),
    st.tuples(st.just("release"), keys),
)


def make_call(store: Store, call: tuple[Any, ...]) -> Any:
    """One of `calls`."""
    name, *parts = call
    return outcome(lambda: getattr(store, name)(*parts))


def state(store: Store) -> Any:
    """All that can be seen of a store."""
    live = [(plain(one), one.state, sorted(one.readers)) for one in store.lifecycle.handoffs()]
    ended = [(one.key, one.attempt, one.outcome, one.owner) for one in store.lifecycle.tombstones()]
    return live, ended, store.core.census(), store.lifecycle.quotas.held


@settings(deadline=None)
@given(st.lists(calls, max_size=6), st.lists(calls, min_size=1, max_size=8))
def test_each_call_comes_to_what_it_would_alone(before: list[Any], batch: list[Any]) -> None:
    found = []
    for together in (False, True):
        store = Store(2, {"n": 1})
        results = [make_call(store, call) for call in before]
        with store.core.together() if together else nullcontext():
            results += [make_call(store, call) for call in batch]
        store.core.tick()
        found.append((results, store.told, state(store)))
    assert found[0] == found[1]


def test_they_are_committed_once() -> None:
    store = Store(8)
    with store.core.together():
        for room in range(5):
            store.put(("", room, 0))
        assert store.commits == 0
    assert store.commits == 1
    store.put(("", 6, 0))
    assert store.commits == 2


def test_whoever_waited_is_told_after_the_commit_and_outside_the_lock() -> None:
    store = Store(8)
    seen: list[tuple[int, bool]] = []

    def told(result: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append((store.commits, store.core.census().free == 6)))
        thread.start()
        thread.join(PATIENCE)  # it needs the lock

    for room in range(2):
        store.core.get(Query(("", room, 0), 0, "r", True), 600 * SECOND, told)
    before = store.commits
    with store.core.together():
        store.put(("", 0, 0))
        store.put(("", 1, 0))
        assert seen == []
    assert seen == [(before + 1, True)] * 2


def test_a_call_refused_among_them_changes_nothing_for_the_others() -> None:
    store = Store(2)
    with store.core.together():
        assert isinstance(outcome(lambda: store.put(("", 0, 0))), Published)
        assert outcome(lambda: store.put(("", 0, 0), ids=2))[0] == "RECORD_IMMUTABLE"
        assert outcome(lambda: store.get(("", 0, 0), 0))[0] == "read"


def test_the_lock_is_given_back_whatever_happens() -> None:
    store = Store(2)

    def fail() -> None:
        with store.core.together():
            store.put(("", 0, 0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.commits == 1
    free: list[int] = []
    thread = threading.Thread(target=lambda: free.append(store.core.census().free))
    thread.start()
    thread.join(PATIENCE)
    assert free == [1]


def test_other_threads_stay_outside_until_the_last() -> None:
    store = Store(2)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(outcome(lambda: store.get(("", 1, 0), 0))))
    with store.core.together():
        store.put(("", 0, 0))
        assert not _free_for_others(store)
        thread.start()
        store.put(("", 1, 0))
    thread.join(PATIENCE)
    assert [result[0] for result in results] == ["read"]
    assert _free_for_others(store)


def _free_for_others(store: Store) -> bool:
    found: list[bool] = []

    def look() -> None:
        found.append(store.core._lock.acquire(blocking=False))
        if found[0]:
            store.core._lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(PATIENCE)
    return found[0]


def test_together_within_together_ends_with_the_outer_one() -> None:
    store = Store(2)
    with store.core.together():
        with store.core.together():
            store.put(("", 0, 0))
        assert store.commits == 0
        assert not _free_for_others(store)
    assert store.commits == 1
    assert _free_for_others(store)


def test_nobody_is_told_of_a_change_of_another_thread_before_that_is_committed() -> None:
    store = Store(4)
    committing, may_go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow_commit() -> None:
        committing.set()
        assert may_go_on.wait(PATIENCE)

    def first(result: Any) -> None:
        store.core.commit = slow_commit
        threads.append(threading.Thread(target=lambda: store.put(("", 1, 0))))
        threads[0].start()
        assert committing.wait(PATIENCE)

    store.core.get(Query(("", 0, 0), 0, "r", True), 600 * SECOND, first)
    store.get(("", 1, 0))
    store.put(("", 0, 0))  # tells `first`, during which another thread answers the other reader
    assert store.told == []
    may_go_on.set()
    threads[0].join(PATIENCE)
    assert [key for key, _ in store.told] == [("", 1, 0)]
