"""The life of one hand-off on the prefill side: reserve, keep alive, then publish or abort. Steps for both faces."""

from __future__ import annotations

import copy
import re
from typing import Any

from pd_handoff import errors
from pd_handoff._calls import AnyRecord, Calls
from pd_handoff._steps import Pause, Steps
from pd_handoff.model import Failure, Key, Published, Reservation
from pd_handoff.retries import NO_RETRIES

# These answers to a renewal are final; anything else (no answer, a drain) may pass, and the store judges at the Put.
_LOST = (
    errors.StaleReservation,
    errors.ReservationExpired,
    errors.HandoffAborted,
    errors.HandoffExpired,
    errors.HandoffExists,
    errors.ProducerRestarted,
    errors.AlreadyConsumed,
)
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}")
_QUICK_SECONDS = 1.0


class Prefill:
    """State and steps; the faces add how to wait."""

    def __init__(self, calls: Calls, key: Key | int, options: dict[str, Any]) -> None:
        self._calls = calls
        self._key = key
        self._options = options
        self._reservation: Reservation | None = None
        self._lost: errors.HandoffError | None = None
        self._published: Published | None = None
        self._over = False

    @property
    def reservation(self) -> Reservation:
        """As last renewed. Raises RuntimeError outside of the `with` block."""
        if self._reservation is None:
            raise RuntimeError("this hand-off is not reserved yet: enter the context manager first")
        return self._reservation

    @property
    def lost(self) -> errors.HandoffError | None:
        """Why the reservation is gone (aborted by the reader, superseded, expired), as soon as a renewal has told; None
        while it is alive. Look at it between steps of a long prefill to stop early."""
        return self._lost

    @property
    def published(self) -> Published | None:
        """The confirmation, once the record was put."""
        return self._published

    def _begin(self) -> Steps[None]:
        self._reservation = yield from self._calls.reserve(self._key, **self._options)

    def _keep(self) -> Steps[None]:
        """Renews until the hand-off is over: at a third of the lease, sooner after a failure that may pass."""
        calls = self._calls.but(retries=NO_RETRIES)
        pause = self.reservation.lease / 3
        while not self._over:
            yield Pause(pause)
            if self._over:
                return
            held = self.reservation
            try:
                self._reservation = yield from calls.renew(held)
                pause = self.reservation.lease / 3
            except _LOST as error:
                if not self._over:  # else the refusal is the consequence of our own end
                    self._lost = error
                return
            except errors.ClientClosed:
                return
            except errors.HandoffError:
                pause = min(held.lease / 10, 1.0)

    def _put(self, record: AnyRecord) -> Steps[Published]:
        if self._lost is not None:
            raise copy.copy(self._lost)
        self._published = yield from self._calls.put(self.reservation, record)
        self._over = True
        return self._published

    def _abort(self, failure: Failure) -> Steps[bool]:
        ended = yield from self._calls.abort(self.reservation, failure, None)
        self._over = True
        return ended

    def _finish(self, error: BaseException | None) -> Steps[None]:
        """Leaving the block: what was not published, or failed, is aborted. Never masks `error`."""
        was_over, self._over = self._over, True
        if self._lost is not None or (error is None and was_over):
            return
        calls = self._calls
        if error is not None and not isinstance(error, Exception):
            # An interrupt or a cancellation does not wait for a store that is away; the lease ends what we cannot.
            calls = calls.but(retries=NO_RETRIES, timeout=min(calls.timeout, _QUICK_SECONDS))
        try:
            yield from calls.abort(self.reservation, _failure_of(error), None)
        except errors.HandoffError as refused:
            if error is None and not isinstance(refused, _LOST):
                raise


def _failure_of(error: BaseException | None) -> Failure:
    if error is None:
        return Failure(500, "PRODUCER_DID_NOT_PUT", "the prefill ended without a record")
    if isinstance(error, errors.HandoffAborted):
        return error.failure
    status = getattr(error, "http_status", None)
    if isinstance(status, int) and 100 <= status <= 599:
        # Whoever gives a status means it for the user; the text of any other exception stays in this process.
        reason = getattr(error, "reason", None)
        known = isinstance(reason, str) and _REASON.fullmatch(reason)
        return Failure(status, str(reason) if known else "PRODUCER_FAILED", str(error))
    return Failure(500, "PRODUCER_FAILED", f"the prefill failed: {type(error).__name__}")
