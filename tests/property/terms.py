"""What the reference model is told, and what it expects: calls in plain values, answers as descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .catalogue import Paper

Key = tuple[str, int, int]
Producer = tuple[str, int]
Failure = tuple[int, str, str]
"""(HTTP status, reason, message)."""

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Times:
    """In nanoseconds."""

    lease_default: int = 60 * SECOND
    lease_min: int = 1 * SECOND
    lease_max: int = 100 * SECOND
    retention: int = 300 * SECOND
    grace: int = 30 * SECOND
    tombstone: int = 120 * SECOND
    max_wait: int = 200 * SECOND


@dataclass(frozen=True)
class Ask:
    """A Reserve."""

    key: Key
    owner: str
    attempt: int = 0
    lease: int | None = None
    readers: int = 1
    producer: Producer | None = None
    top_logprobs: int = 0


@dataclass(eq=False)
class Live:
    """A hand-off with a slot."""

    ask: Ask
    lease: int
    until: int
    reserved_wall: int
    reserved_at: int
    state: str = "RESERVED"
    token: bytes | None = None
    paper: Paper | None = None
    published_wall: int = 0
    readers: set[str] = field(default_factory=set)
    consumed_as: int = 0


@dataclass(eq=False)
class Ended:
    """What is remembered of one without."""

    key: Key
    attempt: int
    how: str
    forget_at: int
    failure: Failure | None = None
    live: Live | None = None

    @property
    def state(self) -> str:
        """As error metadata has it."""
        return {"RESTARTED": "ABORTED", "COMPLETED": "CONSUMED"}.get(self.how, self.how)


@dataclass(eq=False)
class Parked:
    """A call that waits."""

    number: int
    until: int
    kind: str
    asks: tuple[Ask, ...] = ()
    paper: Paper | None = None
    key: Key = ("", 0, 0)
    attempt: int = 0
    reader: str = ""
    consume: bool = False


@dataclass(frozen=True)
class Refused:
    """Any of these reasons; of its metadata, these entries must have one of these values."""

    options: Mapping[str, Mapping[str, frozenset[str]]]
    message: str | None = None

    def __or__(self, other: Refused) -> Refused:
        both = {**self.options, **other.options}
        for reason in self.options.keys() & other.options.keys():
            ours, theirs = self.options[reason], other.options[reason]
            both[reason] = {name: ours[name] | theirs[name] for name in ours.keys() & theirs.keys()}
        return Refused(both)


def refused(reason: str, **metadata: str) -> Refused:
    """One reason with its metadata."""
    return Refused({reason: {name: frozenset((value,)) for name, value in metadata.items()}})


@dataclass(frozen=True)
class Granted:
    """Reservations, in order."""

    lives: tuple[Live, ...]


@dataclass(frozen=True)
class Published:
    """Publication at this wall time."""

    wall: int


@dataclass(frozen=True)
class Read:
    """This record of this hand-off."""

    live: Live
    paper: Paper


@dataclass(frozen=True)
class Waits:
    """No answer yet."""


@dataclass(frozen=True)
class Plain:
    """This very value, or one of several."""

    values: tuple[object, ...]


Expected = Refused | Granted | Published | Read | Waits | Plain
