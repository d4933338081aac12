# ruff: noqa: N818  # the names say what happened; `except ArenaFull` reads better than with a suffix
"""One table: what the store answered -> the exception raised here -> the HTTP status a gateway gives its user.

No gRPC type ever leaves this package. Every exception pickles and copies, so it can cross process pools and queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from pd_handoff.model import Failure

DOMAIN = "pd-handoff"
OVERFLOW_PHRASE = "exceeds disaggregation metadata capacity"  # existing handlers of engines match on these words
_DETAILS_KEY = "grpc-status-details-bin"
_HTTP_413 = re.compile(r"\bstatus: 413\b")  # gRPC's words for an answer of HTTP alone
_PLACE = re.compile(r"\brequests\[\d+\]\.")


class Violation(NamedTuple):
    """One thing that is wrong with a request or record: where, and what."""

    field: str
    description: str


class HandoffError(Exception):
    """Any refusal, of the store or of this client. Branch on the class or on `reason`, never on the text.

    Attributes:
        message: one sentence for people (also `str(error)`).
        reason: name of an `ErrorReason` without prefix; for trouble of gRPC's own, the name of its status code.
        code: name of the gRPC status code, such as `RESOURCE_EXHAUSTED`.
        metadata: what the store told beside it, as strings.
        http_status: what a gateway should answer the user whose request this ended.
        retry_after: seconds after which the store suggests a retry, or None.
        violations: what is wrong, field by field, when the request or record was malformed.
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        code: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        violations: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        row = _row_of(type(self))
        self.message = message
        self.reason: str = row.reason if reason is None else reason
        self.code: str = row.code if code is None else code
        self.metadata: dict[str, str] = dict(metadata or {})
        self.http_status: int = row.http_status or _HTTP_OF_CODE.get(self.code, 500)
        self.retry_after = retry_after
        self.violations: tuple[Violation, ...] = tuple(Violation(*violation) for violation in violations)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message), self.__dict__

    def _number(self, name: str) -> int:
        text = self.metadata.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else 0


class TopLogprobsOverflow(HandoffError):
    """More top logprobs than a row of the store holds. Clamp to `limit`, or answer the user with HTTP 400."""

    @property
    def requested(self) -> int:
        """How many were asked for."""
        return self._number("requested")

    @property
    def limit(self) -> int:
        """How many the store takes."""
        return self._number("limit")

    @property
    def token_index(self) -> int | None:
        """Which of the record's tokens, from 0; None when it was declared widths that were refused."""
        return self._number("token_index") if "token_index" in self.metadata else None


class FieldOverflow(HandoffError):
    """Another part of the record is wider than a row of the store holds."""

    @property
    def field(self) -> str:
        """Name of the field of `Widths`."""
        return self.metadata.get("field", "")

    @property
    def requested(self) -> int:
        """The width asked for, in that field's unit."""
        return self._number("requested")

    @property
    def limit(self) -> int:
        """The width the store takes, in that field's unit."""
        return self._number("limit")


class ArenaFull(HandoffError):
    """Every slot is in use, or the heap of attachments is full.

    Retry after `retry_after` seconds, or let the store queue the call with `max_wait`."""


class TooManyWaiters(HandoffError):
    """More calls wait in the store than it allows."""


class MessageTooLarge(HandoffError):
    """The message is larger than one side of the connection takes; it never reached the store's own checks."""


class HandoffExists(HandoffError):
    """The key is live and belongs to another owner."""


class RecordImmutable(HandoffError):
    """Another record was published under this reservation before."""


class StaleReservation(HandoffError):
    """The reservation is not, or no longer, the one that owns the hand-off: drop the work."""


class ReservationExpired(HandoffError):
    """The lease ran out before the Put."""


class InvalidRecord(HandoffError, ValueError):
    """The record is not well formed; `violations` says where. Raised here too, for values that no record can hold."""


class InvalidRecordType(InvalidRecord, TypeError):
    """A value of the record has another Python type than its field takes; `violations` says where and what."""


class InvalidRequest(HandoffError, ValueError):
    """The call is not well formed; `violations` says where. Raised here too, for what no request can hold."""


class HandoffNotFound(HandoffError):
    """Nobody knows this key, and the call did not wait."""


class RecordNotReady(HandoffError):
    """The record is not there yet: the call did not wait, or its wait ran out."""

    @property
    def state(self) -> str:
        """`NONE` (no Reserve yet) or `RESERVED`."""
        return self.metadata.get("state", "")


class HandoffAborted(HandoffError):
    """The hand-off was aborted, by whichever side. `http_status` is the failure's."""

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.http_status = self._number("http_status") or 500

    @property
    def failure(self) -> Failure:
        """Why, in the words of whoever aborted."""
        return Failure(self.http_status, self.metadata.get("failure_reason") or "ABORTED", self.message)


class HandoffExpired(HandoffError):
    """The lease or the retention ran out before the record was read: prefill again with a higher attempt."""


class ProducerRestarted(HandoffError):
    """The prefill process restarted and lost this hand-off: prefill again."""


class AlreadyConsumed(HandoffError):
    """Every expected reader has had the record, and its slot was freed."""


class StoreRestarted(HandoffError):
    """The store came back empty since: prefill again."""


class RequestMismatch(HandoffError):
    """The hand-off under this key is of another request: both sides stated a `request_digest`, and they differ. Give
    each request a room of its own."""

    @property
    def state(self) -> str:
        """Of that hand-off: `RESERVED`, `PUBLISHED` or `CONSUMED`."""
        return self.metadata.get("state", "")


class SchemaMismatch(HandoffError):
    """The store speaks another schema than the caller expects."""


class EngineUnreachable(HandoffError):
    """The engine behind a front end does not answer. Retry after `retry_after` seconds, here or elsewhere."""


class Draining(HandoffError):
    """The store is shutting down or not ready, and takes nothing new."""


class StoreInternalError(HandoffError):
    """The store failed in a way it did not foresee; the cause is in its log."""


class Unauthenticated(HandoffError):
    """No credentials, or wrong ones."""


class PermissionDenied(HandoffError):
    """These credentials may not do that."""


class StoreUnavailable(HandoffError):
    """No answer: the store cannot be reached, or the connection broke before it answered."""


class DeadlineExceeded(HandoffError):
    """No answer within the client's own timeout. The call may or may not have been carried out; it can be repeated."""


class NotAStore(HandoffError):
    """The server at this address does not know the call: no store of this version."""


class ClientClosed(HandoffError):
    """The client was closed."""


class _Row(NamedTuple):
    error: type[HandoffError]
    reason: str
    code: str
    http_status: int


# The HTTP status answers an end user, who did not choose rooms, sizes of arenas or credentials of nodes: 400 is only
# what the user's own request asked for too much of, or what cannot be right on any retry; 5xx is ours.
_STORE = (
    _Row(TopLogprobsOverflow, "TOP_LOGPROBS_OVERFLOW", "RESOURCE_EXHAUSTED", 400),
    _Row(FieldOverflow, "FIELD_OVERFLOW", "RESOURCE_EXHAUSTED", 400),
    _Row(ArenaFull, "ARENA_FULL", "RESOURCE_EXHAUSTED", 503),
    _Row(TooManyWaiters, "TOO_MANY_WAITERS", "RESOURCE_EXHAUSTED", 503),
    _Row(HandoffExists, "HANDOFF_EXISTS", "ALREADY_EXISTS", 409),
    _Row(RecordImmutable, "RECORD_IMMUTABLE", "ALREADY_EXISTS", 409),
    _Row(StaleReservation, "STALE_RESERVATION", "ABORTED", 409),
    _Row(ReservationExpired, "RESERVATION_EXPIRED", "FAILED_PRECONDITION", 504),
    _Row(InvalidRecord, "INVALID_RECORD", "INVALID_ARGUMENT", 400),
    _Row(InvalidRequest, "INVALID_REQUEST", "INVALID_ARGUMENT", 400),
    _Row(HandoffNotFound, "HANDOFF_NOT_FOUND", "NOT_FOUND", 404),
    _Row(RecordNotReady, "RECORD_NOT_READY", "DEADLINE_EXCEEDED", 504),
    _Row(HandoffAborted, "HANDOFF_ABORTED", "ABORTED", 500),  # in fact the failure's own
    _Row(HandoffExpired, "HANDOFF_EXPIRED", "ABORTED", 504),
    _Row(ProducerRestarted, "PRODUCER_RESTARTED", "UNAVAILABLE", 503),
    _Row(AlreadyConsumed, "ALREADY_CONSUMED", "FAILED_PRECONDITION", 409),
    _Row(StoreRestarted, "STORE_RESTARTED", "FAILED_PRECONDITION", 503),
    _Row(RequestMismatch, "REQUEST_MISMATCH", "FAILED_PRECONDITION", 409),
    _Row(SchemaMismatch, "SCHEMA_MISMATCH", "FAILED_PRECONDITION", 500),
    _Row(EngineUnreachable, "ENGINE_UNREACHABLE", "UNAVAILABLE", 503),
    _Row(Draining, "DRAINING", "UNAVAILABLE", 503),
    _Row(StoreInternalError, "INTERNAL", "INTERNAL", 500),
)
# What comes without our details: gRPC itself, a proxy in between, or credentials (by convention nothing more is told).
_PLAIN = (
    _Row(StoreUnavailable, "UNAVAILABLE", "UNAVAILABLE", 503),
    # The peer dropped the call; who cancels here sees their own framework's cancellation instead.
    _Row(StoreUnavailable, "CANCELLED", "CANCELLED", 503),
    _Row(DeadlineExceeded, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 504),
    _Row(MessageTooLarge, "MESSAGE_TOO_LARGE", "RESOURCE_EXHAUSTED", 413),
    # The node's credentials, not the user's: 401 would make the user look for a fault of their own.
    _Row(Unauthenticated, "UNAUTHENTICATED", "UNAUTHENTICATED", 500),
    _Row(PermissionDenied, "PERMISSION_DENIED", "PERMISSION_DENIED", 500),
    _Row(NotAStore, "UNIMPLEMENTED", "UNIMPLEMENTED", 500),
)
_CLIENT = (_Row(ClientClosed, "CLIENT_CLOSED", "CANCELLED", 503),)

_OF_REASON = {row.reason: row for row in _STORE}
_OF_CODE = {row.code: row for row in _PLAIN}
_OF_CLASS = {row.error: row for row in (*reversed(_PLAIN), *_STORE, *_CLIENT)}
_UNKNOWN = _Row(HandoffError, "UNKNOWN", "UNKNOWN", 0)
_HTTP_OF_CODE = {"INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 503, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504}


def _row_of(kind: type[HandoffError]) -> _Row:
    return next((_OF_CLASS[base] for base in kind.__mro__ if base in _OF_CLASS), _UNKNOWN)


def _restore(kind: type[HandoffError], message: str) -> HandoffError:
    return kind(message)


def overflow(field: str, requested: int, limit: int) -> TopLogprobsOverflow | FieldOverflow:
    """The error that the store would give for declared widths; `field` is the name of a field of `Widths`."""
    numbers = {"requested": str(requested), "limit": str(limit)}
    if field == "top_logprobs":
        text = (
            f"top_logprobs_num {requested} {OVERFLOW_PHRASE} {limit}; clamp it to {limit}, or raise --max-top-logprobs"
        )
        return TopLogprobsOverflow(text, metadata=numbers)
    option = "--max-" + field.replace("_", "-")
    if field == "attachment_bytes":
        if not limit:
            text = f"{field} {requested} {OVERFLOW_PHRASE} 0; leave attachments out, or start the store with "
            return FieldOverflow(text + "--attachment-heap", metadata={"field": field, **numbers})
        option += " and --attachment-heap"
    text = f"{field} {requested} {OVERFLOW_PHRASE} {limit}; send at most {limit}, or raise {option}"
    return FieldOverflow(text, metadata={"field": field, **numbers})


def invalid_record(field: str, description: str, kind: type[InvalidRecord] | None = None) -> InvalidRecord:
    """One violation of a record, found on this side."""
    return (kind or InvalidRecord)(f"{field}: {description}", violations=((field, description),))


def invalid_request(field: str, description: str) -> InvalidRequest:
    """One violation of a request, found on this side."""
    return InvalidRequest(f"{field}: {description}", violations=((field, description),))


def from_status(status: status_pb2.Status) -> HandoffError:
    """The exception for one `google.rpc.Status`: of a failed call, or of one item of a batch."""
    code = code_pb2.Code.Name(status.code) if status.code in code_pb2.Code.values() else "UNKNOWN"
    info: error_details_pb2.ErrorInfo | None = None
    retry_after: float | None = None
    violations: list[Violation] = []
    for detail in status.details:
        kind = detail.type_url.rpartition("/")[2]
        try:
            if kind == "google.rpc.ErrorInfo":
                candidate = error_details_pb2.ErrorInfo.FromString(detail.value)
                info = candidate if candidate.domain == DOMAIN else info
            elif kind == "google.rpc.RetryInfo":
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                retry_after = delay.seconds + delay.nanos / 1e9
            elif kind == "google.rpc.BadRequest":
                bad = error_details_pb2.BadRequest.FromString(detail.value)
                violations += [Violation(item.field, item.description) for item in bad.field_violations]
        except DecodeError:
            continue  # the status itself still says what happened
    if info is None:
        return _plain(code, status.message, retry_after)
    row = _OF_REASON.get(info.reason, _UNKNOWN)  # a newer store may know more reasons than we do
    return row.error(
        status.message,
        reason=info.reason,
        code=code,
        metadata=info.metadata,
        retry_after=retry_after,
        violations=violations,
    )


def from_item(status: status_pb2.Status) -> HandoffError:
    """As `from_status`, for one item of a batch. Where something is wrong is told from that item on: it may have stood
    elsewhere in what was sent than in the caller's list."""
    error = from_status(status)
    if error.violations:
        error.message = _PLACE.sub("", error.message)
        error.args = (error.message,)
        error.violations = tuple(Violation(_PLACE.sub("", field), what) for field, what in error.violations)
    return error


def from_rpc(error: Any, target: str) -> HandoffError:
    """The exception for a failed gRPC call (`grpc.RpcError` with its call's methods, or `grpc.aio.AioRpcError`)."""
    code = error.code().name
    text = error.details() or ""
    for name, value in error.trailing_metadata() or ():
        if name == _DETAILS_KEY:
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                break
            if status.details:
                return from_status(status)
    if code in ("UNAVAILABLE", "CANCELLED"):
        text = f"no answer from the store at {target}: {text or 'the connection broke'}{_advice(text)}"
    elif code == "DEADLINE_EXCEEDED":
        return no_answer(target)
    elif code == "UNIMPLEMENTED":
        text = f"the server at {target} is no store of this version: {text}"
    return _plain(code, text, None)


def _advice(text: str) -> str:
    """What gRPC's words for a connection that fails mean in practice."""
    if "WRONG_VERSION_NUMBER" in text or "wrong version number" in text:
        return " (the other end speaks no TLS: leave out credentials, or use another port)"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return " (its certificate is not signed by the given authority, or is for another name)"
    if "http1.x server" in text:
        return " (a plain HTTP server answers there: use the port of --listen, not of --metrics-listen)"
    return ""


def no_answer(target: str) -> DeadlineExceeded:
    """The timeout of a call is over."""
    return DeadlineExceeded(f"the store at {target} did not answer within the client's timeout")


def _plain(code: str, message: str, retry_after: float | None) -> HandoffError:
    if code == "RESOURCE_EXHAUSTED" and "larger than max" not in message:  # a quota of gRPC or of a proxy
        return HandoffError(message, reason=code, code=code, retry_after=retry_after)
    if code == "UNKNOWN" and _HTTP_413.search(message):
        message = f"a proxy on the way refused the request as too large: {message}"
        return MessageTooLarge(message, retry_after=retry_after)
    row = _OF_CODE.get(code, _Row(HandoffError, code, code, 0))
    return row.error(message, reason=row.reason, code=code, retry_after=retry_after)
