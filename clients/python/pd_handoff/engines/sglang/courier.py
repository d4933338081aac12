"""One thread that carries what a prefill has for the store, in batches: the scheduler's loop never waits for it."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pd_handoff.client import PrefillClient
from pd_handoff.engines.sglang.attempts import CATCH_UP, STEP, is_behind
from pd_handoff.engines.sglang.breaker import AWAY, Breaker
from pd_handoff.engines.sglang.failures import Unworkable, fault_of
from pd_handoff.engines.sglang.prompt import Prompt
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    HandoffError,
    StaleReservation,
    StoreUnavailable,
    TooManyWaiters,
)
from pd_handoff.model import Key, Published, Reservation, ReserveItem, Widths
from pd_handoff.v1 import record_pb2

log = logging.getLogger(__name__)
T = TypeVar("T")
PASSING = (ArenaFull, TooManyWaiters, StoreUnavailable, Draining, DeadlineExceeded)
"""Why a claim may be refused and the record taken all the same, a prefill later."""
MOST = 64
"""Orders of one batch. Each has at most one record, and a store takes 128 items."""
FULL_PAUSE = 0.05
"""Seconds for which a store without a free slot is not asked for another."""


@dataclass(kw_only=True)
class _Outcome(Generic[T]):
    """What becomes of an order. `before` gets the outcome on the courier's thread, before the future has it: whoever
    sees that the future is done sees what `before` did. It is dropped then, and with it all that it holds."""

    future: Future[T] = field(default_factory=Future)
    before: Callable[[T | None, BaseException | None], None] | None = None

    def succeed(self, value: T) -> None:
        """The store took it."""
        self._tell(value, None)
        self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """It was refused, or never sent."""
        self._tell(None, error)
        self.future.set_exception(error)

    def _tell(self, value: T | None, error: BaseException | None) -> None:
        before, self.before = self.before, None
        if before is not None:
            try:
                before(value, error)
            except Exception:  # of one order; the others go on
                log.exception("the outcome of a call of the store could not be taken")


@dataclass
class Claim(_Outcome[Reservation]):
    """A slot for a request that is about to be prefilled. `terms` are owner, lease and expected_readers as `reserve`
    takes them; one that was `counted` here may go on to later attempts (see Attempts)."""

    key: Key
    attempt: int
    widths: Widths | None
    terms: dict[str, Any]
    counted: bool
    began: float = 0.0
    prompt: Prompt | None = None


@dataclass
class Publication(_Outcome[Published]):
    """A record. `claim` is the slot that it goes into, if one was asked for; without one, or when that was refused for
    a passing reason, the record takes a slot of its own, for which it waits until `patience` seconds are over."""

    key: Key
    attempt: int
    record: record_pb2.HandoffRecord
    terms: dict[str, Any]
    counted: bool
    patience: float
    claim: Claim | None = None
    prompt: Prompt | None = None
    deadline: float = 0.0

    @property
    def held(self) -> Reservation | None:
        """The slot that was got for it."""
        done = self.claim is not None and self.claim.future.done() and self.claim.future.exception() is None
        return self.claim.future.result() if done and self.claim is not None else None


Order = Claim | Publication


class Courier:
    """Orders go out as they come; those that come while a call is under way go together with the next. A store that
    does not answer fails them all at once (see Breaker), and so does one that is full, for a moment.

    Args:
        client: gives the blocking client; called on the thread.
        breaker: knows whether the store answers.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        client: Callable[[], PrefillClient],
        breaker: Breaker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._breaker = breaker
        self._clock = clock
        self._inbox: queue.SimpleQueue[Order | threading.Event | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Publication]] = []
        self._numbers = itertools.count()
        self._full_until = 0.0
        self._full: ArenaFull | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pending: set[Future[Any]] = set()

    def send(self, order: Order) -> None:
        """Takes an order; its future has the outcome, a HandoffError where it was refused. Never waits."""
        with self._lock:
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="pd-handoff-courier", daemon=True)
                    self._thread.start()
                self._pending.add(order.future)
                order.future.add_done_callback(self._pending.discard)
                self._inbox.put(order)
                return
        order.fail(Unworkable("this StoreLink is closed"))

    def settle(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the outcomes of what was taken so far."""
        deadline = time.monotonic() + timeout
        wait_for(tuple(self._pending), timeout)
        with self._lock:
            if self._thread is None or self._closed:
                return
            passed = threading.Event()
            self._inbox.put(passed)
        passed.wait(max(deadline - time.monotonic(), 0.0))  # behind the callbacks of the last outcome

    def close(self, patience: float = 2.0) -> None:
        """Sends what was taken, for up to `patience` seconds."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._inbox.put(None)
            thread.join(patience)

    def _run(self) -> None:
        while True:  # ends when it is closed
            orders, settled, ends = self._take()
            try:
                self._carry([order for order in orders if order.future.set_running_or_notify_cancel()])
            except BaseException as error:  # a fault of this package: nobody else would tell those who wait
                log.exception("a call of the store could not be made")
                for order in orders:
                    if not order.future.done():
                        order.fail(Unworkable(fault_of(error).message))
            for passed in settled:
                passed.set()
            if ends:
                self._give_up()
                return

    def _take(self) -> tuple[list[Order], list[threading.Event], bool]:
        found: list[Order] = []
        settled: list[threading.Event] = []
        wait = None if not self._later else max(self._later[0][0] - self._clock(), 0.0)
        while len(found) < MOST:
            try:
                order = self._inbox.get_nowait() if wait == 0.0 else self._inbox.get(timeout=wait)
            except queue.Empty:
                break
            if order is None:
                return found, settled, True
            if isinstance(order, threading.Event):
                settled.append(order)
            else:
                found.append(order)
            wait = 0.0
        return found, settled, False

    def _give_up(self) -> None:
        for _, _, late in self._later:
            late.fail(Unworkable("this StoreLink is closed"))
        self._later.clear()

    def _carry(self, orders: list[Order]) -> None:
        claims = [order for order in orders if isinstance(order, Claim)]
        publications = [order for order in orders if isinstance(order, Publication)]
        if claims:
            self._claim(claims)
        if publications:
            self._publish(publications)
        self._try_again()

    # Claims.

    def _claim(self, claims: list[Claim]) -> None:
        if self._refuse_all(claims):
            return
        if len(claims) > 1:
            terms = _shared(claims[0].terms)
            same = all(_shared(one.terms) == terms for one in claims)
            items = [_item(one) for one in claims] if same else []
            if items:
                try:
                    held = self._call(lambda client: client.reserve_many(items, **terms))
                except AWAY as error:
                    _fail(claims, error)
                    return
                except HandoffError as error:  # of one of them; which one, each finds out alone
                    log.debug("a batch of %d reservations was refused: %s", len(claims), error)
                else:
                    for one, reservation in zip(claims, held, strict=True):
                        one.succeed(reservation)
                    return
        for place, one in enumerate(claims):
            if self._refuse_all(claims[place:]):
                return
            self._claim_alone(one)

    def _claim_alone(self, one: Claim) -> None:
        try:
            held = self._catch_up(
                one,
                lambda attempt: self._call(
                    lambda client: client.reserve(
                        one.key, widths=one.widths, **one.terms, attempt=attempt, request_digest=_digest(one)
                    )
                ),
            )
        except HandoffError as error:
            self._note_full(error)
            one.fail(error)
        else:
            one.succeed(held)

    def _catch_up(self, one: Order, work: Callable[[int], Any]) -> Any:
        """Does `work` with the attempt, or with a later one where the store says that decode waits for that."""
        for _ in range(CATCH_UP if one.counted else 0):
            try:
                return work(one.attempt)
            except (HandoffAborted, StaleReservation) as error:
                if not is_behind(error):
                    raise
                one.attempt += STEP
                log.info("room %d: on to attempt %d: %s", one.key.room, one.attempt, error)
        return work(one.attempt)

    def _refuse_all(self, claims: list[Claim]) -> bool:
        """Whether the store is known to be away or full; then each has its answer."""
        try:
            self._breaker.check()
        except HandoffError as error:
            _fail(claims, error)
            return True
        if self._full is not None and self._clock() < self._full_until:
            _fail(claims, self._full)
            return True
        return False

    def _note_full(self, error: HandoffError) -> None:
        if isinstance(error, ArenaFull):
            self._full, self._full_until = error, self._clock() + FULL_PAUSE

    # Publications.

    def _publish(self, publications: list[Publication]) -> None:
        now = self._clock()
        placed: list[tuple[Publication, Reservation]] = []
        for one in publications:
            one.deadline = now + one.patience
            held = one.held
            error = one.claim.future.exception() if one.claim is not None else None
            if held is not None:
                placed.append((one, held))
            elif isinstance(error, HandoffError) and not passes(error):
                one.fail(error)  # its request has been refused already
            else:
                self._publish_alone(one)
        if not placed:
            return
        try:
            self._breaker.check()
            outcomes = self._call(lambda client: client.put_many([(held, one.record) for one, held in placed]))
        except HandoffError as error:
            outcomes = [error] * len(placed)
        for (one, held), outcome in zip(placed, outcomes, strict=True):
            one.attempt = held.attempt
            if not isinstance(outcome, HandoffError):
                one.succeed(outcome)
            elif isinstance(outcome, StaleReservation) or (isinstance(outcome, HandoffAborted) and is_behind(outcome)):
                # A store that came back empty takes the record all the same; what was overtaken it refuses again.
                log.warning("room %d: %s; publishing anew", one.key.room, outcome)
                self._publish_alone(one)
            else:
                self._breaker.note(outcome)
                one.fail(outcome)

    def _publish_alone(self, one: Publication) -> None:
        now = self._clock()
        try:
            if self._full is not None and now < self._full_until:
                raise self._full
            self._breaker.check()
            published = self._catch_up(
                one,
                lambda attempt: self._call(
                    lambda client: client.put_once(
                        one.key, one.record, **one.terms, attempt=attempt, request_digest=_digest(one)
                    )
                ),
            )
        except ArenaFull as error:
            if now >= self._full_until:
                self._note_full(error)
            if now >= one.deadline:
                one.fail(error)
            else:
                heapq.heappush(self._later, (min(self._full_until, one.deadline), next(self._numbers), one))
        except HandoffError as error:
            one.fail(error)
        else:
            self._full = None
            one.succeed(published)

    def _try_again(self) -> None:
        """Those for which there was no slot a moment ago, oldest first."""
        now = self._clock()
        due = []
        while self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        for one in due:
            self._publish_alone(one)

    def _call(self, work: Callable[[PrefillClient], Any]) -> Any:
        """Raises nothing but a HandoffError: Unworkable for what is neither an answer of the store's nor its
        absence."""
        try:
            return work(self._client())
        except HandoffError as error:
            self._breaker.note(error)
            raise
        except Exception as error:
            log.exception("a call of the store could not be made")
            raise Unworkable(fault_of(error).message) from error


def passes(error: HandoffError) -> bool:
    """Whether a claim was refused for a reason that may be over when the record is there."""
    return isinstance(error, PASSING)


def _shared(terms: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in terms.items() if name != "owner"}


def _item(one: Claim) -> ReserveItem:
    return ReserveItem(
        one.key, owner=one.terms["owner"], widths=one.widths, attempt=one.attempt, request_digest=_digest(one)
    )


def _digest(one: Order) -> bytes | None:
    return None if one.prompt is None else one.prompt.digest()


def _fail(orders: list[Claim], error: HandoffError) -> None:
    for one in orders:
        one.fail(error)
