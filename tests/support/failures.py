"""Errors as a caller gets them, taken apart, and held against the table of contract section 6."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

DOMAIN: Final = "pd-handoff"
DETAILS_KEY: Final = "grpc-status-details-bin"
OVERFLOW_WORDS: Final = "exceeds disaggregation metadata capacity"
MOST_BYTES: Final = 4096
MOST_HEADER_BYTES: Final = 3500
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

Code = grpc.StatusCode
M = TypeVar("M", bound=Message)

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class CallFailed(Exception):  # noqa: N818 - named for what happened
    """A call that was answered by an error.

    Attributes:
        code: the status code.
        message: the status message.
        status: the google.rpc.Status, None when the error is gRPC's own.
        reason, domain, metadata: of its ErrorInfo; empty when it has none.
        call: what was refused, as `matrix` names calls; empty where nobody noted it.
    """

    def __init__(self, code: Code, message: str, status: Status | None, call: str = "") -> None:
        super().__init__(f"{code.name}: {message}")
        self.call = call
        self.code = code
        self.message = message
        self.status = status
        info = self.detail(error_details_pb2.ErrorInfo) or error_details_pb2.ErrorInfo()
        self.reason: str = info.reason
        self.domain: str = info.domain
        self.metadata: dict[str, str] = dict(info.metadata)

    def detail(self, kind: type[M]) -> M | None:
        """The detail of this type, None without one; fails on two of a kind."""
        found = [any_ for any_ in (self.status.details if self.status else ()) if any_.Is(kind.DESCRIPTOR)]
        assert len(found) <= 1, f"{len(found)} details of type {kind.DESCRIPTOR.full_name}"
        if not found:
            return None
        message = kind()
        assert found[0].Unpack(message)
        return message

    @property
    def retry_after(self) -> float | None:
        """Seconds of RetryInfo, None without one."""
        info = self.detail(error_details_pb2.RetryInfo)
        return None if info is None else float(info.retry_delay.ToTimedelta().total_seconds())

    @property
    def quota(self) -> list[tuple[str, str]]:
        """(subject, description) of each QuotaFailure violation."""
        failure = self.detail(error_details_pb2.QuotaFailure)
        return [] if failure is None else [(each.subject, each.description) for each in failure.violations]

    @property
    def violations(self) -> dict[str, str]:
        """Description by field of BadRequest; in a batch of one the item's own field names."""
        bad = self.detail(error_details_pb2.BadRequest)
        found = [] if bad is None else bad.field_violations
        return {each.field.removeprefix("requests[0]."): each.description for each in found}


def of_rpc(error: grpc.RpcError, call: str = "") -> CallFailed:
    """The error of a unary call, of this name. Fails when its status and its details disagree."""
    assert isinstance(error, grpc.Call)
    code, message = error.code(), error.details() or ""
    trailers = [(name, value) for name, value in error.trailing_metadata() or ()]
    packed = [value for name, value in trailers if name == DETAILS_KEY]
    assert len(packed) <= 1
    if not packed:
        return CallFailed(code, message, None, call)
    status = Status.FromString(packed[0])
    assert status.code == code.value[0]
    # The header's copy is cut where the block would be too long for proxies; the details hold it whole.
    assert status.message.startswith(message)
    headers = [
        (name, value if isinstance(value, str) else base64.b64encode(value).decode()) for name, value in trailers
    ]
    headers += [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", str(code.value[0]))]
    headers.append(("grpc-message", quote(message, safe=_PRINTABLE)))
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    assert size < MOST_HEADER_BYTES, size
    if status.message != message:
        assert size > MOST_HEADER_BYTES - 300, "cut shorter than it had to be"
    pushback = [value for name, value in trailers if name == "grpc-retry-pushback-ms"]
    error = CallFailed(code, status.message, status, call)
    if error.reason:
        row = TABLE[error.reason]
        assert pushback == (["-1"] if row.final or HOPELESS in status.message else []), error
    return error


def of_status(status: Status, call: str = "") -> CallFailed:
    """The error of a call on a Session, or of an item of a batch. `call` names it."""
    return CallFailed(_CODES[status.code], status.message, status, call)


@dataclass(frozen=True)
class Row:
    """What the contract says of a reason: code, metadata keys, and which details are there."""

    code: Code
    keys: frozenset[str] = frozenset()
    maybe: frozenset[str] = frozenset()
    retry: bool = False
    quota: bool = False
    bad_request: bool = False

    @property
    def final(self) -> bool:
        """Whether the same call meets it again however often it is repeated."""
        return not self.retry and self.code not in {Code.NOT_FOUND, Code.DEADLINE_EXCEEDED, Code.INTERNAL}


def _row(code: Code, *keys: str, maybe: tuple[str, ...] = (), **details: bool) -> Row:
    return Row(code, frozenset(keys), frozenset(maybe), **details)


HOPELESS: Final = "waiting does not help"
"""Words of an ARENA_FULL that no waiting mends."""

TABLE: Final = {
    "TOP_LOGPROBS_OVERFLOW": _row(Code.RESOURCE_EXHAUSTED, "requested", "limit", maybe=("token_index",), quota=True),
    "FIELD_OVERFLOW": _row(Code.RESOURCE_EXHAUSTED, "field", "requested", "limit", quota=True),
    "ARENA_FULL": _row(
        Code.RESOURCE_EXHAUSTED, "slots_total", "in_use", maybe=("heap_total", "heap_in_use"), retry=True
    ),
    "TOO_MANY_WAITERS": _row(Code.RESOURCE_EXHAUSTED, "limit", retry=True),
    "HANDOFF_EXISTS": _row(Code.ALREADY_EXISTS, "state", "age_ms"),
    "RECORD_IMMUTABLE": _row(Code.ALREADY_EXISTS),
    "STALE_RESERVATION": _row(Code.ABORTED, "state", maybe=("token_epoch", "store_epoch")),
    "RESERVATION_EXPIRED": _row(Code.FAILED_PRECONDITION),
    "INVALID_RECORD": _row(Code.INVALID_ARGUMENT, bad_request=True),
    "INVALID_REQUEST": _row(Code.INVALID_ARGUMENT, bad_request=True),
    "HANDOFF_NOT_FOUND": _row(Code.NOT_FOUND),
    "RECORD_NOT_READY": _row(Code.DEADLINE_EXCEEDED, "state"),
    "HANDOFF_ABORTED": _row(Code.ABORTED, "http_status", "failure_reason"),
    "HANDOFF_EXPIRED": _row(Code.ABORTED),
    "PRODUCER_RESTARTED": _row(Code.UNAVAILABLE),
    "ALREADY_CONSUMED": _row(Code.FAILED_PRECONDITION),
    "STORE_RESTARTED": _row(Code.FAILED_PRECONDITION, "expected", "actual"),
    "SCHEMA_MISMATCH": _row(Code.FAILED_PRECONDITION, "expected", "actual"),
    "REQUEST_MISMATCH": _row(Code.FAILED_PRECONDITION, "state"),
    "ENGINE_UNREACHABLE": _row(Code.UNAVAILABLE, retry=True),
    "DRAINING": _row(Code.UNAVAILABLE, retry=True),
    "INTERNAL": _row(Code.INTERNAL),
}
"""Contract section 6, row by row, credentials aside."""


JUDGED: Final[set[tuple[str, str]]] = set()
"""(reason, call) of every error that `check` found right."""


def check(error: CallFailed, reason: str, **metadata: object) -> None:
    """Hold an error against its row of the table, all of it, and against these metadata values."""
    assert error.status is not None, f"no details: {error}"
    assert error.reason == reason, f"{error.reason}: {error}"
    row = TABLE[reason]
    assert error.code is row.code
    assert error.domain == DOMAIN
    assert row.keys <= error.metadata.keys() <= row.keys | row.maybe, error.metadata
    for name, value in metadata.items():
        assert error.metadata.get(name) == str(value), (name, error.metadata)
    assert error.message
    assert error.status.message == error.message
    assert (error.retry_after is not None) == row.retry, error.status
    assert bool(error.quota) == row.quota, error.status
    assert bool(error.violations) == row.bad_request, error.status
    if error.retry_after is not None:
        assert 0 < error.retry_after <= 10
    if row.quota:
        assert OVERFLOW_WORDS in error.message
        assert error.metadata["requested"] in error.message
        assert error.metadata["limit"] in error.message
    assert error.status.ByteSize() < MOST_BYTES
    JUDGED.add((reason, error.call))


class refused:  # noqa: N801 - reads as a sentence in a with statement
    """`with refused("ARENA_FULL", in_use=1) as caught:` - the body must be refused so; `caught.error` is the error."""

    error: CallFailed

    def __init__(self, reason: str, **metadata: object) -> None:
        self._reason = reason
        self._metadata = metadata

    def __enter__(self) -> refused:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            raise AssertionError(f"not refused; {self._reason} was due")
        if not isinstance(error, CallFailed):
            return False
        self.error = error
        check(error, self._reason, **self._metadata)
        return True
