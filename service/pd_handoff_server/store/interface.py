"""What a transport needs of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pd_handoff.v1 import record_pb2

from pd_handoff_server.arena.draft import Draft
from pd_handoff_server.arena.layout import Limits
from pd_handoff_server.lifecycle.model import Failure, Handoff, Key, Policy, Spec, State, Tombstone

Done = Callable[[Any], None]
"""Called at most once, from any thread, with a result or with the Refusal that takes its place. Must not raise."""


Content = record_pb2.HandoffRecord | Draft
"""A record to be put: as a message, whose form and widths are yet to be looked at, or measured already."""

LIVE_STATES = frozenset(state.value for state in State)


def state_word(entry: Handoff | Tombstone) -> str:
    """RESERVED, PUBLISHED, CONSUMED, ABORTED or EXPIRED."""
    return entry.state.value if isinstance(entry, Handoff) else entry.outcome.state


class Parked(Protocol):
    """A call that waits in the store; its `done` will be called unless it is cancelled first."""

    def cancel(self) -> bool:
        """Give up; True when `done` has not been and will not be called. Nothing is marked."""


class Origin(Protocol):
    """Where a call comes from; asked only when it has to wait.

    Attributes:
        sharer: whom the places of waiting calls are shared out among: a caller's name, or its host.
    """

    @property
    def sharer(self) -> str:
        """See above."""

    def take_weight(self) -> int:
        """Bytes that the call holds while it waits; 0 from the second time on, for the further items of a batch."""


class Reading:
    """A record that was read: the packed record, and the hand-off it belongs to (no longer to be changed)."""

    __slots__ = ("handoff", "image")

    def __init__(self, image: bytes, handoff: Handoff) -> None:
        self.image = image
        self.handoff = handoff


@dataclass(frozen=True, slots=True)
class Facts:
    """What a store can say of itself; times in nanoseconds, sizes in bytes."""

    limits: Limits
    policy: Policy
    slots_total: int
    slots_free: int
    row_bytes: int
    epoch: str
    max_wait: int
    max_waiters: int


@dataclass(frozen=True, slots=True)
class Sight:
    """One hand-off for people to look at: live or ended, its age and time left in nanoseconds, and its widths."""

    entry: Handoff | Tombstone
    age: int
    expires_in: int
    waiting: int
    widths: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Census:
    """How much of what a store holds at a moment; slots by state add up to all of them."""

    free: int
    reserved: int
    published: int
    consumed: int
    quarantined: int
    waiting_readers: int
    waiting_claimants: int
    waiting_bytes: int
    tombstones: int
    producers: int


class Store(Protocol):
    """Calls of the store. All may be made from any thread; all raise Refusal, having changed nothing.

    A call with `max_wait` (nanoseconds, 0 for none) and `done` returns its result at once where it can, and else a
    Parked; then `done` is called later, also when the wait runs out. Places to wait are shared out by `origin`.
    """

    def facts(self) -> Facts:
        """Limits and fill, at no cost."""

    def check_widths(self, widths: tuple[int, ...]) -> None:
        """Raises Refusal TOP_LOGPROBS_OVERFLOW or FIELD_OVERFLOW when these widths can never fit."""

    def census(self) -> Census:
        """Counts, at the cost of a lock."""

    def together(self) -> AbstractContextManager[None]:
        """For several calls of this thread in a row: each as alone and in order, but one lock, one commit for all.

        Other threads wait meanwhile, and whoever is answered by one of these calls is told when the last has been made.
        What the calls return may be told to nobody before that, since it is not kept before.
        """

    def reserve(self, spec: Spec, max_wait: int, done: Done, origin: Origin | None = None) -> Handoff | Parked:
        """Claim a slot, or renew."""

    def reserve_all(
        self, specs: Sequence[Spec], max_wait: int, done: Done, origin: Origin | None = None
    ) -> list[Handoff] | Parked:
        """Claim a slot for each, or for none. Keys must differ."""

    def put(self, key: Key, token: bytes, record: Content) -> int:
        """Publish; returns the wall time of publication in nanoseconds."""

    def put_reserving(
        self, spec: Spec, record: Content, max_wait: int, done: Done, origin: Origin | None = None
    ) -> int | Parked:
        """Reserve and publish at once; as `put`."""

    def get(
        self,
        key: Key,
        attempt: int,
        reader_id: str,
        consume: bool,
        max_wait: int,
        done: Done,
        origin: Origin | None = None,
    ) -> Reading | Parked:
        """Read, and with `consume` count the reader."""

    def release(self, key: Key, token: bytes, reader_id: str) -> None:
        """Give a claim back: by token, or else by reader."""

    def abort(self, key: Key, failure: Failure, token: bytes, attempt: int | None) -> bool:
        """End an attempt; True when this call did."""

    def look(
        self, namespaces: frozenset[str] | None, states: frozenset[str], after: int, count: int
    ) -> tuple[list[Sight], int]:
        """Up to `count` hand-offs of these namespaces (None: all) in these states, from position `after` on.

        Also where to go on; 0: nowhere.
        """

    def look_at(self, key: Key, contents: bool) -> tuple[Sight, bytes | None]:
        """The newest attempt of one key, with its packed record on request."""

    def drain(self) -> None:
        """Take nothing new and wake whoever waits. Does not return."""

    def close(self) -> None:
        """Let go of what outlives the process; no call may follow."""

    def tick(self) -> int | None:
        """Do what is due; returns the monotonic moment in nanoseconds at which there may be more, if any."""
