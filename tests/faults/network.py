"""Bad networks: delay, stall, reset, half-open connections and lost answers; links pulled, narrowed and losing packets.

The first half runs over a proxy on loopback, the second in network namespaces of its own, where the machine allows it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pd_handoff import (
    AdminClient,
    DecodeClient,
    Failure,
    HandoffError,
    HandoffNotFound,
    HandoffState,
    PrefillClient,
)

from tests.support.process import ProcessStore
from tests.support.waits import eventually

from . import traffic
from .common import WIDTHS, Options, Report, Scenario, differences, on_each_transport, record_of
from .fleet import REPOSITORY
from .namespaces import STORE, Cable, UnavailableError, inside
from .outside import QUIET, metrics
from .proxy import Proxy

SLOTS = 256
HALF_OPEN = 90.0
"""Seconds after which a store must have noticed that nobody is behind a connection; it asks after 30, for 20."""

_pause = threading.Event()  # never set: only waited on


class LostAnswers:
    """Calls whose answers are lost after the store has acted on them."""

    def __init__(self, store: ProcessStore, proxy: Proxy, report: Report) -> None:
        self._store = store
        self._proxy = proxy
        self._report = report
        self._admin = AdminClient(store.target)
        self._threads = ThreadPoolExecutor(1)

    def play(self, first_room: int, rounds: int) -> None:
        """Of each call, so often."""
        redelivered = metrics(self._store)["pd_handoff_redelivered_total"]
        with (
            PrefillClient(self._proxy.target, **traffic.retries()) as prefill,
            DecodeClient(self._proxy.target, reader_id="reader", **traffic.retries()) as decode,
            self._admin,
            self._threads,
        ):
            for room in range(first_room, first_room + rounds):
                for number, step in enumerate((self._one_room, self._once, self._aborted)):
                    try:
                        step(prefill, decode, room + number * 10**5)
                    except (HandoffError, AssertionError) as error:
                        self._report.fault(f"room {room + number * 10**5}: {step.__name__}: {error}")
        again = metrics(self._store)["pd_handoff_redelivered_total"] - redelivered
        self._report.expect(again == 2 * rounds, f"{again:g} records redelivered for {2 * rounds} lost answers")
        self._report.count("redelivered", int(again))

    def _one_room(self, prefill: PrefillClient, decode: DecodeClient, room: int) -> None:
        record = record_of(("", room, 0), 0)
        prefill.capabilities()
        held = self._lose(room, HandoffState.RESERVED, partial(prefill.reserve, room, owner=f"owner-{room}"))
        prefill.capabilities()
        published = self._lose(room, HandoffState.PUBLISHED, lambda: prefill.put(held, record))
        seen = self._admin.get_handoff(room)
        self._report.expect(published.published_at == seen.published_at, f"room {room}: a repeated Put differs")
        self._report.expect(seen.generation >= 0 and seen.attempt == 0, f"room {room}: {seen}")
        self._consume(decode, room)

    def _once(self, prefill: PrefillClient, decode: DecodeClient, room: int) -> None:
        record = record_of(("", room, 0), 0)
        prefill.capabilities()
        self._lose(room, HandoffState.PUBLISHED, lambda: prefill.put_once(room, record, owner=f"owner-{room}"))
        self._consume(decode, room)

    def _consume(self, decode: DecodeClient, room: int) -> None:
        decode.capabilities()
        found = self._lose(room, HandoffState.CONSUMED, lambda: decode.get(room, max_wait=30))
        wrong = differences(found.proto, ("", room, 0), 0)
        self._report.expect(not wrong, f"room {room}: redelivered another record, different in {wrong[:5]}")
        done = self._admin.get_handoff(room).readers_done
        self._report.expect(done == 1, f"room {room}: one reader counts as {done}")
        self._report.count("records compared")

    def _aborted(self, prefill: PrefillClient, decode: DecodeClient, room: int) -> None:
        held = prefill.reserve(room)
        why = Failure(413, "TOO_LONG", f"room {room}")
        self._lose(room, HandoffState.ABORTED, lambda: prefill.abort(held, why))
        try:
            decode.get(room, max_wait=30)
        except HandoffError as error:
            told = getattr(error, "failure", None)
            self._report.expect(told == why, f"room {room}: its reader was told {told}")
        else:
            self._report.fault(f"room {room}: read after its Abort")

    def _lose(self, room: int, state: HandoffState, call: Callable[[], Any]) -> Any:
        """Make a call, lose its answer once the store has done it, reset, and return what its repetition gets."""
        self._proxy.lose_answers(True)
        calling = self._threads.submit(call)
        try:
            eventually(lambda: self._state(room) is state, f"room {room} is {state.name}")
            before = self._proxy.swallowed
            eventually(lambda: self._proxy.swallowed > 0 and not calling.done(), f"an answer is lost, after {before}")
        finally:
            self._proxy.lose_answers(False)
            self._proxy.cut()
        self._report.count("answers lost")
        return calling.result(60)

    def _state(self, room: int) -> HandoffState | None:
        try:
            return self._admin.get_handoff(room).state
        except HandoffNotFound:
            return None


def _disturbed(store: ProcessStore, proxy: Proxy, options: Options, report: Report) -> None:
    """Hand-offs while connections are delayed, stalled and reset at random moments."""
    count, over = options.times(short=100, long=5000), threading.Event()
    rng = options.random("proxy")
    breaker = threading.Thread(target=_disturb, args=(proxy, rng, over, report), daemon=True)
    breaker.start()
    try:
        traffic.hand_over(proxy.target, count, str(options.seed), report)
    finally:
        over.set()
        breaker.join(30)
        proxy.lose_answers(False)
        proxy.delay(0)
        proxy.resume()
    free = store.steps().free
    report.expect(free == SLOTS, f"{SLOTS - free} slots lost behind the proxy")


def _disturb(proxy: Proxy, rng: random.Random, over: threading.Event, report: Report) -> None:
    while not over.wait(rng.uniform(0, 0.05)):
        kind = rng.choice(("delay", "stall", "cut", "cut", "lost answers"))
        if kind == "delay":
            proxy.delay(rng.uniform(0.001, 0.02))
            over.wait(rng.uniform(0.05, 0.2))
            proxy.delay(0)
            report.count("delays")
        elif kind == "stall":
            proxy.stall()
            over.wait(rng.uniform(0.01, 0.2))
            proxy.resume()
            report.count("stalls")
        else:
            proxy.lose_answers(kind == "lost answers")
            over.wait(rng.uniform(0, 0.05))
            proxy.lose_answers(False)
            report.count("connections reset", proxy.cut())


def _half_open(store: ProcessStore, proxy: Proxy, options: Options, report: Report) -> None:
    """Parked Gets whose callers have vanished without a word; in the long form, until the store lets go of them."""
    clients = [DecodeClient(proxy.target, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)]

    def waiting() -> float:
        return metrics(store)['pd_handoff_waiters{kind="record"}']

    with ThreadPoolExecutor(len(clients)) as threads:
        gets = [
            threads.submit(client.get, 5 * 10**6 + at, max_wait=600, reader_id="gone")
            for at, client in enumerate(clients)
        ]
        eventually(lambda: waiting() == len(clients), "the Gets of those who will vanish wait")
        report.count("connections left half open", proxy.abandon())
        for client in clients:
            client.close()
        for get in gets:
            report.expect(get.exception(60) is not None, "a Get without a record was answered")
    with PrefillClient(store.target) as prefill, DecodeClient(store.target, reader_id="reader") as decode:
        for room in range(6 * 10**6, 6 * 10**6 + 20):
            prefill.put_once(room, record_of(("", room, 0), 0))
            wrong = differences(decode.get(room).proto, ("", room, 0), 0)
            report.expect(not wrong, f"room {room}, beside half-open connections: {wrong[:5]}")
            report.count("records compared")
    if not options.short:
        eventually(lambda: waiting() == 0, "the store lets go of half-open connections", HALF_OPEN)
        report.count("waiters of half-open connections let go", len(clients))


# -- namespaces --------------------------------------------------------------------------------------------------------


def _over_a_cable(options: Options, report: Report, transport: str) -> None:
    """Hand-offs between two namespaces while the cable is pulled, narrowed, and loses packets."""
    try:
        cable = Cable()
    except UnavailableError as reason:
        report.count(f"network namespaces: unavailable because {reason}")
        return
    settings: dict[str, Any] = {**WIDTHS, "slots": SLOTS, "insecure": "yes", "transport": transport}
    with cable:
        with inside(cable.store):
            # The Unix socket is for us: it is reached from any namespace.
            store = ProcessStore(f"unix:{options.directory / 'n'}", beside=[f"{STORE}:50071"], **settings)
        with store:
            store.wait()
            _pull_and_drop(cable, options, report)
            free = store.steps().free
            report.expect(free == SLOTS, f"{SLOTS - free} slots lost over the cable")


def _pull_and_drop(cable: Cable, options: Options, report: Report) -> None:
    count = options.times(short=100, long=5000)
    command = [sys.executable, "-m", "tests.faults.traffic", f"{STORE}:50071", str(count), str(options.seed)]
    with inside(cable.client):
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = process.stdout
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(lines), daemon=True)
    reader.start()
    try:
        eventually(lambda: bool(said) or process.poll() is not None, "the traffic begins", 60)
        rng, most = options.random("cable"), 6 if options.short else 10**4
        for number in range(most):
            if process.poll() is not None:
                break
            _hurt(cable, ("drop", "pull", "narrow")[number % 3], rng, report)
            _pause.wait(rng.uniform(0, 0.2))
        process.wait(600)
        reader.join(30)
        ending = json.loads(said[-1])
        traffic.add(report, ending["figures"], ending["faults"])
        report.expect(process.returncode == 0, f"the traffic ended with {process.returncode}")
    finally:
        process.kill()
        process.wait(30)
        lines.close()


def _hurt(cable: Cable, kind: str, rng: random.Random, report: Report) -> None:
    harms: dict[str, tuple[Callable[[], None], Callable[[], None], str, float]] = {
        "drop": (partial(cable.drop, rng.choice((5, 20, 40))), cable.drop_no_more, "times of random drop", 1.0),
        "pull": (cable.pull, cable.plug, "links pulled", 0.8),
        "narrow": (partial(cable.narrow, rng.choice((64, 512))), cable.widen, "times of a narrow link", 1.0),
    }
    begin, end, figure, most = harms[kind]
    try:
        begin()
        _pause.wait(rng.uniform(0.1, most))
        end()
        report.count(figure)
    except UnavailableError as reason:
        report.count(f"{figure}: unavailable because {reason}")


def run(options: Options) -> Report:
    """Both halves, on each transport."""
    report = Report()
    on_each_transport(options, report, _halves)
    return report


def _halves(options: Options, report: Report, transport: str) -> None:
    settings: dict[str, Any] = {**WIDTHS, **QUIET, "slots": SLOTS, "transport": transport}
    with ProcessStore("127.0.0.1:0", **settings).wait() as store, Proxy(store.target) as proxy:
        LostAnswers(store, proxy, report).play(10**7, 1 if options.short else 50)
        options.say(f"lost answers: {report.figures}")
        _disturbed(store, proxy, options, report)
        options.say(f"through the proxy: {report.figures}")
        _half_open(store, proxy, options, report)
        options.say(f"half open: {report.figures}")
    _over_a_cable(options, report, transport)


SCENARIO = Scenario("network", "delay, stall, reset, half-open, lost answers; links pulled, narrowed and lossy", run)
