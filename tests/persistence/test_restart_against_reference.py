"""The property tests' model beside a store that is killed again and again: nothing but waiters is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.lifecycle import Lifecycle, Policy, TokenMint
from pd_handoff_server.persistence.persistence import Persistence
from pd_handoff_server.store.embedded import EmbeddedStore

from tests.property.catalogue import LIMITS
from tests.property.pair import Pair
from tests.property.test_store_against_reference import StoreAgainstReference

from .kept import BOOT, LONG


class KilledPair(Pair):
    """A pair whose store lies over a file."""

    def __init__(self, slots: int, path: Path) -> None:
        super().__init__(slots)
        self.path = path
        self.persistence: Persistence | None = None
        self._rules: Policy = self.lifecycle.policy
        self._begin_process(slots)

    def _begin_process(self, slots: int) -> None:
        layout = Layout(LIMITS)
        self.persistence = kept = Persistence(str(self.path), layout, slots, self._rules, boot=BOOT)
        self.arena = kept.arena
        observers = [kept.journal, self.ledger]
        self.lifecycle = Lifecycle(slots, self._rules, self.clock, TokenMint(kept.epoch), self.arena, observers)
        report = kept.adopt(self.lifecycle, self.clock)
        assert not report.damaged
        self.store = EmbeddedStore(
            self.arena,
            self.lifecycle,
            self.clock,
            epoch=kept.epoch,
            max_wait=self.times.max_wait,
            max_waiters=self.model.max_waiters,
        )
        self.store.commit = kept.journal.commit

    def kill(self) -> None:
        """The process dies between two calls, and the next one takes over; whoever waited is cut off."""
        assert self.persistence is not None
        self.persistence.close()
        self.model.parked.clear()
        self.handles.clear()
        epochs = self.model.epochs
        self.model.epochs = {instance: (epoch, self.clock.monotonic()) for instance, (epoch, _) in epochs.items()}
        self._begin_process(self.lifecycle.slots.total)
        self.ledger.holders = {handoff.slot: handoff for handoff in self.lifecycle.handoffs()}
        self.check()

    def close(self) -> None:
        """Let go of the file."""
        if self.persistence is not None:
            self.persistence.close()


class StoreAcrossRestarts(StoreAgainstReference):
    """All the rules of the plain store, and death at any time."""

    def __init__(self) -> None:
        super().__init__()
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._directory = tempfile.TemporaryDirectory(prefix="pd-handoff-test-", dir=base)
        self.killed: Any = None

    @initialize(slots=st.sampled_from([2, 2, 3, 4]))
    def allocate(self, slots: int) -> None:
        self.pair = self.killed = KilledPair(slots, Path(self._directory.name) / "arena")

    @rule()
    def kill(self) -> None:
        self.killed.kill()

    @rule(seconds=st.sampled_from([0.5, 3.0, 61.0]))
    def kill_and_wait(self, seconds: float) -> None:
        self.pair.clock.advance(seconds)
        self.killed.kill()

    def teardown(self) -> None:
        try:
            if self.killed is not None:
                self.killed.kill()
                super().teardown()
        finally:
            if self.killed is not None:
                self.killed.close()
            self._directory.cleanup()


TestStoreAcrossRestarts = StoreAcrossRestarts.TestCase
TestStoreAcrossRestarts.settings = settings(
    max_examples=2_000 if LONG else 60, stateful_step_count=60 if LONG else 40, deadline=None
)
