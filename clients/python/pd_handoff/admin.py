"""A look into the store, for people and scripts that run it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timezone

from pd_handoff._values.durations import seconds
from pd_handoff.model import Failure, Key, Widths
from pd_handoff.record import Record
from pd_handoff.v1 import admin_pb2 as pb


class HandoffState(enum.IntEnum):
    """Where in its life a hand-off is."""

    UNSPECIFIED = 0
    RESERVED = 1
    PUBLISHED = 2
    CONSUMED = 3
    ABORTED = 4
    EXPIRED = 5


@dataclass(frozen=True)
class HandoffInfo:
    """One attempt as the store sees it; never its token. Durations in seconds, times UTC by the store's wall clock.

    Attributes:
        key: which hand-off, its namespace filled in.
        attempt: which prefill of the key, 0 for the first.
        state: where in its life it is.
        owner: the idempotency key of its Reserve.
        slot: the row it holds; None when it has ended.
        generation: how often that row has been handed out before.
        age: since it was reserved, or since it ended.
        expires_in: until the store ends its present state by itself.
        reserved_at: when its slot was reserved; None for one aborted before.
        published_at: when its record was published; None before.
        expected_readers: how many readers it waits for.
        readers_done: how many of them have consumed it.
        waiting: Gets that wait for its key.
        widths: of the record once published; those declared before.
        instance_id: names its prefill process; None when that gave none.
        epoch: that process's start; None likewise.
        failure: why it was aborted; None in other states.
        record: the contents, when asked for, permitted and published.
    """

    key: Key
    attempt: int
    state: HandoffState
    owner: str
    slot: int | None
    generation: int
    age: float
    expires_in: float
    reserved_at: datetime | None
    published_at: datetime | None
    expected_readers: int
    readers_done: int
    waiting: int
    widths: Widths
    instance_id: str | None
    epoch: int | None
    failure: Failure | None
    record: Record | None = None

    @classmethod
    def from_proto(cls, message: pb.Handoff, record: Record | None = None) -> HandoffInfo:
        """From the message; a state that this version does not know becomes UNSPECIFIED."""
        states: set[int] = set(HandoffState)
        producer = message.producer if message.HasField("producer") else None
        return cls(
            key=Key(message.key.room, message.key.sample, message.key.namespace),
            attempt=message.attempt,
            state=HandoffState(message.state) if message.state in states else HandoffState.UNSPECIFIED,
            owner=message.owner,
            slot=message.slot if message.HasField("slot") else None,
            generation=message.generation,
            age=seconds(message.age),
            expires_in=seconds(message.expires_in),
            reserved_at=message.reserved_at.ToDatetime(timezone.utc) if message.HasField("reserved_at") else None,
            published_at=message.published_at.ToDatetime(timezone.utc) if message.HasField("published_at") else None,
            expected_readers=message.expected_readers,
            readers_done=message.readers_done,
            waiting=message.waiting,
            widths=Widths.from_proto(message.widths),
            instance_id=producer.instance_id if producer is not None else None,
            epoch=producer.epoch if producer is not None else None,
            failure=Failure.from_proto(message.failure) if message.HasField("failure") else None,
            record=record,
        )
