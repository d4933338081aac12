"""What a Get returns."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from pd_handoff.record import Record
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2


class Handoff:
    """A record as it was put, with its circumstances. Parts are converted when they are asked for, so a caller that
    works on `proto` pays for nothing else."""

    __slots__ = ("_record", "_response")

    def __init__(self, response: pb.GetResponse) -> None:
        self._response = response
        self._record: Record | None = None

    @property
    def record(self) -> Record:
        """The record as plain values; converted once. Raises InvalidRecord for enum values that this version does not
        know."""
        if self._record is None:
            self._record = Record.from_proto(self._response.record)
        return self._record

    @property
    def proto(self) -> record_pb2.HandoffRecord:
        """The record as the message that came, every bit as put (see `pd_handoff._values.exact`)."""
        return self._response.record

    @property
    def attempt(self) -> int:
        """Which prefill of the key it belongs to."""
        return self._response.attempt

    @property
    def reserved_at(self) -> datetime:
        """When the slot was reserved, by the store's wall clock, UTC."""
        return self._response.reserved_at.ToDatetime(timezone.utc)

    @property
    def published_at(self) -> datetime:
        """When the record was published, by the store's wall clock, UTC."""
        return self._response.published_at.ToDatetime(timezone.utc)

    @property
    def store_epoch(self) -> str:
        """Changes when the store comes back empty."""
        return self._response.store_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return Handoff, (self._response,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handoff) and (
            self._response.SerializeToString(deterministic=True)
            == other._response.SerializeToString(deterministic=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Without the record's contents."""
        return f"Handoff(attempt={self.attempt}, published_at={self.published_at}, store_epoch={self.store_epoch!r})"
