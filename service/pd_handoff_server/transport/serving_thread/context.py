"""What all calls of one fast server share."""

from __future__ import annotations

from typing import Any

from pd_handoff_server import refusal
from pd_handoff_server.handlers.call import Report
from pd_handoff_server.handlers.status import ending
from pd_handoff_server.handlers.store import Calls
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.transport.gate import Gate

from .grpc_internals import Arrival


class Front:
    """The gate, the lock that parked calls change hands under, and how a refusal is told.

    Attributes:
        unread: what is kept for callers that do not read.
        lock: that of `unread`; held for a few instructions at a time, never while calling anything but gRPC.
        streams: open Sessions; changed on the serving thread alone.
    """

    def __init__(self, gate: Gate, report: Report) -> None:
        self.gate = gate
        self.unread = gate.unread
        self.lock = gate.unread.lock
        self.streams: set[Any] = set()
        self._stopping = False
        self._report = report

    def session_calls(self) -> Calls:
        """For a new Session. Raises Refusal DRAINING while the store is not ready, or stops."""
        self.refuse_stopping()
        return self.gate.ready_calls()

    def refuse_stopping(self) -> None:
        """Raises Refusal DRAINING when the server stops."""
        if self._stopping:
            raise refusal.draining()

    def stop(self) -> None:
        """End all Sessions, which would otherwise last as long as their callers like."""
        self._stopping = True
        for stream in list(self.streams):
            stream.stop()

    def refused(self, method: str, arrival: Arrival, refused: Refusal, error: BaseException | None) -> None:
        """Note that a call was refused, or failed unforeseen."""
        self._report(method, arrival, refused, error)

    def failed(self, error: BaseException) -> None:
        """Note a failure that no call stands behind."""
        self._report("", None, Refusal("INTERNAL", "the serving thread caught an error"), error)

    @staticmethod
    def status(refused: Refusal) -> tuple[int, str, Any]:
        """(code, message, trailing metadata with the details)."""
        code, message, trailing = ending(refused)
        return code.value[0], message, trailing or None
