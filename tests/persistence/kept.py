"""A store over an arena file, small enough to look at whole: what it knows as plain values, and its file as bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pd_handoff_server.arena.arena import DamagedRowError
from pd_handoff_server.arena.layout import Layout, Limits
from pd_handoff_server.lifecycle import Handoff, Lifecycle, Policy, State, TokenMint, Tombstone
from pd_handoff_server.persistence.persistence import Persistence
from pd_handoff_server.store.embedded import EmbeddedStore

from tests.support.clock import FakeClock

LONG = os.environ.get("PD_HANDOFF_TEST_PROFILE") == "long"
SECOND = 1_000_000_000
BOOT = "11111111-2222-3333-4444-555555555555"
LIMITS = Limits(
    tokens=2,
    top_logprobs=5,
    token_ids_logprobs=3,
    sampling_mask_tokens=2,
    speculative_topk=2,
    dsa_topk_indices=3,
    customized_info_bytes=64,
    hidden_state_bytes=16,
)


def policy(**changes: int) -> Policy:
    """Ordinary times, and few tombstones."""
    settings = {
        "lease_default": 60 * SECOND,
        "lease_min": SECOND,
        "lease_max": 3600 * SECOND,
        "retention": 300 * SECOND,
        "consumed_grace": 30 * SECOND,
        "tombstone_time": 120 * SECOND,
        "tombstones": 50,
        "producers": 50,
        **changes,
    }
    return Policy(**settings)


class Kept:
    """One process's worth of a store; `restart` is the next one, after a SIGKILL."""

    def __init__(
        self,
        path: Path,
        *,
        slots: int = 3,
        limits: Limits = LIMITS,
        rules: Policy | None = None,
        clock: FakeClock | None = None,
        boot: str = BOOT,
        mint: TokenMint | None = None,
    ) -> None:
        self.path = path
        self.clock = clock or FakeClock()
        self._settings: dict[str, Any] = {"slots": slots, "limits": limits, "rules": rules}
        rules = rules or policy()
        self.complaints: list[str] = []
        self.persistence = Persistence(
            str(path), Layout(limits), slots, rules, boot=boot, complain=self.complaints.append
        )
        self.arena = self.persistence.arena
        self.lifecycle = Lifecycle(
            slots,
            rules,
            self.clock,
            mint or TokenMint(self.persistence.epoch),
            self.arena,
            [self.persistence.journal],
        )
        try:
            self.report = self.persistence.adopt(self.lifecycle, self.clock)
        except BaseException:
            self.persistence.close()
            raise
        self.store = EmbeddedStore(
            self.arena,
            self.lifecycle,
            self.clock,
            epoch=self.persistence.epoch,
            max_wait=600 * SECOND,
            max_waiters=100,
        )
        self.store.commit = self.persistence.journal.commit
        self.closed = False

    def close(self) -> None:
        """Let go of the file, as the death of the process would."""
        if not self.closed:
            self.closed = True
            self.persistence.close()

    def restart(self, path: Path | None = None, **changes: Any) -> Kept:
        """What a new process finds: in this file, or in a copy of it."""
        if path is None:
            self.close()
        return Kept(path or self.path, **{**self._settings, "clock": self.clock, **changes})

    @property
    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The whole file, as it is now."""
        return np.frombuffer(self.persistence._file.memory, np.uint8)

    def state(self) -> dict[str, Any]:
        """All that must outlive the process, as plain values."""
        lifecycle = self.lifecycle
        return {
            "epoch": self.persistence.epoch,
            "live": [self._live(handoff) for handoff in lifecycle.handoffs()],
            "consumed": list(lifecycle._consumed),
            "tombstones": [_tombstone(tombstone) for tombstone in lifecycle.tombstones()],
            "producers": sorted(lifecycle.producers()),
            "generations": list(lifecycle.slots.generations),
            "quarantined": sorted(lifecycle.slots.quarantined),
            "free": lifecycle.slots.free,
        }

    def _live(self, handoff: Handoff) -> dict[str, Any]:
        plain = {name: getattr(handoff, name) for name in Handoff.__slots__ if name not in ("answer", "queued_at")}
        plain["readers"] = sorted(handoff.readers)
        plain["image"] = None
        if handoff.state is not State.RESERVED:
            try:
                plain["image"] = self.arena.read(handoff.slot, handoff.generation)
            except DamagedRowError:
                plain["image"] = "damaged"  # as no successor shows it
        return plain

    def residue(self) -> list[int]:
        """Slots without a record whose row holds anything but their generation."""
        used = {handoff.slot for handoff in self.lifecycle.handoffs() if handoff.state is not State.RESERVED}
        return [slot for slot in range(self.arena.slots) if slot not in used and self.arena.storage[slot, 8:].any()]


def _tombstone(tombstone: Tombstone) -> dict[str, Any]:
    return {name: getattr(tombstone, name) for name in Tombstone.__slots__ if name not in ("live", "place")}


def ignore(result: object) -> None:
    """A completion nobody waits for."""
    del result


@contextmanager
def memory_directory(fallback: Path) -> Iterator[Path]:
    """A directory in memory, where the machine has one that can be written."""
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() else fallback
    directory = base / f"pd-handoff-test-{fallback.name}-{id(fallback):x}"
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
