"""What a store can take, so that a request is clamped or rejected before anything is submitted."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from pd_handoff import errors
from pd_handoff._values.durations import seconds
from pd_handoff._values.integers import shown
from pd_handoff.model import WIDTH_NAMES, Widths
from pd_handoff.tensor import DataType
from pd_handoff.v1 import metadata_store_pb2 as pb


@dataclass(frozen=True)
class Capabilities:
    """The limits that a store enforces, from the very settings that enforce them; durations in seconds.

    Attributes:
        limits: the largest legal widths; a width of 0 means that the part is switched off.
        slots_total: rows in all.
        slots_free: rows that a Reserve could have at the time of the answer.
        row_bytes: bytes of a row.
        arena_bytes: bytes of all rows.
        lease_default: seconds of a lease when none is asked for.
        lease_min: seconds of the shortest lease that is granted.
        lease_max: seconds of the longest.
        max_wait: the longest wait of a Get or a Reserve.
        retention: how long a published record waits for its readers.
        consumed_grace: how long a consumed record can be read again.
        tombstone_time: how long the outcome of an ended hand-off is remembered, at most.
        max_batch: items of a batch call.
        max_waiters: calls that may wait at a time.
        max_message_bytes: the largest message taken or sent.
        hidden_state_dtypes: element types that hidden states may have; none when no hidden states fit.
        features: what this store can do beyond the calls that every store has.
        store_epoch: changes when the store comes back empty.
        server_version: the version of pd-handoff that it runs.
        schema_fingerprint: identifies its protos.
        attachment_heap_bytes: bytes of the heap that attachments are kept in; 0: the store takes none.
        attachment_heap_free: bytes of it that a Reserve or a Put could have at the time of the answer.
        attachment_page_bytes: bytes of a page; the attachments of a record take whole pages.
    """

    limits: Widths
    slots_total: int
    slots_free: int
    row_bytes: int
    arena_bytes: int
    lease_default: float
    lease_min: float
    lease_max: float
    max_wait: float
    retention: float
    consumed_grace: float
    tombstone_time: float
    max_batch: int
    max_waiters: int
    max_message_bytes: int
    hidden_state_dtypes: tuple[DataType, ...]
    features: tuple[str, ...]
    store_epoch: str
    server_version: str
    schema_fingerprint: str
    attachment_heap_bytes: int = 0
    attachment_heap_free: int = 0
    attachment_page_bytes: int = 0

    def clamp_top_logprobs(self, requested: int) -> int:
        """The largest number of top logprobs up to `requested` that the store takes. Raises TypeError for what is no
        integer (a bool is none), ValueError for a negative one."""
        return min(_count(requested), self.limits.top_logprobs)

    def require_top_logprobs(self, requested: int) -> None:
        """Raises TopLogprobsOverflow, with the words and numbers of the store, when `requested` top logprobs do not
        fit; TypeError and ValueError as `clamp_top_logprobs`."""
        if _count(requested) > self.limits.top_logprobs:
            raise errors.overflow("top_logprobs", requested, self.limits.top_logprobs)

    def require(self, widths: Widths) -> None:
        """Raises TopLogprobsOverflow or FieldOverflow, as the store would, for the first width that does not fit."""
        for name in WIDTH_NAMES:
            requested, limit = getattr(widths, name), getattr(self.limits, name)
            if requested > limit:
                raise errors.overflow(name, requested, limit)

    @classmethod
    def from_proto(cls, message: pb.CapabilitiesResponse) -> Capabilities:
        """From the message; element types that this version does not know are left out."""
        known: set[int] = set(DataType)
        values: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
        values |= {name: seconds(getattr(message, name)) for name in _DURATIONS}
        return cls(
            limits=Widths.from_proto(message.limits),
            hidden_state_dtypes=tuple(DataType(number) for number in message.hidden_state_dtypes if number in known),
            features=tuple(message.features),
            **values,
        )


def _count(requested: int) -> int:
    """Top logprobs asked for."""
    try:
        count = None if isinstance(requested, bool) else operator.index(requested)
    except TypeError:
        count = None
    if count is None:
        raise TypeError(f"top logprobs must be a number of them, from 0, not {shown(requested)}")
    if count < 0:
        raise ValueError(f"top logprobs must be a number of them, from 0, not {shown(requested)}")
    return count


_DURATIONS = ("lease_default", "lease_min", "lease_max", "max_wait", "retention", "consumed_grace", "tombstone_time")
_PLAIN = (
    *("slots_total", "slots_free", "row_bytes", "arena_bytes", "max_batch", "max_waiters", "max_message_bytes"),
    *("store_epoch", "server_version", "schema_fingerprint"),
    *("attachment_heap_bytes", "attachment_heap_free", "attachment_page_bytes"),
)
