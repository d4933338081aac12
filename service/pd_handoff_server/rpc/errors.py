"""Refusals as statuses: the one place where a reason meets a code and its details (contract section 6)."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from pd_handoff_server.refusal import Refusal

DOMAIN: Final = "pd-handoff"
DETAILS_KEY: Final = "grpc-status-details-bin"

CODES: Final = {
    "TOP_LOGPROBS_OVERFLOW": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "FIELD_OVERFLOW": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ARENA_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_WAITERS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "HANDOFF_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "RECORD_IMMUTABLE": grpc.StatusCode.ALREADY_EXISTS,
    "STALE_RESERVATION": grpc.StatusCode.ABORTED,
    "RESERVATION_EXPIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "INVALID_RECORD": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "HANDOFF_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "RECORD_NOT_READY": grpc.StatusCode.DEADLINE_EXCEEDED,
    "HANDOFF_ABORTED": grpc.StatusCode.ABORTED,
    "HANDOFF_EXPIRED": grpc.StatusCode.ABORTED,
    "PRODUCER_RESTARTED": grpc.StatusCode.UNAVAILABLE,
    "ALREADY_CONSUMED": grpc.StatusCode.FAILED_PRECONDITION,
    "STORE_RESTARTED": grpc.StatusCode.FAILED_PRECONDITION,
    "SCHEMA_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,  # of the health service
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
}

BARE: Final = frozenset(("NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED"))
"""Strangers, and probes, are told nothing but the code."""

_MAX_VIOLATIONS = 16  # with their texts cut, a status stays under 4 KB
_MAX_TEXT = 120

INTERNAL: Final = Refusal("INTERNAL", "the store failed; its log has the cause")


def to_status(refused: Refusal) -> Status:
    """The status with its details, under 4 KB."""
    status = Status(code=CODES[refused.reason].value[0], message=refused.message)
    if refused.reason in BARE:
        return status
    _add(status, error_details_pb2.ErrorInfo(reason=refused.reason, domain=DOMAIN, metadata=refused.metadata))
    if refused.reason in {"TOP_LOGPROBS_OVERFLOW", "FIELD_OVERFLOW"}:
        subject = refused.metadata.get("field", "top_logprobs")
        violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=refused.message)
        _add(status, error_details_pb2.QuotaFailure(violations=[violation]))
    if refused.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=name[:_MAX_TEXT], description=what[:_MAX_TEXT])
            for name, what in refused.violations[:_MAX_VIOLATIONS]
        ]
        _add(status, error_details_pb2.BadRequest(field_violations=violations))
    if refused.retry_after is not None:
        nanos = round(refused.retry_after * 1e9)
        delay = Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def trailing(refused: Refusal) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata with the details; none where nothing but the code is told."""
    return () if refused.reason in BARE else ((DETAILS_KEY, to_status(refused).SerializeToString()),)


def _add(status: Status, detail: Message) -> None:
    status.details.add().Pack(detail)
