"""The series of `docs/metrics.md`, made of the counts when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pd_handoff_server import __version__
from pd_handoff_server.handlers.capabilities import SCHEMA_FINGERPRINT
from pd_handoff_server.process.heap import heap
from pd_handoff_server.store.interface import Store

from .buckets import Buckets
from .metrics import CallMetrics, Lives

# Series that could never move are left out: a Session's calls are counted as their own methods', of the stream itself
# only who was not let in; the answer to Release is empty.
_NO_CALLS = frozenset({"Session"})
_EMPTY_ANSWERS = frozenset({"Release"})
_SLOT_STATES = ("free", "reserved", "published", "consumed", "quarantined")


@dataclass(slots=True)
class Sources:
    """Where the numbers come from; `store` is None until it is ready, `serving` tells whether it takes calls."""

    lives: Lives
    calls: CallMetrics
    store: Store | None = None
    sessions: Callable[[], int] = int
    unread: Callable[[], int] = int
    events_held_back: Callable[[], int] = int
    serving: bool = False


class StoreCollector(Collector):
    """Makes all series of a store."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield _gauge("serving", "1 while the store takes calls, 0 while it starts or drains.", self._sources.serving)
        found = heap()
        if found is not None:
            memory = GaugeMetricFamily("pd_handoff_heap_bytes", "Bytes of the process's heap.", labels=("state",))
            memory.add_metric(("used",), found.used)
            memory.add_metric(("free",), found.free)
            yield memory
        yield _counter(
            "log_events_held_back",
            "Log events left out, since callers caused too many.",
            self._sources.events_held_back(),
        )
        yield from self._store()
        yield from self._lives()
        yield from self._calls()

    def _store(self) -> Iterator[Metric]:
        store = self._sources.store
        if store is None:
            return
        facts, census = store.facts(), store.census()
        info = GaugeMetricFamily(
            "pd_handoff_info", "What runs; always 1.", labels=("version", "store_epoch", "schema_fingerprint")
        )
        info.add_metric((__version__, facts.epoch, SCHEMA_FINGERPRINT), 1)
        yield info
        yield _gauge("capacity_slots", "Slots in all.", facts.slots_total)
        yield _gauge("row_bytes", "Bytes of a row.", facts.row_bytes)
        yield _gauge("arena_bytes", "Bytes of all rows.", facts.row_bytes * facts.slots_total)
        heap = GaugeMetricFamily("pd_handoff_attachment_heap_bytes", "Bytes of the heap by state.", labels=("state",))
        for state in ("free", "in_use", "consumed"):
            heap.add_metric((state,), getattr(census, f"heap_{state}"))
        yield heap
        slots = GaugeMetricFamily("pd_handoff_slots", "Slots by state.", labels=("state",))
        for state in _SLOT_STATES:
            slots.add_metric((state,), getattr(census, state))
        yield slots
        waiters = GaugeMetricFamily("pd_handoff_waiters", "Calls that wait in the store.", labels=("kind",))
        waiters.add_metric(("record",), census.waiting_readers)
        waiters.add_metric(("slot",), census.waiting_claimants)
        yield waiters
        yield _gauge("waiters_limit", "Calls that may wait in the store.", facts.max_waiters)
        yield _gauge("waiting_bytes", "Bytes held by calls that wait.", census.waiting_bytes)
        yield _gauge("unread_bytes", "Bytes of answers that are not out, or not read.", self._sources.unread())
        yield _gauge("sessions", "Open Session streams.", self._sources.sessions())
        yield _gauge("tombstones", "Outcomes of ended hand-offs that are remembered.", census.tombstones)
        yield _gauge("producers", "Prefill processes whose epoch is remembered.", census.producers)

    def _lives(self) -> Iterator[Metric]:
        lives = self._sources.lives
        yield _counter("reserved", "Slots handed out.", lives.reserved_total)
        yield _counter("renewed", "Leases renewed.", lives.renewed_total)
        yield _counter("published", "Records published.", lives.published_total)
        yield _counter("consumed", "Consumptions by a reader for the first time.", lives.consumed_total)
        yield _counter("redelivered", "Consuming reads repeated, as after a lost answer.", lives.redelivered_total)
        yield _counter("forgotten", "Outcomes no longer remembered.", lives.forgotten_total)
        yield _counter("producer_epochs", "Starts of prefill processes that were noticed.", lives.restarts_total)
        endings = CounterMetricFamily(
            "pd_handoff_ended", "Hand-offs ended, by outcome and the state that it met.", labels=("outcome", "state")
        )
        for names, number in sorted(lives.endings.copy().items()):
            endings.add_metric(names, number)
        yield endings
        yield _histogram("reserve_to_put_seconds", "From a Reserve to its Put.", lives.reserve_to_put)
        yield _histogram("put_to_get_seconds", "From a Put to its first consuming Get.", lives.put_to_get)

    def _calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "pd_handoff_calls", "Calls answered, by reason; those of Sessions too.", labels=("method", "reason")
        )
        received = CounterMetricFamily("pd_handoff_received_bytes", "Bytes of requests.", labels=("method",))
        sent = CounterMetricFamily("pd_handoff_sent_bytes", "Bytes of answers but refusals.", labels=("method",))
        seconds = HistogramMetricFamily(
            "pd_handoff_call_seconds", "From a request to its answer, waiting included.", labels=("method",)
        )
        for name, method in self._sources.calls.methods.items():
            now = method.copy()
            for reason, number in sorted(now.reasons.items()):
                calls.add_metric((name, reason), number)
            if name in _NO_CALLS:
                continue
            received.add_metric((name,), now.received)
            if name not in _EMPTY_ANSWERS:
                sent.add_metric((name,), now.sent)
            seconds.add_metric((name,), now.seconds.cumulative(), now.seconds.seconds)
        items = CounterMetricFamily(
            "pd_handoff_batch_items", "Items of batches answered, by reason.", labels=("method", "reason")
        )
        for names, number in sorted(self._sources.calls.items.copy().items()):
            items.add_metric(names, number)
        yield from (calls, received, sent, seconds, items)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily("pd_handoff_" + name, what, value=float(value))


def _counter(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily("pd_handoff_" + name, what, value=value)


def _histogram(name: str, what: str, buckets: Buckets) -> Metric:
    return HistogramMetricFamily("pd_handoff_" + name, what, buckets=buckets.cumulative(), sum_value=buckets.seconds)
