"""Prefill's side of one hand-off: reserved when its request arrives, published or aborted when it ends."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future

from pd_handoff.aio import PrefillHandoff
from pd_handoff.engines.vllm.background import Background, Clients
from pd_handoff.engines.vllm.ending import no_handoff
from pd_handoff.engines.vllm.engine_request import Leg
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffError,
    StaleReservation,
    StoreUnavailable,
    TooManyWaiters,
)
from pd_handoff.model import Failure
from pd_handoff.record import Record

log = logging.getLogger("vllm.pd_handoff")
_SLOT_WAIT = 5.0  # seconds that a full store is waited for
_MAY_PASS = (ArenaFull, TooManyWaiters, StoreUnavailable, DeadlineExceeded, Draining)


class Sending:
    """Reserves at once, in the background, and renews until `publish` or `abort`. All methods return at once."""

    def __init__(self, background: Background, leg: Leg, owner: str, digest: bytes | None, lease: float) -> None:
        self._leg = leg
        self._owner = owner
        self._digest = digest
        self._lease = lease
        self._outcome: Future[Record | Failure] = Future()
        self._handoff: PrefillHandoff | None = None
        self._refused: HandoffError | None = None
        self._work = background.start(self._run)

    @property
    def ended(self) -> HandoffError | None:
        """Why nothing can be handed over any more; None while something can."""
        if self._refused is not None:
            return self._refused
        return None if self._handoff is None else self._handoff.lost

    @property
    def params_for_decode(self) -> dict[str, object]:
        """`kv_transfer_params` that a router may pass on to decode: the room, and nothing of where prefill is."""
        handoff: dict[str, object] = {"room": str(self._leg.key.room)}
        if self._leg.key.sample:
            handoff["sample"] = self._leg.key.sample
        if self._leg.attempt:
            handoff["attempt"] = self._leg.attempt
        return {"do_remote_prefill": True, "do_remote_decode": False, "handoff": handoff}

    def publish(self, record: Record) -> None:
        """The prefill is done."""
        self._outcome.set_result(record)

    def abort(self, failure: Failure) -> None:
        """The prefill failed, or is not needed."""
        self._outcome.set_result(failure)

    def settled(self, seconds: float) -> bool:
        """Waits until the store has the outcome, at most so many seconds. For tests."""
        try:
            self._work.result(seconds)
        except TimeoutError:
            return False
        return True

    async def _run(self, clients: Clients) -> None:
        outcome = asyncio.wrap_future(self._outcome)
        try:
            await self._hand_over(clients, outcome)
        except _MAY_PASS as error:
            log.warning("room %d: not reserved: %s", self._leg.key.room, error)
            await self._hand_over_late(clients, outcome, error)
        except HandoffError as error:
            self._refused = error
            log.warning("room %d: nothing is handed over: %s: %s", self._leg.key.room, type(error).__name__, error)

    async def _hand_over(self, clients: Clients, outcome: asyncio.Future[Record | Failure]) -> None:
        leg = self._leg
        manager = clients.prefill.prefill(
            leg.key,
            owner=self._owner,
            lease=self._lease,
            attempt=leg.attempt,
            max_wait=_SLOT_WAIT,
            request_digest=self._digest,
        )
        async with manager as handoff:
            self._handoff = handoff
            try:
                what = await asyncio.shield(outcome)
            except asyncio.CancelledError:  # the engine shuts down
                await handoff.abort(no_handoff("prefill shut down"))
                raise
            if isinstance(what, Failure):
                await handoff.abort(what)
                return
            try:
                await handoff.put(what)
            except StaleReservation:  # a store that came back empty knows no token of the former one
                await self._put_once(clients, what)
            except HandoffError as error:
                log.error("room %d: not published: %s: %s", leg.key.room, type(error).__name__, error)
                await handoff.abort(no_handoff(f"the record was not published: {error.reason}"))

    async def _hand_over_late(
        self, clients: Clients, outcome: asyncio.Future[Record | Failure], refused: HandoffError
    ) -> None:
        """After a Reserve that failed for a reason that may pass: once more, with the record."""
        if isinstance(refused, (ArenaFull, TooManyWaiters)):  # do not let decode wait for it
            self._refused = refused
            failure = no_handoff(f"the store took no reservation: {refused.reason}")
            await clients.prefill.abort(self._leg.key, failure, attempt=self._leg.attempt)
            return
        what = await outcome
        try:
            if isinstance(what, Record):
                await self._put_once(clients, what)
            else:
                await clients.prefill.abort(self._leg.key, what, attempt=self._leg.attempt)
        except HandoffError as error:
            self._refused = error
            log.warning("room %d: not published: %s: %s", self._leg.key.room, type(error).__name__, error)

    async def _put_once(self, clients: Clients, record: Record) -> None:
        await clients.prefill.put_once(
            self._leg.key,
            record,
            owner=self._owner,
            lease=self._lease,
            attempt=self._leg.attempt,
            request_digest=self._digest,
        )
