"""What the handlers need of a store: the seam at which another store takes the embedded one's place.

Every call may be answered at once or later, with values that say nothing of how the store keeps them. The epoch of the
store travels with each answer, since a store behind an engine may come back empty between two of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from pd_handoff.v1 import record_pb2

from pd_handoff_server.arena.layout import Limits
from pd_handoff_server.arena.packed_record import Draft
from pd_handoff_server.lifecycle.model import Failure, Key, Policy, Spec, State
from pd_handoff_server.refusal import Refusal

Done = Callable[[Any], None]
"""Called at most once, from any thread, with a result or with the Refusal that takes its place. Must not raise."""


class Delivery(ABC):
    """The `Done` of a Get. The store asks it before it reads, counts or copies a record for a call that has waited."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, result: Any) -> None:
        """See `Done`."""

    @abstractmethod
    def turn_away(self, size: int) -> Refusal | None:
        """Why the caller may not have a record of so many bytes now. None: it may, and the bytes are counted for it."""


Content = record_pb2.HandoffRecord | Draft
"""A record to be put: as a message, whose form and widths are yet to be looked at, or measured already."""

Room = Callable[[int], Refusal | None]
"""Why there is no room for a record of so many bytes. None: there is, and it is taken."""

LIVE_STATES = frozenset(state.value for state in State)


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


class Query(NamedTuple):
    """What a Get asks for.

    Attributes:
        attempt: the lowest that will do.
        consume: count the reader.
        expected_epoch: of the store; empty for any.
        request_digest: must be the reservation's, if both state one; empty for none.
        attachments: names of those that are wanted; None: all.
        room: asked before a record is read and its reader counted; None: there is room for any.
    """

    key: Key
    attempt: int
    reader_id: str
    consume: bool
    expected_epoch: str = ""
    request_digest: bytes = b""
    attachments: frozenset[str] | None = None
    room: Room | None = None


class Reserved(NamedTuple):
    """A reservation as granted: its token, its lease in nanoseconds, and the store's epoch."""

    token: bytes
    lease: int
    epoch: str


class Published(NamedTuple):
    """When a record was published, as nanoseconds of wall time, and the store's epoch."""

    wall: int
    epoch: str


class Reading:
    """A record that was read. Several readers may share one, so it does not change.

    Attributes:
        image: the packed record, a serialized HandoffRecord.
        reserved_wall, published_wall: nanoseconds of wall time.
        epoch: the store's.
        encoded: the answer made of it, kept by the first handler that made it.
    """

    __slots__ = ("attempt", "encoded", "epoch", "image", "published_wall", "reserved_wall")

    def __init__(self, image: bytes, attempt: int, epoch: str, reserved_wall: int, published_wall: int) -> None:
        self.image = image
        self.attempt = attempt
        self.epoch = epoch
        self.reserved_wall = reserved_wall
        self.published_wall = published_wall
        self.encoded: bytes | None = None


class Ready:
    """What `Store.await_record` answers: there is a record to be read."""

    __slots__ = ()


READY: Final = Ready()


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
    heap_bytes: int = 0
    heap_free: int = 0
    page_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One hand-off for people to look at, live or ended.

    Attributes:
        state: RESERVED, PUBLISHED, CONSUMED, ABORTED or EXPIRED.
        age, expires_in: nanoseconds since it was reserved (or ended), and until it expires (or is forgotten).
        waiting: calls that wait for it.
        reserved_wall, published_wall: nanoseconds of wall time; 0 where it has not come to that.
        producer: (instance id, epoch).
        widths: declared at Reserve, or of the record; None where unknown.
        slot, generation, expected_readers, readers_done: of a live one; `slot` is None of an ended one.
        failure: of an aborted one.
    """

    key: Key
    attempt: int
    state: str
    owner: str
    age: int
    expires_in: int
    waiting: int
    reserved_wall: int
    published_wall: int
    producer: tuple[str, int] | None
    widths: tuple[int, ...] | None = None
    slot: int | None = None
    generation: int = 0
    expected_readers: int = 0
    readers_done: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Census:
    """How much of what a store holds at a moment; slots by state add up to all of them, bytes of the heap too."""

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
    heap_free: int = 0
    heap_in_use: int = 0
    heap_consumed: int = 0


class Store(Protocol):
    """Calls of the store. All may be made from any thread; all raise Refusal, having changed nothing.

    A call with `done` returns its result where it has it at once, and else a Parked; then `done` is called later, also
    when a wait runs out. `max_wait` is in nanoseconds, 0 for none. Places to wait are shared out by `origin`. What a
    call may not be told apart from is how long the store itself takes: one in another process parks every call.
    """

    def facts(self) -> Facts:
        """Limits and fill as last known. Asks nothing outside this process, and takes no lock."""

    def check_widths(self, widths: tuple[int, ...]) -> None:
        """Raises Refusal TOP_LOGPROBS_OVERFLOW or FIELD_OVERFLOW when these widths can never fit."""

    def census(self) -> Census:
        """Counts, at the cost of a lock."""

    def together(self) -> AbstractContextManager[None]:
        """For several calls of this thread in a row: each as alone and in order, but one lock, one commit for all.

        Other threads wait meanwhile, and whoever is answered by one of these calls is told when the last has been made.
        What the calls return may be told to nobody before that, since it is not kept before.
        """

    def reserve(self, spec: Spec, max_wait: int, done: Done, origin: Origin | None = None) -> Reserved | Parked:
        """Claim a slot, or renew."""

    def reserve_all(
        self, specs: Sequence[Spec], max_wait: int, done: Done, origin: Origin | None = None
    ) -> list[Reserved] | Parked:
        """Claim a slot for each, or for none. Keys must differ."""

    def put(self, key: Key, token: bytes, record: Content, done: Done) -> Published | Parked:
        """Publish."""

    def put_reserving(
        self, spec: Spec, record: Content, max_wait: int, done: Done, origin: Origin | None = None
    ) -> Published | Parked:
        """Reserve and publish at once."""

    def get(self, query: Query, max_wait: int, done: Done, origin: Origin | None = None) -> Reading | Parked:
        """Read, and count the reader if the query says so. A `Delivery` as `done` is asked before a late answer."""

    def await_record(self, query: Query, max_wait: int, done: Done, origin: Origin | None = None) -> Ready | Parked:
        """As `get`, until there is a record: nothing is read, and no reader is counted."""

    def release(self, key: Key, token: bytes, reader_id: str, done: Done) -> Parked | None:
        """Give a claim back: by token, or else by reader."""

    def abort(self, key: Key, failure: Failure, token: bytes, attempt: int | None, done: Done) -> bool | Parked:
        """End an attempt; True when this call did."""

    def look(
        self, namespaces: frozenset[str] | None, states: frozenset[str], after: int, count: int, done: Done
    ) -> tuple[list[Sight], int] | Parked:
        """Up to `count` hand-offs of these namespaces (None: all) in these states, from position `after` on.

        Also where to go on; 0: nowhere.
        """

    def look_at(self, key: Key, contents: bool, done: Done) -> tuple[Sight, bytes | None] | Parked:
        """The newest attempt of one key, with its packed record on request."""

    def drain(self) -> None:
        """Take nothing new and answer every call that waits. Does not return to taking calls."""

    def close(self) -> None:
        """Let go of what outlives the process; no call may follow."""

    def tick(self) -> int | None:
        """Do what is due; returns the monotonic moment in nanoseconds at which there may be more, if any."""
