"""What a failed command says and returns."""

from __future__ import annotations

import json
import sys
from typing import Any

from pd_handoff import errors

OK, OTHER, USAGE, OVER_LIMIT, FULL, NOT_THERE, ENDED, CONFLICT, UNAVAILABLE, CREDENTIALS, WRONG_STORE, MISMATCH = range(
    12
)

EXPLAINED = """\
exit codes:
  0   done
  1   another error
  2   wrong usage, unreadable file, malformed record or request
  3   over a limit of the store: shrink the record, or raise the limit
  4   no free slot, or too many waiting calls: try later, or wait with --wait
  5   not there (yet): nobody knows the hand-off, or its record is not published
  6   ended: aborted, expired, consumed, superseded, or lost by a restart
  7   conflict: the key or the record belongs to another owner or request
  8   no answer: the store is unreachable, starting, draining, or too slow; wait for it with --retry
  9   credentials missing, wrong, or not sufficient
  10  the server is no store, or of another version
  11  something answers there, but with TLS on one side only, a certificate that is refused, or another protocol
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
    errors.RequestMismatch: CONFLICT,
    errors.StoreUnavailable: UNAVAILABLE,
    errors.Draining: UNAVAILABLE,
    errors.EngineUnreachable: UNAVAILABLE,
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


class Mismatch(errors.StoreUnavailable):
    """Something answers at the address, but not as this client asked. `hint` says what to do."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message, reason="MISMATCH")
        self.hint = hint


# The same after a wait was asked for.
_WAITED: dict[type[errors.HandoffError], str] = {
    errors.ArenaFull: "`pd-handoff list` shows what holds the slots; more of them: serve --slots",
    errors.HandoffNotFound: "`pd-handoff list` shows which hand-offs there are",
    errors.RecordNotReady: "`pd-handoff list` shows whether its prefill has reserved, and when that expires",
}


def hint_of(error: errors.HandoffError, waited: bool = False) -> str | None:
    """What to do about it."""
    if isinstance(error, Mismatch):
        return error.hint
    return (_WAITED.get(type(error)) if waited else None) or _HINTS.get(type(error))


def code_of(error: errors.HandoffError) -> int:
    """The exit code for an error."""
    if isinstance(error, Mismatch):
        return MISMATCH
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), OTHER)


def report(error: errors.HandoffError, as_json: bool, waited: bool = False) -> int:
    """Prints it to stderr, in one line or as JSON, and returns the exit code. `waited`: the command had a --wait."""
    if as_json:
        print(json.dumps({"error": _as_dict(error, waited)}), file=sys.stderr)
        return code_of(error)
    text = " ".join(error.message.split())
    if isinstance(error, errors.HandoffAborted):
        failure = error.failure
        text = f"aborted with HTTP status {failure.http_status}, reason {failure.reason}: {text or 'no message'}"
    hint = hint_of(error, waited)
    print(f"pd-handoff: {error.reason}: {text}{f' ({hint})' if hint else ''}", file=sys.stderr)
    return code_of(error)


def usage(text: str, as_json: bool) -> int:
    """As `report`, for what is wrong on this side; its reason is USAGE."""
    return report(errors.InvalidRequest(text, reason="USAGE"), as_json)


def _as_dict(error: errors.HandoffError, waited: bool) -> dict[str, Any]:
    return {
        "reason": error.reason,
        "code": error.code,
        "message": error.message,
        "metadata": error.metadata,
        "http_status": error.http_status,
        "retry_after": error.retry_after,
        "violations": [violation._asdict() for violation in error.violations],
        "hint": hint_of(error, waited),
        "exit_code": code_of(error),
    }
