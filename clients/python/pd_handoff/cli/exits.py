"""What a failed command says and returns."""

from __future__ import annotations

import json
import sys
from typing import Any

from pd_handoff import errors

OK, OTHER, USAGE, OVER_LIMIT, FULL, NOT_THERE, ENDED, CONFLICT, UNAVAILABLE, CREDENTIALS, WRONG_STORE = range(11)

EXPLAINED = """\
exit codes:
  0   done
  1   another error
  2   wrong usage, unreadable file, malformed record or request
  3   over a limit of the store: shrink the record, or raise the limit
  4   no free slot, or too many waiting calls: try later, or wait with --wait
  5   not there (yet): nobody knows the hand-off, or its record is not published
  6   ended: aborted, expired, consumed, superseded, or lost by a restart
  7   conflict: the key or the record belongs to somebody else
  8   no answer: the store is unreachable, starting, draining, or too slow; wait for it with --retry
  9   credentials missing, wrong, or not sufficient
  10  the server is no store, or of another version
  130 interrupted
"""

_CODES: dict[type[errors.HandoffError], int] = {
    errors.InvalidRecord: USAGE,
    errors.InvalidRequest: USAGE,
    errors.TopLogprobsOverflow: OVER_LIMIT,
    errors.FieldOverflow: OVER_LIMIT,
    errors.MessageTooLarge: OVER_LIMIT,
    errors.ArenaFull: FULL,
    errors.TooManyWaiters: FULL,
    errors.HandoffNotFound: NOT_THERE,
    errors.RecordNotReady: NOT_THERE,
    errors.HandoffAborted: ENDED,
    errors.HandoffExpired: ENDED,
    errors.ReservationExpired: ENDED,
    errors.ProducerRestarted: ENDED,
    errors.AlreadyConsumed: ENDED,
    errors.StoreRestarted: ENDED,
    errors.StaleReservation: ENDED,
    errors.HandoffExists: CONFLICT,
    errors.RecordImmutable: CONFLICT,
    errors.StoreUnavailable: UNAVAILABLE,
    errors.Draining: UNAVAILABLE,
    errors.DeadlineExceeded: UNAVAILABLE,
    errors.Unauthenticated: CREDENTIALS,
    errors.PermissionDenied: CREDENTIALS,
    errors.NotAStore: WRONG_STORE,
    errors.SchemaMismatch: WRONG_STORE,
}

# Where the store's own sentence cannot know what to do with this command.
_HINTS: dict[type[errors.HandoffError], str] = {
    errors.ArenaFull: "--wait SECONDS queues for a slot",
    errors.HandoffNotFound: "--wait SECONDS waits for it",
    errors.RecordNotReady: "--wait SECONDS waits for it",
    errors.StoreUnavailable: "start one with `pd-handoff serve`, or name it with --target or PD_HANDOFF_TARGET; "
    "--retry SECONDS outlasts one that is away for a moment",
    errors.Draining: "--retry SECONDS asks again until it serves",
    errors.DeadlineExceeded: "raise --timeout",
    errors.Unauthenticated: "give --bearer-file, or --tls-cert and --tls-key",
    errors.PermissionDenied: "use credentials of a role that may do this",
    errors.StoreInternalError: "the store's log tells the cause",
}


def code_of(error: errors.HandoffError) -> int:
    """The exit code for an error."""
    return _CODES.get(type(error), OTHER)


def report(error: errors.HandoffError, as_json: bool) -> int:
    """Tells it on stderr, in one line or as JSON, and returns the exit code."""
    if as_json:
        print(json.dumps({"error": _as_dict(error)}), file=sys.stderr)
        return code_of(error)
    text = " ".join(error.message.split())
    if isinstance(error, errors.HandoffAborted):
        failure = error.failure
        text = f"aborted with HTTP status {failure.http_status}, reason {failure.reason}: {text or 'no message'}"
    hint = _HINTS.get(type(error))
    print(f"pd-handoff: {error.reason}: {text}{f' ({hint})' if hint else ''}", file=sys.stderr)
    return code_of(error)


def usage(text: str, as_json: bool) -> int:
    """As `report`, for what is wrong on this side; its reason is USAGE."""
    return report(errors.InvalidRequest(text, reason="USAGE"), as_json)


def _as_dict(error: errors.HandoffError) -> dict[str, Any]:
    return {
        "reason": error.reason,
        "code": error.code,
        "message": error.message,
        "metadata": error.metadata,
        "http_status": error.http_status,
        "retry_after": error.retry_after,
        "violations": [violation._asdict() for violation in error.violations],
        "hint": _HINTS.get(type(error)),
        "exit_code": code_of(error),
    }
