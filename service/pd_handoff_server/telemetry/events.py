"""Events of the life of hand-offs, by structlog."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

import structlog

from pd_handoff_server.access.authenticator import Approach, Denied
from pd_handoff_server.lifecycle.model import Handoff, Key, Observer, Outcome, Tombstone
from pd_handoff_server.refusal import Refusal

from .frames import frames_of
from .rate_limit import Allowance
from .trace import current_trace, trace_of

_QUIET = frozenset({"HANDOFF_NOT_FOUND", "RECORD_NOT_READY", "ARENA_FULL", "TOO_MANY_WAITERS", "DRAINING", "NOT_FOUND"})
_EVENTS_PER_SECOND, _EVENTS_AT_ONCE = 20.0, 200


class _Log:
    """A stream whose reader may go away, or whose disk may fill: what it cannot take is lost, and no call with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """As a stream has it, but for errors."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        """As `write`."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(log_format: str, log_level: str) -> None:
    """Write events to standard error, as JSON or for people."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log_level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Log(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def key_text(key: Key) -> str:
    """namespace/room/sample."""
    return f"{key[0]}/{key[1]}/{key[2]}"


class EventLog(Observer):
    """Hand-offs that end otherwise than by being read are told at info; `CourseLog` tells the ordinary course, too.

    Callers can cause all of these events, at any rate. One allowance bounds all of them together; the next event that
    is written says how many were left out before it.

    Attributes:
        held_back: events that were left out so far.
    """

    def __init__(self, logger: Any, *, debug: bool = False) -> None:
        self._log = logger
        self._debug = debug
        self._allowance = Allowance(_EVENTS_PER_SECOND, _EVENTS_AT_ONCE)

    @property
    def held_back(self) -> int:
        """See above."""
        return self._allowance.held_back

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """See `Observer`."""
        if tombstone is None:
            self._write(self._log.info, "superseded", lambda: _facts(handoff))
        elif tombstone.outcome is not Outcome.COMPLETED:
            self._write(self._log.info, "ended", lambda: _end_facts(handoff, tombstone))

    def buried(self, tombstone: Tombstone) -> None:
        """See `Observer`. An Abort ahead of its Reserve ends nothing that `ended` would tell of."""
        if not tombstone.token and tombstone.failure is not None:
            self._write(self._log.info, "aborted_before_reserve", lambda: _ahead_facts(tombstone))

    def producer_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """See `Observer`."""
        facts = {"namespace": namespace, "instance_id": instance_id, "epoch": epoch}
        self._write(self._log.info, "producer", lambda: facts)

    def refused(self, method: str, approach: Approach | None, refused: Refusal, error: BaseException | None) -> None:
        """A call was refused, or failed without our having foreseen it."""
        if error is not None:
            self._tell(self._log.error, "failed", method, approach, exception=frames_of(error))
        elif refused.reason not in _QUIET:
            self._tell(self._log.info, "refused", method, approach, **_refusal_facts(refused))
        elif self._debug:
            self._tell(self._log.debug, "refused", method, approach, **_refusal_facts(refused))

    def denied(self, method: str, approach: Approach, denied: Denied) -> None:
        """A caller was not let in."""
        facts = {"code": denied.code.name}
        if denied.caller:
            facts["caller"] = denied.caller
        self._tell(self._log.warning, "denied", method.rpartition("/")[2], approach, **facts)

    def _tell(self, write: Any, event: str, method: str, approach: Approach | None, **facts: Any) -> None:
        """Write an event of a call."""

        def all_facts() -> dict[str, Any]:
            peer = "" if approach is None else approach.peer()
            return {"method": method, "peer": peer, **facts, **trace_of(approach)}

        self._write(write, event, all_facts)

    def _write(self, write: Any, event: str, facts: Callable[[], dict[str, Any]]) -> None:
        """Write an event if the allowance has room for it; its facts are made only then."""
        held_back = self._allowance.take()
        if held_back is None:
            return
        if held_back:
            write(event, held_back=held_back, **facts())
        else:
            write(event, **facts())

    def renewed_file(self, path: str, error: Exception | None) -> None:
        """A file of certificates or of access was read again."""
        if error is None:
            self._log.info("access_file_reloaded", path=path)
        else:
            self._log.error("access_file_rejected", path=path, error=str(error))

    def doubtful_file(self, path: str, what: str) -> None:
        """A file of certificates or of access is used, and should be looked at."""
        self._log.warning("access_file_doubtful", path=path, what=what)


class CourseLog(EventLog):
    """Tells the ordinary course of hand-offs as well, at debug."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logger, debug=True)

    def reserved(self, handoff: Handoff) -> None:
        """See `Observer`."""
        self._log.debug("reserved", **_facts(handoff))

    def published(self, handoff: Handoff) -> None:
        """See `Observer`."""
        self._log.debug("published", **_facts(handoff))

    def consumed(self, handoff: Handoff, reader: bytes, *, again: bool) -> None:
        """See `Observer`."""
        self._log.debug("consumed", again=again, **_facts(handoff))

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """See `Observer`."""
        super().ended(handoff, tombstone)
        if tombstone is not None and tombstone.outcome is Outcome.COMPLETED:
            self._log.debug("freed", **_facts(handoff))


def _refusal_facts(refused: Refusal) -> dict[str, Any]:
    facts: dict[str, Any] = {"reason": refused.reason}
    if refused.key is not None:
        facts["key"] = key_text(refused.key)
    if refused.caller:
        facts["caller"] = refused.caller
    if refused.owner:
        facts["owner"] = refused.owner
    if "state" in refused.metadata:
        facts["state"] = refused.metadata["state"]
    return facts


def _end_facts(handoff: Handoff, tombstone: Tombstone) -> dict[str, Any]:
    facts = _facts(handoff)
    facts["was"], facts["state"] = facts["state"], tombstone.outcome.state
    reason = tombstone.failure.reason if tombstone.failure else tombstone.outcome.value
    return {"reason": reason, "outcome": tombstone.outcome.value, **facts}


def _ahead_facts(tombstone: Tombstone) -> dict[str, Any]:
    return {
        "key": key_text(tombstone.key),
        "attempt": tombstone.attempt,
        "state": tombstone.outcome.state,
        "reason": "" if tombstone.failure is None else tombstone.failure.reason,
        **current_trace(),
    }


def _facts(handoff: Handoff) -> dict[str, Any]:
    return {
        "key": key_text(handoff.key),
        "attempt": handoff.attempt,
        "owner": handoff.owner,
        "state": handoff.state.value,
        "slot": handoff.slot,
        **current_trace(),
    }
