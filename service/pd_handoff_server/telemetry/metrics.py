"""What is counted. Plain integers where things happen; `exposition` makes series of them when somebody asks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from pd_handoff_server.handlers.call import Answer, Call, Handler
from pd_handoff_server.lifecycle.clock import Clock
from pd_handoff_server.lifecycle.model import Handoff, Observer, State, Tombstone
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked

from .buckets import Buckets

CALL_SECONDS: Final = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60)
PREFILL_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
PICKUP_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10, 60, 300)

OK: Final = "OK"
CANCELLED: Final = "CANCELLED"
_GATHERED: Final = 512
_WAITING: Final = frozenset({"Reserve", "Put", "Get", "BatchReserve", "BatchPut", "BatchGet"})


class Lives(Observer):
    """The course of hand-offs. Counted under the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self.reserved_total = 0
        self.renewed_total = 0
        self.published_total = 0
        self.consumed_total = 0
        self.redelivered_total = 0
        self.forgotten_total = 0
        self.restarts_total = 0
        self.endings: Counter[tuple[str, str]] = Counter()  # by outcome, and the state that it met
        self.reserve_to_put = Buckets(PREFILL_SECONDS)
        self.put_to_get = Buckets(PICKUP_SECONDS)

    def reserved(self, handoff: Handoff) -> None:
        """See `Observer`."""
        del handoff
        self.reserved_total += 1

    def renewed(self, handoff: Handoff) -> None:
        """See `Observer`."""
        del handoff
        self.renewed_total += 1

    def published(self, handoff: Handoff) -> None:
        """See `Observer`."""
        self.published_total += 1
        self.reserve_to_put.add(handoff.published_mono - handoff.reserved_mono)

    def consumed(self, handoff: Handoff, reader: bytes, *, again: bool) -> None:
        """See `Observer`."""
        del reader
        if again:
            self.redelivered_total += 1
            return
        self.consumed_total += 1
        if len(handoff.readers) == 1 and handoff.state is not State.RESERVED:
            self.put_to_get.add(self._now() - handoff.published_mono)

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """See `Observer`."""
        outcome = "superseded" if tombstone is None else tombstone.outcome.value.lower()
        self.endings[outcome, handoff.state.value.lower()] += 1

    def buried(self, tombstone: Tombstone) -> None:
        """See `Observer`."""
        if not tombstone.token:  # an Abort ahead of its Reserve
            self.endings[tombstone.outcome.value.lower(), "none"] += 1

    def forgotten(self, tombstone: Tombstone) -> None:
        """See `Observer`."""
        del tombstone
        self.forgotten_total += 1

    def producer_epoch(self, namespace: str, instance_id: str, epoch: int) -> None:
        """See `Observer`."""
        del namespace, instance_id, epoch
        self.restarts_total += 1


class Method:
    """The calls of one method.

    What is noted is gathered first and added up many at a time, which costs a call half as much as adding at once.

    Attributes:
        reasons: how many were answered, by reason or OK; CANCELLED are those whose caller left while they waited.
        received, sent: bytes of requests, and of answers other than refusals.
        seconds: from the request to the answer, waiting included.
    """

    __slots__ = ("_lock", "_noted", "reasons", "received", "seconds", "sent")

    def __init__(self) -> None:
        self._noted: deque[tuple[str, int, int, int]] = deque()
        self._lock = threading.Lock()
        self.reasons: Counter[str] = Counter()
        self.received = 0
        self.sent = 0
        self.seconds = Buckets(CALL_SECONDS)

    def count(self, reason: str, duration: int, received: int, sent: int) -> None:
        """A call has its answer, after so many nanoseconds; bytes it brought and took."""
        self._noted.append((reason, duration, received, sent))
        if len(self._noted) >= _GATHERED:
            self.add_up()

    def add_up(self) -> None:
        """Add up what was noted."""
        with self._lock:
            noted = [self._noted.popleft() for _ in range(len(self._noted))]
            if not noted:
                return
            reasons, durations, received, sent = zip(*noted, strict=True)
            self.reasons.update(reasons)
            self.received += sum(received)
            self.sent += sum(sent)
            self.seconds.add_all(durations)

    def copy(self) -> Method:
        """As it is at this moment, whole."""
        self.add_up()
        twin = Method()
        with self._lock:
            twin.reasons, twin.received, twin.sent = self.reasons.copy(), self.received, self.sent
            twin.seconds.counts, twin.seconds.total = list(self.seconds.counts), self.seconds.total
        return twin


class _Waiting:
    """A parked call that is counted when its caller leaves."""

    __slots__ = ("_gone", "_parked")

    def __init__(self, parked: Parked, gone: Callable[[], None]) -> None:
        self._parked = parked
        self._gone = gone

    def cancel(self) -> bool:
        """See `Parked`."""
        if not self._parked.cancel():
            return False
        self._gone()
        return True


class CallMetrics:
    """The calls of all methods, by a `Wrap` and a `NoteItem`.

    Attributes:
        methods: by name.
        items: items of batches, by method and reason.
    """

    def __init__(self) -> None:
        self.methods: dict[str, Method] = {"Session": Method()}  # denials, and what is no call
        self.items: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def note_item(self, method: str, reason: str) -> None:
        """An item of a batch has its answer."""
        with self._lock:
            self.items[method, reason] += 1

    def note_refused(self, method: str, reason: str) -> None:
        """A call was not let in, or a message of a Session was none: no handler has seen it."""
        cell = self.methods.get(method)
        if cell is not None:
            cell.count(reason, 0, 0, 0)

    def wrap(self, method: str, handler: Handler) -> Handler:
        """Count the calls of a method."""
        cell = self.methods.setdefault(method, Method())
        count, now = cell.count, time.perf_counter_ns
        waits = method in _WAITING

        def handle(data: bytes, call: Call, done: Done) -> Answer:
            began, size = now(), len(data)

            def later(result: Any) -> None:
                if isinstance(result, Refusal):
                    count(result.reason, now() - began, size, 0)
                else:
                    count(OK, now() - began, size, len(result))
                done(result)

            try:
                answer = handler(data, call, later if waits else done)
            except Refusal as refused:
                count(refused.reason, now() - began, size, 0)
                raise
            except Exception:
                count("INTERNAL", now() - began, size, 0)
                raise
            if isinstance(answer, bytes):
                count(OK, now() - began, size, len(answer))
                return answer
            return _Waiting(answer, lambda: count(CANCELLED, now() - began, size, 0))

        return handle
