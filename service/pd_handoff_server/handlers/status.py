"""Refusals as statuses: the one place where a reason meets a code and its details (contract section 6)."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from pd_handoff_server.refusal import Refusal

Trailing = tuple[tuple[str, str | bytes], ...]

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
    "REQUEST_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "ENGINE_UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,  # of the health service
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
}

BARE: Final = frozenset(("NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED"))
"""Strangers, and probes, are told nothing but the code."""

FINAL: Final = frozenset(
    (
        *("TOP_LOGPROBS_OVERFLOW", "FIELD_OVERFLOW", "HANDOFF_EXISTS", "RECORD_IMMUTABLE", "STALE_RESERVATION"),
        *("RESERVATION_EXPIRED", "INVALID_RECORD", "INVALID_REQUEST", "HANDOFF_ABORTED", "HANDOFF_EXPIRED"),
        *("PRODUCER_RESTARTED", "ALREADY_CONSUMED", "STORE_RESTARTED", "SCHEMA_MISMATCH", "REQUEST_MISMATCH"),
    )
)
"""Reasons of refusals that the same call meets again, however often it is repeated."""

HEADER_BYTES: Final = 3500
"""The header block of a refusal is shorter, so that it passes proxies with buffers of 4 KB."""

_PUSHBACK: Final = ("grpc-retry-pushback-ms", "-1")  # tells gRPC's retry policies not to repeat the call
_OTHER_HEADERS: Final = 360  # status, content-type, pushback, names, and what HTTP/1.1 or a proxy adds
_MAX_VIOLATIONS = 16
_MAX_DETAILS = 2250  # bytes of the status that holds them, of which base64 makes a third more
_MAX_MESSAGE = 1024
_MAX_TEXT = 120

INTERNAL: Final = Refusal("INTERNAL", "the store failed; its log has the cause")


def to_status(refused: Refusal) -> Status:
    """The status with its details; encoded for a header it leaves room for a message below HEADER_BYTES."""
    status = Status(code=CODES[refused.reason].value[0], message=_cut(refused.message, _MAX_MESSAGE))
    if refused.reason in BARE:
        return status
    _add(status, error_details_pb2.ErrorInfo(reason=refused.reason, domain=DOMAIN, metadata=refused.metadata))
    if refused.reason in {"TOP_LOGPROBS_OVERFLOW", "FIELD_OVERFLOW"}:
        subject = refused.metadata.get("field", "top_logprobs")
        violation = error_details_pb2.QuotaFailure.Violation(subject=subject, description=refused.message)
        _add(status, error_details_pb2.QuotaFailure(violations=[violation]))
    if refused.violations:
        _add(status, _bad_request(refused, _MAX_DETAILS - status.ByteSize()))
    if refused.retry_after is not None:
        nanos = round(refused.retry_after * 1e9)
        delay = Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _bad_request(refused: Refusal, most: int) -> error_details_pb2.BadRequest:
    """As many violations as there is room for, and the first in any case."""
    bad = error_details_pb2.BadRequest()
    for name, what in refused.violations[:_MAX_VIOLATIONS]:
        bad.field_violations.add(field=_cut(name, _MAX_TEXT), description=_cut(what, _MAX_TEXT))
        if bad.ByteSize() + 64 > most and len(bad.field_violations) > 1:  # 64: its own type and frame
            del bad.field_violations[-1]
            break
    return bad


def ending(refused: Refusal) -> tuple[grpc.StatusCode, str, Trailing]:
    """How a refused call ends: code, message and trailing metadata, together below HEADER_BYTES as headers.

    The message is cut where it has to be; the details hold it whole. Strangers get the code and nothing else.
    """
    code = CODES[refused.reason]
    if refused.reason in BARE:
        return code, refused.message, ()
    status = to_status(refused)
    details = status.SerializeToString()
    room = HEADER_BYTES - _OTHER_HEADERS - -(-len(details) // 3) * 4
    message = _cut_encoded(status.message, room)
    if refused.hopeless or refused.reason in FINAL:
        return code, message, ((DETAILS_KEY, details), _PUSHBACK)
    return code, message, ((DETAILS_KEY, details),)


def _cut(text: str, most: int) -> str:
    """The text, cut to so many bytes at the end of a character."""
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")


def _cut_encoded(text: str, most: int) -> str:
    """The text, cut to so many bytes as gRPC encodes them for a header: a byte beyond printable ASCII takes three."""
    if len(text) * 12 <= most:
        return text
    size = 0
    for at, letter in enumerate(text):
        size += 1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode())
        if size > most:
            return text[:at]
    return text


def _add(status: Status, detail: Message) -> None:
    status.details.add().Pack(detail)
