"""One process's connection to its store: publishing at once, reading and aborting in the background."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from pd_handoff import aio
from pd_handoff._channel import DEFAULT_TARGET
from pd_handoff._requests import new_name
from pd_handoff.client import DecodeClient, PrefillClient
from pd_handoff.engines.sglang.attempts import CATCH_UP, FENCE, STEP, is_behind
from pd_handoff.engines.sglang.breaker import Breaker
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    HandoffError,
    HandoffExists,
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
_FENCE = 0.5  # seconds that decode's loop waits for a fence; it takes a millisecond
_PROBE = 0.25  # seconds that prefill's loop waits to learn whether a store is back


class StoreLink:
    """How one scheduler process (one rank) of SGLang reaches the store. Prefill publishes with a blocking client,
    because the next step needs the answer; decode waits for its records on one background thread, however many there
    are, so that a scheduler's loop never blocks on a record that is not there. A store that is away makes prefill's
    loop wait once; then its calls fail at once for a while (see Breaker).

    Args:
        target: `host:port` or `unix:PATH` of the store.
        namespace: separates models or deployments that share a store; the same on both sides.
        publishes: whether this rank publishes. All ranks of a prefill hold the same record: let one of them do it.
        reports: whether this rank tells the store of aborts; None is as `publishes`. One rank of those that end a
            request alike is enough, and only the one that publishes knows why the store refused a record.
        expected_readers: how many decode ranks read each record.
        reader_id: names this rank among them; made up when None.
        lease: seconds that a slot is held for a prefill that has begun.
        slot_wait: seconds that a publication waits for a free slot, in the scheduler's loop.
        wait: seconds that decode waits for a record before the request fails.
        timeout: seconds that a call may take on top of its waits.
        retries: how calls outlive a store that is away; None keeps it short where the scheduler waits (2 s), and longer
            in the background (30 s).
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
        expected_readers: int = 1,
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
        self._background_settings = {**settings, "retries": patient, "reader_id": reader_id}
        others = {name: value for name, value in settings.items() if name not in ("instance_id", "epoch")}
        self._probe_settings = {**others, "timeout": min(timeout, _PROBE), "retries": NO_RETRIES}
        self.breaker = Breaker(self._probe, pause=pause, clock=clock)
        self._lock = threading.Lock()
        self._prefill: PrefillClient | None = None
        self._prober: DecodeClient | None = None
        self._background: _Background | None = None
        self._closed = False

    @property
    def prefill(self) -> PrefillClient:
        """The blocking client of the producer's side."""
        with self._lock:
            self._require_open()
            if self._prefill is None:
                self._prefill = PrefillClient(self.target, **self._settings)
            return self._prefill

    def call(self, work: Callable[[PrefillClient], T]) -> T:
        """One call of prefill's, in the scheduler's loop. Raises a HandoffError: StoreUnavailable at once while the
        store is known to be away."""
        self.breaker.check()
        try:
            return work(self.prefill)
        except HandoffError as error:
            self.breaker.note(error)
            raise

    def fence(self, key: Key, attempt: int) -> None:
        """Keeps every attempt below `attempt` from being taken for it: a prefill that has forgotten what it did in this
        room is told so by the store. Waits for the answer, since SGLang's prefill must not publish before; gives up
        after half a second, and does not wait while the store is known to be away."""
        placed = self._start(lambda client: _fence(client, key, attempt), to_settle=True)
        try:
            self.breaker.check()
        except StoreUnavailable:
            return
        if not wait((placed,), _FENCE).done:
            self.breaker.note(DeadlineExceeded(f"room {key.room}: no answer to decode's fence"))

    def read(self, key: Key, attempt: int) -> Future[Handoff]:
        """Waits for a record in the background and consumes it. The future fails with a HandoffError; cancelling it
        ends the wait."""
        return self._start(lambda client: self._read(client, key, attempt))

    def abort(self, key: Key, failure: Failure, attempt: int) -> Future[bool]:
        """Aborts in the background: a scheduler does not wait for it. The future tells, and the log when it failed."""
        return self._start(lambda client: _abort(client, key, failure, attempt), to_settle=True)

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
        under the same key is left alone (False). An attempt that was `counted` here may turn out to be behind: then
        the one that decode waits for is aborted."""
        client = self.prefill
        last = attempt + (CATCH_UP * STEP if counted else 0)
        return self._start(
            lambda _: _abort_own(client, self.breaker, key, failure, attempt, last, held, terms), to_settle=True
        )

    def settle(self, timeout: float = 5.0) -> None:
        """Waits up to `timeout` seconds until the aborts sent so far have their answer."""
        background = self._background
        if background is not None:
            background.settle(timeout)

    def close(self) -> None:
        """Ends waits, sends what aborts are still to be sent, and closes the connections."""
        with self._lock:
            self._closed = True
            clients = (self._prefill, self._prober)
            self._prefill = self._prober = None
            background, self._background = self._background, None
        if background is not None:
            background.close()
        for client in clients:
            if client is not None:
                client.close()

    def _probe(self) -> None:
        with self._lock:
            self._require_open()
            if self._prober is None:
                self._prober = DecodeClient(self.target, **self._probe_settings)
            prober = self._prober
        prober.capabilities()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this StoreLink is closed")

    def _start(
        self, work: Callable[[aio.DecodeClient], Coroutine[Any, Any, T]], *, to_settle: bool = False
    ) -> Future[T]:
        with self._lock:
            self._require_open()
            if self._background is None:
                self._background = _Background(self.target, self._background_settings)
            return self._background.start(work, to_settle)

    async def _read(self, client: aio.DecodeClient, key: Key, attempt: int) -> Handoff:
        deadline = time.monotonic() + self.wait
        while True:  # ends with the deadline
            began = time.monotonic()
            try:
                return await client.get(key, attempt=attempt, max_wait=max(deadline - began, 0.0), consume=True)
            except RecordNotReady:  # the store's longest wait may be shorter than ours
                now = time.monotonic()
                if now >= deadline:
                    raise
                await asyncio.sleep(max(0.0, min(_LEAST_PAUSE - (now - began), deadline - now)))


async def _abort(client: aio.DecodeClient, key: Key, failure: Failure, attempt: int) -> bool:
    try:
        return await client.abort(key, failure, attempt=attempt)
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
        except HandoffError as error:
            if not breaker.away:
                breaker.note(error)
            if not isinstance(error, (StoreUnavailable, DeadlineExceeded)) or time.monotonic() >= deadline:
                log.warning("room %d: the abort did not reach the store: %s", key.room, error)
                raise
            await asyncio.sleep(_CLAIM_PAUSE)


class _Background:
    """A thread with an event loop and one asyncio client."""

    def __init__(self, target: str, settings: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._pending: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pd-handoff-sglang", daemon=True)
        self._thread.start()

        async def connect() -> aio.DecodeClient:
            return aio.DecodeClient(target, **settings)

        self.client = asyncio.run_coroutine_threadsafe(connect(), self._loop).result(10.0)

    def start(self, work: Callable[[aio.DecodeClient], Coroutine[Any, Any, T]], to_settle: bool) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(work(self.client), self._loop)
        if to_settle:
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
        return future

    def settle(self, timeout: float) -> None:
        wait(tuple(self._pending), timeout)

    def close(self) -> None:
        self.settle(2.0)

        async def finish() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.client.close()

        asyncio.run_coroutine_threadsafe(finish(), self._loop).result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()
