"""The life of one hand-off on the prefill side: reserve, keep alive, then publish or abort. Steps for both faces."""

from __future__ import annotations

import copy
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from pd_handoff import errors
from pd_handoff._calls.calls import AnyRecord, Calls
from pd_handoff._calls.steps import Pause, Steps
from pd_handoff._calls.waits import wait_of
from pd_handoff._values.failure_text import text_of
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
# A Reserve refused for one of these is refused again however often it is repeated, so that decode waits in vain.
_PERMANENT = (errors.TopLogprobsOverflow, errors.FieldOverflow, errors.MessageTooLarge, TypeError, ValueError)
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,62}")
_QUICK_SECONDS = 1.0
_WATCH_SECONDS = 20.0
"""That a watch waits in the store at a time. It looks after each whether there is still something to watch."""
_UNWATCHABLE = (
    errors.PermissionDenied,
    errors.Unauthenticated,
    errors.NotAStore,
    errors.InvalidRequest,
    errors.ClientClosed,
)
"""After these there is no use in watching; renewals go on, and tell at the latest."""

OnAbort: TypeAlias = Callable[[errors.HandoffError], object]


class Prefill:
    """State and steps; the faces add how to wait."""

    def __init__(self, calls: Calls, key: Key | int, options: dict[str, Any], on_abort: OnAbort | None = None) -> None:
        self._calls = calls
        self._key = key
        self._options = options
        self._on_abort = on_abort
        self._watched = on_abort is not None
        self._losing = threading.Lock()
        self._reservation: Reservation | None = None
        self._lost: errors.HandoffError | None = None
        self._published: Published | None = None
        self._over = False
        self._process = os.getpid()  # that entered

    @property
    def reservation(self) -> Reservation:
        """As last renewed. Raises RuntimeError outside of the `with` block."""
        if self._reservation is None:
            raise RuntimeError("this hand-off is not reserved yet: enter the context manager first")
        return self._reservation

    @property
    def lost(self) -> errors.HandoffError | None:
        """Why the reservation is gone (aborted by the reader, superseded, expired), as soon as a renewal or a watch
        (see `aborted`) has told; None while it is alive. Look at it between steps of a long prefill to stop early."""
        return self._lost

    @property
    def aborted(self) -> bool:
        """Whether the hand-off was ended by the other side. `lost` says why.

        The first look, or `on_abort`, starts a watch: a Get that waits in the store and consumes nothing. From then on
        an abort is known within a round trip, not only at the next renewal. The credentials must be allowed to Get;
        without that only renewals tell."""
        if not self._watched:
            self._watched = True
            if self._reservation is not None and not self._over and os.getpid() == self._process:
                self._start_watch()
        return self._lost is not None

    @property
    def published(self) -> Published | None:
        """The confirmation, once the record was put."""
        return self._published

    def _begin(self) -> Steps[None]:
        self._process = os.getpid()
        try:
            self._reservation = yield from self._calls.reserve(self._key, **self._options)
        except _PERMANENT as error:  # InvalidRequest is a ValueError
            yield from self._refused(error)
            raise

    def _refused(self, error: Exception) -> Steps[None]:
        """Tell a waiting decode that no record will come of this attempt."""
        # A key or an attempt that no store can know has no reader; else the caller's own error matters more.
        with suppress(errors.HandoffError, TypeError, ValueError):
            yield from self._calls.abort(self._key, _failure_of(error), self._options.get("attempt", 0))

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
                self._lose(error)
                return
            except errors.ClientClosed:
                return
            except errors.HandoffError:
                pause = min(held.lease / 10, 1.0)

    def _lose(self, error: errors.HandoffError) -> None:
        """The hand-off is gone; told once. Our own end has refusals as its consequence, which say nothing."""
        with self._losing:
            if self._over or self._lost is not None:
                return
            self._lost = error
        if self._on_abort is not None:
            try:
                self._on_abort(error)
            except Exception:  # it must end neither the renewals nor the event loop's task
                logging.getLogger("pd_handoff").exception("on_abort failed")

    def _start_watch(self) -> None:
        """The faces begin to carry out `_watch` beside the caller's work."""
        raise NotImplementedError

    def _watch(self) -> Steps[None]:
        """Waits for the record that this hand-off will publish. Whatever ends the hand-off ends the wait."""
        calls = self._calls
        while not self._over and self._lost is None:
            held = self.reservation
            request = calls.get_request(held.key, held.attempt, _WATCH_SECONDS, False, "", None)
            try:
                found = yield from calls.ask("Get", request, wait_of(request))
            except errors.RecordNotReady:
                continue
            except _LOST as error:
                self._lose(error)
                return
            except _UNWATCHABLE:
                return
            except errors.HandoffError:  # away, draining, or too many wait
                yield Pause(1.0)
                continue
            if found.attempt > held.attempt:
                self._lose(errors.StaleReservation(f"attempt {held.attempt} was superseded by {found.attempt}"))
            return

    def _put(self, record: AnyRecord) -> Steps[Published]:
        if self._lost is not None:
            raise copy.copy(self._lost)
        self._check_process()
        try:
            self._published = yield from self._calls.put(self.reservation, record)
        except errors.RecordImmutable:
            self._over = True  # a record was published under this reservation, and stays
            raise
        self._over = True
        return self._published

    def _abort(self, failure: Failure) -> Steps[bool]:
        self._check_process()
        ended = yield from self._calls.abort(self.reservation, failure, None)
        self._over = True
        return ended

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this hand-off belongs to process {self._process}, which entered it; a child process cannot end it"
            )

    def _finish(self, error: BaseException | None) -> Steps[None]:
        """Leaving the block: what was neither published nor aborted is aborted. Never masks `error`."""
        if os.getpid() != self._process:
            return  # a child process leaves a copy of the block; the hand-off is its parent's
        was_over, self._over = self._over, True
        if self._lost is not None or was_over:
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
    status, reason = _attribute(error, "http_status"), _attribute(error, "reason")
    if isinstance(status, int) and 100 <= status <= 599:
        # An exception with a status is meant for the user; the text of any other stays in this process.
        known = isinstance(reason, str) and _REASON.fullmatch(reason)
        return Failure(int(status), str(reason) if known else "PRODUCER_FAILED", text_of(error))
    return Failure(500, "PRODUCER_FAILED", f"the prefill failed: {type(error).__name__}")


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # a property of a foreign class
        return None
