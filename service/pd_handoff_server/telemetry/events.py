"""Events of the life of hand-offs, by structlog."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from pd_handoff_server.lifecycle.model import Handoff, Key, Observer, Outcome, Tombstone
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.rpc.guard import Approach, Denied

from .allowance import Allowance
from .frames import frames_of
from .trace import current_trace, trace_of

_QUIET = frozenset({"HANDOFF_NOT_FOUND", "RECORD_NOT_READY", "ARENA_FULL", "TOO_MANY_WAITERS", "DRAINING", "NOT_FOUND"})
_REFUSALS_A_SECOND, _REFUSALS_AT_ONCE = 20.0, 200


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
    """Hand-offs that end otherwise than by being read are told at info; `CourseLog` tells the ordinary course, too."""

    def __init__(self, logger: Any, *, debug: bool = False) -> None:
        self._log = logger
        self._debug = debug
        self._refusals = Allowance(_REFUSALS_A_SECOND, _REFUSALS_AT_ONCE)

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """See `Observer`."""
        if tombstone is None:
            self._log.info("superseded", **_facts(handoff))
        elif tombstone.outcome is not Outcome.COMPLETED:
            reason = tombstone.failure.reason if tombstone.failure else tombstone.outcome.value
            facts = _facts(handoff)
            facts["was"], facts["state"] = facts["state"], tombstone.outcome.state
            self._log.info("ended", reason=reason, outcome=tombstone.outcome.value, **facts)

    def buried(self, tombstone: Tombstone) -> None:
        """See `Observer`. An Abort ahead of its Reserve ends nothing that `ended` would tell of."""
        if not tombstone.token and tombstone.failure is not None:
            self._log.info(
                "aborted ahead",
                key=key_text(tombstone.key),
                attempt=tombstone.attempt,
                state=tombstone.outcome.state,
                reason=tombstone.failure.reason,
                **current_trace(),
            )

    def producer_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """See `Observer`."""
        self._log.info("producer", namespace=namespace, instance_id=instance_id, epoch=epoch)

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
        """Callers can bring these about at will: write so many a second, and count the others."""
        held_back = self._refusals.take()
        if held_back is None:
            return
        if held_back:
            facts["held_back"] = held_back
        peer = "" if approach is None else approach.peer()
        write(event, method=method, peer=peer, **facts, **trace_of(approach))

    def renewed_file(self, path: str, error: Exception | None) -> None:
        """A file of certificates or of access was read again."""
        if error is None:
            self._log.info("read again", path=path)
        else:
            event = "not read again; what was known stays in force until it can be"
            self._log.error(event, path=path, error=str(error))

    def doubtful_file(self, path: str, what: str) -> None:
        """A file of certificates or of access is used, and should be looked at."""
        self._log.warning("look at this file", path=path, what=what)


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


def _facts(handoff: Handoff) -> dict[str, Any]:
    return {
        "key": key_text(handoff.key),
        "attempt": handoff.attempt,
        "owner": handoff.owner,
        "state": handoff.state.value,
        "slot": handoff.slot,
        **current_trace(),
    }
