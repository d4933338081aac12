"""What the rules are about: hand-offs, their outcomes, and those who watch."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

Key = tuple[str, int, int]
"""(namespace, room, sample)."""


class State(enum.Enum):
    """Where a live hand-off is in its life."""

    RESERVED = "RESERVED"
    PUBLISHED = "PUBLISHED"
    CONSUMED = "CONSUMED"


RESERVED: Final = State.RESERVED
PUBLISHED: Final = State.PUBLISHED
CONSUMED: Final = State.CONSUMED
"""By these names where each call looks: to look a member up in its class takes ten times as long."""


class Outcome(enum.Enum):
    """How a hand-off ended."""

    ABORTED = "ABORTED"
    EXPIRED = "EXPIRED"
    RESTARTED = "RESTARTED"
    COMPLETED = "COMPLETED"

    @property
    def state(self) -> str:
        """The word for it in error metadata: ABORTED, EXPIRED or CONSUMED."""
        return _STATE_WORDS.get(self.value, self.value)


_STATE_WORDS = {"RESTARTED": "ABORTED", "COMPLETED": "CONSUMED"}


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, for a gateway to pass on."""

    http_status: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The times and numbers that bound a hand-off's life; times in nanoseconds."""

    lease_default: int
    lease_min: int
    lease_max: int
    retention: int
    consumed_grace: int
    tombstone_time: int
    tombstones: int
    producers: int = 65_536

    @property
    def producer_time(self) -> int:
        """How long a producer is remembered that reserves nothing. By then every lease that it was granted is over, and
        what became of its hand-offs' reservations is forgotten as well."""
        return max(self.lease_max, self.tombstone_time)

    def grant(self, lease: int | None) -> int:
        """The lease that is granted when this one is asked for."""
        if lease is None:
            return self.lease_default
        return min(max(lease, self.lease_min), self.lease_max)


@dataclass(slots=True, unsafe_hash=True)  # never changed; a frozen one takes four times as long to make
class Spec:
    """What a Reserve asks for, already checked for form.

    `lease` is in nanoseconds, None for the default. `widths` is carried for display only. `producer` is (instance id,
    epoch). `request_digest` is empty when the caller stated none. `pages` are those of the heap that the record will
    need, as far as it is known.
    """

    key: Key
    owner: str
    attempt: int = 0
    lease: int | None = None
    expected_readers: int = 1
    producer: tuple[str, int] | None = None
    widths: Any = None
    request_digest: bytes = b""
    pages: int = 0


class Handoff:
    """A live hand-off: it holds a slot, and perhaps pages of the heap."""

    __slots__ = (
        "attempt",
        "deadline",
        "expected_readers",
        "generation",
        "key",
        "lease",
        "owner",
        "pages",
        "producer",
        "published_mono",
        "published_wall",
        "queued_at",
        "readers",
        "request_digest",
        "reserved_mono",
        "reserved_wall",
        "slot",
        "state",
        "token",
        "widths",
    )

    def __init__(self, spec: Spec, slot: int, generation: int, token: bytes, lease: int, mono: int, wall: int) -> None:
        self.key = spec.key
        self.attempt = spec.attempt
        self.owner = spec.owner
        self.producer = spec.producer
        self.expected_readers = spec.expected_readers
        self.widths = spec.widths
        self.request_digest = spec.request_digest
        self.pages = spec.pages
        self.slot = slot
        self.generation = generation
        self.token = token
        self.lease = lease
        self.reserved_mono = mono
        self.reserved_wall = wall
        self.published_mono = 0
        self.published_wall = 0
        self.state = RESERVED
        self.readers: set[bytes] = set()
        self.deadline: int | None = mono + lease
        self.queued_at: int | None = None


@dataclass(slots=True, eq=False)
class Tombstone:
    """The outcome of a hand-off that has ended; it holds no slot.

    `token` and `owner` are empty for an Abort that came before the Reserve. `digest` and `published_wall` are set when
    a record had been published. `deadline` is the monotonic moment at which it is forgotten. `place` is where it stands
    among those that are remembered.
    """

    key: Key
    attempt: int
    outcome: Outcome
    deadline: int
    ended_mono: int
    failure: Failure | None = None
    owner: str = ""
    token: bytes = b""
    producer: tuple[str, int] | None = None
    digest: bytes | None = None
    published_wall: int = 0
    reserved_wall: int = 0
    place: int = -1


class Rows(Protocol):
    """What the rules need of the memory that holds the records."""

    def digest(self, slot: int) -> bytes:
        """A collision-resistant digest of the record in this slot."""

    def scrub(self, slot: int, generation: int) -> None:
        """Leave nothing of the former owner; `generation` is the one that the next owner will have."""


class Observer:
    """Told of what happened, after it happened and while the store is locked: be quick, and call nothing back.

    Metrics, events and the persistent journal are observers. Every method does nothing by default.
    """

    def reserved(self, handoff: Handoff) -> None:
        """A slot was handed out."""

    def renewed(self, handoff: Handoff) -> None:
        """The lease was renewed."""

    def published(self, handoff: Handoff) -> None:
        """The record can be read."""

    def consumed(self, handoff: Handoff, reader: bytes, *, again: bool) -> None:
        """A reader consumed the record; `again` when it, or all expected readers, had done so before."""

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """A live hand-off gave its slot back; without a tombstone it was superseded by a higher attempt."""

    def buried(self, tombstone: Tombstone) -> None:
        """An outcome is remembered from now on (after `ended`, or on its own for an Abort before Reserve)."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """An outcome is no longer remembered."""

    def producer_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """A producer's epoch was raised."""

    def producer_forgotten(self, namespace: str, instance_id: str) -> None:
        """A producer is no longer remembered: it reserved nothing for long, or its namespace has most of too many."""


def watchers(observers: Iterable[Observer], event: str) -> tuple[Callable[..., None], ...]:
    """The methods for this event of those observers that do something about it."""
    methods = (getattr(observer, event) for observer in observers)
    nothing = getattr(Observer, event)
    return tuple(method for method in methods if getattr(method, "__func__", None) is not nothing)


def reader_mark(reader_id: str) -> bytes:
    """A reader's name in at most 17 bytes, distinct for distinct ids."""
    raw = reader_id.encode()
    return raw if len(raw) <= 16 else b"#" + hashlib.blake2b(raw, digest_size=16).digest()
