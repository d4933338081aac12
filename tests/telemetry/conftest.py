"""Stores that are watched: their metrics scraped, their events captured, their spans collected."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fixtures import Start, each_transport, failures, launch, loop_thread, sockets, start, transport
from tests.support.local import LocalStore
from tests.support.waits import PATIENCE

__all__ = ["each_transport", "failures", "launch", "loop_thread", "sockets", "start", "transport"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(address: str) -> Samples:
    """All samples of a store, by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Watched:
    """A store and what its metrics say."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.address = store.app.telemetry.metrics_address or ""

    def scrape(self) -> Samples:
        """All samples."""
        return scrape(self.address)

    def gauges(self) -> set[str]:
        """The names of all gauges of the store."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=PATIENCE) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {one.name for one in families if one.type == "gauge" and one.name.startswith("pd_handoff_")}

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 when there is none."""
        return self.scrape().get((f"pd_handoff_{name}", frozenset(labels.items())), 0.0)


@pytest.fixture
def watched(start: Start) -> Watched:
    """A store of eight slots whose metrics can be scraped, with a clock that the test turns."""
    return Watched(start(metrics_listen="127.0.0.1:0", slots=8, max_waiters=32, attachment_heap=1 << 16))
