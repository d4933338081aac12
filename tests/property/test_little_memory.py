"""A store that remembers next to nothing: what it has forgotten may change an answer, never whose record is read."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.lifecycle import Failure, Handoff, Lifecycle, Policy, Spec, TokenMint
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.embedded import EmbeddedStore
from pd_handoff_server.store.interface import Query, Reading, Reserved

from tests.support.clock import FakeClock
from tests.support.waits import at_once

from .catalogue import LEGAL, LIMITS, Paper
from .pair import EPOCH, Ledger, counting
from .profiles import TIMEOUT
from .terms import SECOND, Key

KEYS: list[Key] = [("", room, 0) for room in range(3)]
SLOTS = 2
WAITERS = 3

keys = st.sampled_from(KEYS)
attempts = st.integers(0, 3)
recent = st.integers(0, 15)


class LittleMemory(RuleBasedStateMachine):
    """Every record that is read was published under a token of that very key and attempt; nothing grows."""

    @initialize(tombstones=st.integers(0, 2), producers=st.integers(1, 2))
    def allocate(self, tombstones: int, producers: int) -> None:
        self.tombstones, self.most_producers = tombstones, producers
        self.clock = FakeClock()
        self.arena = Arena(SLOTS, Layout(LIMITS))
        policy = Policy(
            60 * SECOND, SECOND, 100 * SECOND, 300 * SECOND, 30 * SECOND, 120 * SECOND, tombstones, producers
        )
        self.ledger = Ledger()
        mint = TokenMint(EPOCH, counting())
        self.lifecycle = Lifecycle(SLOTS, policy, self.clock, mint, self.arena, [self.ledger])
        self.store = EmbeddedStore(
            self.arena, self.lifecycle, self.clock, epoch=EPOCH, max_wait=100 * SECOND, max_waiters=WAITERS
        )
        self.granted: list[Handoff] = []
        self.published: dict[tuple[Key, int, int], bytes] = {}

    def _call(self, act: Any) -> Any:
        self.clock.advance(1e-9)
        try:
            return act()
        except Refusal as refused:
            return refused

    def _note(self, key: Key, result: Any) -> None:
        if isinstance(result, Reserved):
            self.granted.append(self.ledger.granted[result.token])
        elif isinstance(result, Reading):
            assert result.image == self.published[key, result.attempt, result.reserved_wall]

    @rule(
        key=keys,
        owner=st.sampled_from("ab"),
        attempt=attempts,
        producer=st.none() | st.tuples(st.sampled_from("pqrs"), st.integers(1, 3)),
        wait=st.sampled_from([0, SECOND]),
    )
    def reserve(self, key: Key, owner: str, attempt: int, producer: tuple[str, int] | None, wait: int) -> None:
        spec = Spec(key, owner, attempt, None, 1, producer)
        self._note(key, self._call(lambda: self.store.reserve(spec, wait, partial(self._note, key))))

    @precondition(lambda self: self.granted)
    @rule(which=recent, paper=st.sampled_from(LEGAL))
    def put(self, which: int, paper: Paper) -> None:
        handoff = self.granted[-1 - which % len(self.granted)]
        place = (handoff.key, handoff.attempt, handoff.reserved_wall)
        self.published.setdefault(place, paper.image)  # before: those who wait read it within the call
        first = self.published[place]
        result = self._call(lambda: self.store.put(handoff.key, handoff.token, paper.message, at_once))
        assert isinstance(result, Refusal) or paper.image == first, "another record passed for what was published"

    @rule(key=keys, attempt=attempts, reader=st.sampled_from("rs"), wait=st.sampled_from([0, SECOND]))
    def get(self, key: Key, attempt: int, reader: str, wait: int) -> None:
        query, done = Query(key, attempt, reader, True), partial(self._note, key)
        self._note(key, self._call(lambda: self.store.get(query, wait, done)))

    @rule(key=keys, attempt=st.none() | attempts)
    def abort(self, key: Key, attempt: int | None) -> None:
        self._call(lambda: self.store.abort(key, Failure(400, "X", "x"), b"", attempt, at_once))

    @precondition(lambda self: self.granted)
    @rule(which=recent)
    def release(self, which: int) -> None:
        handoff = self.granted[-1 - which % len(self.granted)]
        self._call(lambda: self.store.release(handoff.key, handoff.token, "", at_once))

    @rule(seconds=st.sampled_from([0.5, 2.0, 31.0, 61.0, 121.0, 1e7]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.tick()

    @invariant()
    def nothing_grows(self) -> None:
        lifecycle = self.lifecycle
        live = {handoff.slot: handoff for handoff in lifecycle.handoffs()}
        assert live == self.ledger.holders
        assert lifecycle.slots.free + len(live) == SLOTS
        assert len(lifecycle._tombstones) <= self.tombstones
        assert len(list(lifecycle.producers())) <= self.most_producers
        assert self.store.waiting <= WAITERS
        assert lifecycle.touched == []
        assert len(lifecycle._deadlines) <= 2 * SLOTS + 1024

    def teardown(self) -> None:
        """All comes back, and nothing is left."""
        if not hasattr(self, "store"):
            return
        self.store.drain()
        for _ in range(2):  # once for what is live, once for the memory of it
            self.clock.advance(1e7)
            self.store.tick()
        assert self.store.facts().slots_free == SLOTS
        assert self.store.waiting == 0
        assert not list(self.lifecycle.tombstones())
        assert not self.lifecycle._tombstones._by_key
        assert not self.lifecycle._tombstones._by_token
        assert not self.lifecycle._tombstones._former
        assert not self.lifecycle._reserved_by


TestLittleMemory = pytest.mark.timeout(TIMEOUT)(LittleMemory.TestCase)
