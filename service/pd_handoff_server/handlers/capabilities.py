"""What the store says of itself."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Final

from google.protobuf.duration_pb2 import Duration
from pd_handoff.v1 import admin_pb2, error_reason_pb2, metadata_store_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from pd_handoff_server import refusal
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.arena.packed_record import ELEMENT_BYTES
from pd_handoff_server.store.interface import Facts

_ITEM_OVERHEAD = 4096  # key, owner, token, producer, framing and an error's details, at their largest
_LEAST_MESSAGE = 4 << 20


def schema_fingerprint() -> str:
    """16 hex digits that change when any message, field, enum or call of the schema does."""
    digest = hashlib.sha256()
    for file in (record_pb2, error_reason_pb2, metadata_store_pb2, admin_pb2):
        digest.update(file.DESCRIPTOR.serialized_pb)
    return digest.hexdigest()[:16]


SCHEMA_FINGERPRINT: Final = schema_fingerprint()


def max_message_bytes(layout: Layout, max_batch: int) -> int:
    """The largest message taken or sent, no less than 4 MiB.

    It is whatever the largest legal batch without attachments needs, or one record with all that it may have.
    """
    alone = layout.image_bytes + _ITEM_OVERHEAD
    return max(_LEAST_MESSAGE, max_batch * alone, alone + layout.limits.attachment_bytes)


class Describer:
    """Makes CapabilitiesResponses from the facts of a store and the settings of its transport."""

    def __init__(self, version: str, max_batch: int, max_message: int, features: tuple[str, ...]) -> None:
        self.max_message: Final = max_message
        self._fixed = pb.CapabilitiesResponse(
            max_batch=max_batch,
            max_message_bytes=max_message,
            features=features,
            server_version=version,
            schema_fingerprint=SCHEMA_FINGERPRINT,
        )

    def check_fingerprint(self, expected: str) -> None:
        """Raises Refusal SCHEMA_MISMATCH."""
        if expected != SCHEMA_FINGERPRINT:
            raise refusal.schema_mismatch(expected[:64], SCHEMA_FINGERPRINT)

    def response(self, facts: Facts) -> pb.CapabilitiesResponse:
        """The whole answer."""
        policy = facts.policy
        answer = pb.CapabilitiesResponse(
            limits=pb.Widths(**asdict(facts.limits)),
            slots_total=facts.slots_total,
            slots_free=facts.slots_free,
            row_bytes=facts.row_bytes,
            arena_bytes=facts.row_bytes * facts.slots_total,
            lease_default=duration(policy.lease_default),
            lease_min=duration(policy.lease_min),
            lease_max=duration(policy.lease_max),
            max_wait=duration(facts.max_wait),
            retention=duration(policy.retention),
            consumed_grace=duration(policy.consumed_grace),
            tombstone_time=duration(policy.tombstone_time),
            max_waiters=facts.max_waiters,
            hidden_state_dtypes=sorted(ELEMENT_BYTES) if facts.limits.hidden_state_bytes else (),
            store_epoch=facts.epoch,
            attachment_heap_bytes=facts.heap_bytes,
            attachment_heap_free=facts.heap_free,
            attachment_page_bytes=facts.page_bytes,
        )
        answer.MergeFrom(self._fixed)
        return answer


def duration(nanoseconds: int) -> Duration:
    """Nanoseconds as a Duration."""
    return Duration(seconds=nanoseconds // 1_000_000_000, nanos=nanoseconds % 1_000_000_000)
