"""One process's connection to its store. Everything happens in the background."""

from __future__ import annotations

import _thread
import asyncio
import logging
import re
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from pd_handoff import aio
from pd_handoff._calls.requests import new_name
from pd_handoff._transport.channel import DEFAULT_TARGET, target_of
from pd_handoff.client import PrefillClient
from pd_handoff.engines.sglang.attempts import CATCH_UP, FENCE, STEP, is_behind
from pd_handoff.engines.sglang.breaker import Breaker
from pd_handoff.engines.sglang.connections import Connections
from pd_handoff.engines.sglang.courier import Courier
from pd_handoff.engines.sglang.failures import Unworkable, fault_of
from pd_handoff.engines.sglang.prompt import Prompt
from pd_handoff.engines.sglang.texts import sendable
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    HandoffError,
    HandoffExists,
    InvalidRequest,
    RecordImmutable,
    RecordNotReady,
    StaleReservation,
    StoreUnavailable,
)
from pd_handoff.handoff import Handoff
from pd_handoff.model import Failure, Key, Reservation
from pd_handoff.retries import NO_RETRIES, Retries

T = TypeVar("T")
log = logging.getLogger(__name__)
_CLAIM = 30.0  # seconds that an abort of one's own outlives a store that is away
_CLAIM_PAUSE = 0.5  # seconds between two tries of it
_LEAST_PAUSE = 0.05  # seconds between two asks for a record that a store refuses to wait for
_PROBE = 0.25  # seconds that prefill's calls wait to learn whether a store is back

MOST_READERS = 1024  # as a store takes them
PLAIN = Failure(500, "ABORTED", "the other side ended the request; its own words could not be sent")
namespace_fits = re.compile(r"[A-Za-z0-9._-]{0,128}").fullmatch


class StoreLink:
    """How one scheduler process (one rank) of SGLang reaches the store. Prefill's reservations and records go by the
    `courier`, one thread that batches them; decode waits for its records on one background thread, however many there
    are. So a scheduler's loop never waits for the store. While a store is away, prefill's calls fail at once (see
    Breaker).

    Args:
        target: `host:port` or `unix:PATH` of the store.
        namespace: separates models or deployments that share a store; the same on both sides.
        publishes: whether this rank publishes. All ranks of a prefill hold the same record: let one of them do it.
        reports: whether this rank tells the store of aborts; None is as `publishes`. One rank of those that end a
            request alike is enough, and only the one that publishes knows why the store refused a record.
        expected_readers: how many decode ranks read each record; None takes the attention TP size that decode gives
            when it connects.
        reader_id: names this rank among them; made up when None.
        lease: seconds that a slot is held for a prefill that has begun.
        slot_wait: seconds that a publication waits for a free slot.
        wait: seconds that decode waits for a record before the request fails.
        timeout: seconds that a call may take on top of its waits.
        retries: how calls outlive a store that is away; None keeps it short for prefill (2 s), whose requests fail
            then, and longer for reads and aborts (30 s).
        pause: seconds that prefill's calls fail at once after one that got no answer, before the store is asked again.
        clock: seconds that only grow, by which `pause` is measured.
        options: `credentials`, `token`, `instance_id`, `epoch` and the like, as both clients take them.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        namespace: str = "",
        publishes: bool = True,
        reports: bool | None = None,
        expected_readers: int | None = None,
        reader_id: str | None = None,
        lease: float = 600.0,
        slot_wait: float = 0.5,
        wait: float = 300.0,
        timeout: float = 2.0,
        retries: Retries | None = None,
        pause: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        """Raises ValueError for a target that is no address, and for a namespace or expected_readers that no store
        takes."""
        target_of(target)
        if expected_readers is not None and not 1 <= expected_readers <= MOST_READERS:
            raise ValueError(f"expected_readers must be from 1 to {MOST_READERS}, is {expected_readers}")
        if not namespace_fits(namespace):
            raise ValueError(f"namespace must be up to 128 of letters, digits, '.', '_' and '-', is {namespace!r}")
        self.target = target
        self.publishes = publishes
        self.reports = publishes if reports is None else reports
        self.expected_readers = expected_readers
        self.lease = lease
        self.slot_wait = slot_wait
        self.wait = wait
        self.owner = new_name("sglang")
        settings = {"namespace": namespace, "timeout": timeout, **options}
        self._settings = {**settings, "retries": retries or Retries(2.0)}
        patient = retries or Retries(30.0, also=frozenset({"TOO_MANY_WAITERS"}))
        background = {**settings, "retries": patient, "reader_id": reader_id}
        others = {name: value for name, value in settings.items() if name not in ("instance_id", "epoch")}
        probe = {**others, "timeout": min(timeout, _PROBE), "retries": NO_RETRIES}
        self._connections = Connections(self.target, self._settings, background, probe)
        self.breaker = Breaker(self._connections.probe, pause=pause, clock=clock)
        self.courier = Courier(self._connections.prefill, self.breaker)
        # SGLang drops its buffers without a word when a node changes its role. Whatever runs then must not be held up,
        # nor may the last reference go on the background thread and wait there for itself: a thread of its own closes.
        finalizer = weakref.finalize(self, _thread.start_new_thread, _close, (self.courier, self._connections))
        finalizer.atexit = False

    @property
    def prefill(self) -> PrefillClient:
        """The blocking client of the producer's side."""
        return self._connections.prefill()

    def fence(self, key: Key, attempt: int) -> None:
        """Keeps every attempt below `attempt` from being taken for it: a prefill that has forgotten what it did in this
        room learns so from the store. Sent in the background; SGLang's prefill has a whole prefill to do before it
        publishes."""
        self._start(lambda client: _fence(client, key, attempt), to_settle=True)

    def read(self, key: Key, attempt: int, prompt: Prompt | None = None) -> Future[Handoff]:
        """Waits for a record in the background and consumes it; with a `prompt`, only the record of that one. The
        future fails with a HandoffError; cancelling it ends the wait."""
        patience = self.wait  # and not self: a link that was dropped is not kept by what waits on it
        return self._start(lambda client: _read(client, key, attempt, patience, prompt))

    def abort(self, key: Key, failure: Failure, attempt: int) -> Future[bool]:
        """Aborts in the background: a scheduler does not wait for it. The future tells, and the log when it failed."""
        words = sendable(failure)
        return self._start(lambda client: _abort(client, key, words, attempt), to_settle=True)

    def abort_own(
        self,
        key: Key,
        failure: Failure,
        attempt: int,
        held: Reservation | None,
        terms: dict[str, Any],
        *,
        counted: bool = False,
    ) -> Future[bool]:
        """Aborts in the background what this prefill holds, or could hold under `terms`; a hand-off of another owner
        under the same key is left alone (False), unless the store takes `terms` for malformed: then nothing can be
        claimed, and the abort goes by the key. An attempt that was `counted` here may turn out to be behind: then
        the one that decode waits for is aborted."""
        try:
            client = self.prefill
        except Exception as error:
            return _never(error)
        breaker, words = self.breaker, sendable(failure)
        last = attempt + (CATCH_UP * STEP if counted else 0)
        return self._start(
            lambda _: _abort_own(client, breaker, key, words, attempt, last, held, terms), to_settle=True
        )

    def settle(self, timeout: float = 5.0) -> None:
        """Waits up to `timeout` seconds until the aborts sent so far have their answer."""
        self._connections.settle(timeout)

    def close(self) -> None:
        """Ends waits, sends what records and aborts are still to be sent, and closes the connections."""
        _close(self.courier, self._connections)

    def _start(
        self, work: Callable[[aio.DecodeClient], Coroutine[Any, Any, T]], *, to_settle: bool = False
    ) -> Future[T]:
        try:
            return self._connections.start(work, to_settle)
        except Exception as error:
            return _never(error)


def _close(courier: Courier, connections: Connections) -> None:
    courier.close()
    connections.close()


def _never(error: Exception) -> Future[Any]:
    """In the place of what could not be started at all."""
    log.error("a call of the store could not be made", exc_info=error)
    future: Future[Any] = Future()
    future.set_exception(Unworkable(fault_of(error).message))
    return future


async def _read(client: aio.DecodeClient, key: Key, attempt: int, patience: float, prompt: Prompt | None) -> Handoff:
    digest = None if prompt is None else prompt.digest()
    deadline = time.monotonic() + patience
    while True:  # ends with the deadline
        began = time.monotonic()
        try:
            return await client.get(
                key, attempt=attempt, max_wait=max(deadline - began, 0.0), consume=True, request_digest=digest
            )
        except RecordNotReady:  # the store's longest wait may be shorter than ours
            now = time.monotonic()
            if now >= deadline:
                raise
            await asyncio.sleep(max(0.0, min(_LEAST_PAUSE - (now - began), deadline - now)))


async def _abort(client: aio.DecodeClient, key: Key, failure: Failure, attempt: int) -> bool:
    try:
        try:
            return await client.abort(key, failure, attempt=attempt)
        except InvalidRequest as error:
            log.warning("room %d: the abort goes without its words: %s", key.room, error)
            return await client.abort(key, PLAIN, attempt=attempt)
    except HandoffError as error:
        log.warning("room %d: the abort did not reach the store: %s", key.room, error)
        raise


async def _fence(client: aio.DecodeClient, key: Key, attempt: int) -> None:
    try:
        # Ends, too, what is live below: of a prefill that began too low, before decode asked.
        await client.abort(key, FENCE, attempt=attempt - 1)
    except HandoffError as error:
        log.warning("room %d: decode's fence did not reach the store: %s", key.room, error)


async def _abort_own(
    client: PrefillClient,
    breaker: Breaker,
    key: Key,
    failure: Failure,
    attempt: int,
    last: int,
    held: Reservation | None,
    terms: dict[str, Any],
) -> bool:
    """A key says nothing of its owner, so the abort goes by token: that of the reservation, or of one made for it. Runs
    the blocking client in a thread, because one client a process is what the store knows as this producer; while the
    store is known to be away no thread waits for it."""
    deadline = time.monotonic() + _CLAIM
    while True:  # ends with the deadline
        try:
            if breaker.away:
                raise StoreUnavailable("the store does not answer")
            if held is None:
                held = await asyncio.to_thread(partial(client.reserve, key, attempt=attempt, **terms))
            return await asyncio.to_thread(client.abort, held, failure)
        except (ArenaFull, Draining):  # nobody has the key: a store looks that up first
            return await asyncio.to_thread(partial(client.abort, key, failure, attempt=attempt))
        except (StaleReservation, HandoffAborted) as error:
            if held is not None:
                held = None  # lost with a store that restarted, or overtaken: the next round tells
            elif is_behind(error) and attempt < last:
                attempt += STEP
            else:
                return False
        except (HandoffExists, RecordImmutable):
            return False
        except InvalidRequest as error:
            # What cannot be claimed ends by its key, or decode would wait for it until its patience ends.
            log.warning("room %d: aborted by its key: %s", key.room, error)
            return await asyncio.to_thread(partial(_abort_plainly, client, key, failure, attempt))
        except HandoffError as error:
            if not breaker.away:
                breaker.note(error)
            if not isinstance(error, (StoreUnavailable, DeadlineExceeded)) or time.monotonic() >= deadline:
                log.warning("room %d: the abort did not reach the store: %s", key.room, error)
                raise
            await asyncio.sleep(_CLAIM_PAUSE)


def _abort_plainly(client: PrefillClient, key: Key, failure: Failure, attempt: int) -> bool:
    try:
        return client.abort(key, failure, attempt=attempt)
    except InvalidRequest as error:
        log.warning("room %d: the abort goes without its words: %s", key.room, error)
        return client.abort(key, PLAIN, attempt=attempt)
