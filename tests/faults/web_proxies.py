"""nginx and HAProxy between the client and the store: their default buffers, and timeouts that cut what waits.

On each transport, through each proxy, once with its own settings and once with a read timeout of one second. Hand-offs
go through as they are. Reads wait for several timeouts with a retry budget shorter than one of them: each is cut time
and again, asks for the rest of its wait, and gets its record.
"""

from __future__ import annotations

import threading
from typing import Any

from pd_handoff import AdminClient, DecodeClient, HandoffError, HandoffState, PrefillClient, Retries

from tests.support.process import ProcessStore
from tests.support.proxies import WebProxy
from tests.support.waits import eventually

from . import traffic
from .common import WIDTHS, Options, Report, Scenario, differences, per_transport, record_of
from .outside import QUIET, metrics

CUTTING = {"nginx": "grpc_read_timeout 1s;", "haproxy": "timeout server 1s"}
"""Lines that make each proxy end what has been silent for a second."""
BUDGET = Retries(total_seconds=0.8, initial_backoff=0.01, max_backoff=0.05)
PARKED = 3.5
"""Seconds until the records of parked reads come: three cuts, and several times the budget."""
READERS = 8
SECONDS = 60.0

_pause = threading.Event()  # never set: only waited on


def parked(target: str, store: ProcessStore, first_room: int, report: Report) -> None:
    """Reads that the proxy cuts while they wait."""
    found: dict[int, Any] = {}

    def read(decode: DecodeClient, room: int) -> None:
        try:
            found[room] = decode.get(room, max_wait=SECONDS)
        except HandoffError as error:
            report.fault(f"room {room}: a parked read ended: {error.reason or type(error).__name__}: {error}")

    rooms = range(first_room, first_room + READERS)
    with (
        PrefillClient(store.target) as prefill,
        DecodeClient(target, reader_id="reader", retries=BUDGET, session="never") as decode,
        AdminClient(store.target) as admin,
    ):
        threads = [threading.Thread(target=read, args=(decode, room), daemon=True) for room in rooms]
        for thread in threads:
            thread.start()
        eventually(lambda: waiters(store) >= READERS, "all reads wait", SECONDS)
        _pause.wait(PARKED)
        for room in rooms:
            prefill.put_once(room, record_of(("", room, 0), 0))
        for thread in threads:
            thread.join(SECONDS)
        for room in rooms:
            if room not in found:
                report.expect(bool(report.faults), f"room {room}: its read hangs")
                continue
            wrong = differences(found[room].proto, ("", room, 0), 0)
            report.expect(not wrong, f"room {room}: read another record, different in {wrong[:5]}")
            report.count("parked reads that were cut")
            state = admin.get_handoff(room).state
            report.expect(state is HandoffState.CONSUMED, f"room {room}: read, and yet {state.name}")
    eventually(lambda: waiters(store) == 0, "no waiter is left behind", SECONDS)


def waiters(store: ProcessStore) -> float:
    """Reads that wait in the store."""
    return metrics(store)['pd_handoff_waiters{kind="record"}']


def play(options: Options, report: Report, transport: str) -> None:
    """One transport, with a store for each proxy."""
    settings: dict[str, Any] = {"slots": 256, "transport": transport, **WIDTHS, **QUIET}
    for kind, cutting in CUTTING.items():
        listen = f"unix:{options.directory}/{kind}-store"
        with ProcessStore(listen, **settings).wait() as store:
            with WebProxy(kind, listen, options.directory) as front:
                traffic.hand_over(front.target, options.times(60, 2_000), f"{options.seed}/{kind}", report)
            with WebProxy(kind, listen, options.directory, cutting) as front:
                for turn in range(options.times(1, 8)):
                    parked(front.target, store, 10**9 + 10**3 * turn, report)


SCENARIO = Scenario(
    "web-proxies", "nginx and HAProxy before the store, with timeouts that cut what waits", per_transport(play)
)
