"""SIGSTOP of a producer past its lease, then SIGCONT: whatever it does then, what readers see is its successor's.

The producer is a process of its own that talks to the store by the public client. It is stopped once it holds its
reservations, is told to put while it cannot hear, and goes on only when the store has given its work to others.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from pd_handoff import (
    DecodeClient,
    Failure,
    HandoffError,
    Key,
    PrefillClient,
    PrefillHandoff,
    Reservation,
)

from tests.support.preloaded import Talker
from tests.support.process import ProcessStore
from tests.support.waits import PATIENCE

from .common import WIDTHS, Options, Report, Scenario, differences, on_each_transport, record_of
from .outside import QUIET, metrics

LEASE = 0.4
"""Seconds. The client renews it in good time while it runs."""
WAIT = 60.0
"""Seconds in which everything must have come."""
FATES = ("nobody", "renewing", "successor", "reserved again", "aborted", "published")


class Producer:
    """A prefill process that can be stopped and continued. End it by leaving the context."""

    def __init__(self, target: str) -> None:
        self._process = Talker("tests.faults.pause:main", target)

    def tell(self, **job: object) -> None:
        """Give it something to do. It will read it when it can."""
        self._process.stdin.write(json.dumps(job) + "\n")

    def answer(self) -> dict[str, Any]:
        """What it says next. Raises AssertionError when it has ended."""
        line = self._process.stdout.readline()
        assert line, f"the producer has ended: {self._process.poll()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """SIGSTOP; returns once the kernel says that it is stopped."""
        self._process.send_signal(signal.SIGSTOP)
        stat = f"/proc/{self._process.pid}/stat"
        for _ in range(10_000):
            with open(stat) as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    return
        raise AssertionError("SIGSTOP did not stop it")

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process.stdin.close()
        self._process.stdout.close()


class Round:
    """One stop of the producer, over a hand-off of each fate."""

    def __init__(self, number: int, store: ProcessStore, report: Report) -> None:
        self.rooms = {fate: number * 100 + at for at, fate in enumerate(FATES)}
        self._target = store.target
        self._report = report

    def play(self, producer: Producer) -> None:
        """Reserve, stop, let the leases run out, hand the work on, continue, and see what came of the late Puts."""
        report, rooms = self._report, self.rooms
        for fate, room in rooms.items():
            producer.tell(do="renewing" if fate == "renewing" else "reserve", room=room, lease=LEASE)
            said = producer.answer()
            report.expect(said["outcome"] == "OK", f"{fate}: {said}")
        producer.tell(do="put", room=rooms["published"])
        first = producer.answer()
        producer.stop()
        for room in rooms.values():
            producer.tell(do="put", room=room)
        with DecodeClient(self._target, reader_id="reader") as decode, PrefillClient(self._target) as successor:
            if self._outcome(lambda: decode.abort(rooms["aborted"], Failure(400, "CANCELLED", "gone"))) != "OK":
                report.count("leases that ran out before the Abort")
            for fate in ("nobody", "renewing", "successor", "reserved again"):
                outcome = self._outcome(lambda f=fate: decode.get(rooms[f], max_wait=WAIT))  # type: ignore[misc]
                report.expect(outcome == "HANDOFF_EXPIRED", f"{fate}: its reader got {outcome}")
            held = {
                fate: successor.reserve(rooms[fate], attempt=1, lease=WAIT) for fate in ("successor", "reserved again")
            }
            successor.put(held["successor"], record_of(("", rooms["successor"], 0), 1))
            producer.go_on()
            said = {fate: producer.answer() for fate in rooms}
            report.count("late Puts", len(said))
            self._judge({fate: answer["outcome"] for fate, answer in said.items()})
            report.expect(said["published"] == first, f"repeated after the stop: {said['published']}, not {first}")
            successor.put(held["reserved again"], record_of(("", rooms["reserved again"], 0), 1))
            for fate in ("successor", "reserved again", "published"):
                self._read(decode, fate, attempt=int(fate != "published"))

    def _judge(self, outcomes: dict[str, str]) -> None:
        due = {
            "nobody": {"RESERVATION_EXPIRED"},
            "renewing": {"RESERVATION_EXPIRED"},
            "successor": {"STALE_RESERVATION"},
            "reserved again": {"STALE_RESERVATION"},
            "aborted": {"HANDOFF_ABORTED", "RESERVATION_EXPIRED"},  # whichever came first
            "published": {"OK"},
        }
        for fate, outcome in outcomes.items():
            self._report.expect(outcome in due[fate], f"{fate}: the late Put got {outcome}")
            self._report.count("late Puts fenced", int(outcome not in {"OK", ""}))

    def _read(self, decode: DecodeClient, fate: str, attempt: int) -> None:
        found = decode.get(self.rooms[fate], attempt=0, max_wait=WAIT)
        wrong = differences(found.proto, ("", self.rooms[fate], 0), attempt)
        self._report.expect(found.attempt == attempt and not wrong, f"{fate}: read {found.attempt}, {wrong[:5]}")
        self._report.count("records compared")

    @staticmethod
    def _outcome(call: Callable[[], object]) -> str:
        try:
            call()
        except HandoffError as error:
            return error.reason
        return "OK"


def run(options: Options) -> Report:
    """As many stops as `rounds` says, and one of the store itself, on each transport."""
    report = Report()
    on_each_transport(options, report, _stops)
    return report


def _stops(options: Options, report: Report, transport: str) -> None:
    times = {"lease_min": 0.05, "consumed_grace": 1}
    settings: dict[str, Any] = {**WIDTHS, **QUIET, **times, "slots": 64, "transport": transport}
    with (
        ProcessStore(f"unix:{options.directory / 's'}", **settings).wait() as store,
        Producer(store.target) as producer,
    ):
        rounds = options.times(short=1, long=60)
        for number in range(rounds):
            Round(number, store, report).play(producer)
            report.count("stops of a producer")
            options.say(f"{number + 1} of {rounds} stops")
        _stop_store(store, report)
        free = store.steps().free
        report.expect(free == 64, f"{64 - free} slots lost")
        waiting = metrics(store)['pd_handoff_waiters{kind="record"}']
        report.expect(waiting == 0, f"{waiting:g} calls wait when all is over")


def _stop_store(store: ProcessStore, report: Report) -> None:
    """The store itself is stopped past a lease: time that it slept counts, so a Put that meets it awake is late."""
    with PrefillClient(store.target, timeout=WAIT) as prefill, DecodeClient(store.target, reader_id="reader") as decode:
        short, long = prefill.reserve(10**6, lease=LEASE), prefill.reserve(10**6 + 1, lease=WAIT)
        store.signal(signal.SIGSTOP)
        try:
            threading.Event().wait(2 * LEASE)  # its lease runs out, and it cannot notice
        finally:
            store.signal(signal.SIGCONT)
        try:
            prefill.put(short, record_of(("", 10**6, 0), 0))
        except HandoffError as error:
            report.expect(error.reason == "RESERVATION_EXPIRED", f"after a stop of the store: {error.reason}")
        else:
            report.fault("a stopped store stopped a lease")
        prefill.put(long, record_of(("", 10**6 + 1, 0), 0))
        wrong = differences(decode.get(10**6 + 1).proto, ("", 10**6 + 1, 0), 0)
        report.expect(not wrong, f"after a stop of the store: {wrong[:5]}")
        report.count("stops of the store")


# -- the producer's side -----------------------------------------------------------------------------------------------


def main() -> int:
    """Reserve and put what is asked for, until the end of input."""
    with PrefillClient(sys.argv[1], timeout=WAIT) as client:
        held: dict[int, Reservation | PrefillHandoff] = {}
        for line in sys.stdin:
            job = json.loads(line)
            try:
                answer = _work(client, held, job)
            except HandoffError as error:
                answer = {"outcome": error.reason}
            print(json.dumps({"room": job["room"], **answer}), flush=True)
    return 0


def _work(client: PrefillClient, held: dict[int, Reservation | PrefillHandoff], job: dict[str, Any]) -> dict[str, str]:
    room = job["room"]
    if job["do"] == "put":
        holder, record = held[room], record_of(("", room, 0), 0)
        published = holder.put(record) if isinstance(holder, PrefillHandoff) else client.put(holder, record)
        return {"outcome": "OK", "at": str(published.published_at)}
    if job["do"] == "renewing":
        held[room] = client.prefill(Key(room), lease=job["lease"]).__enter__()  # and it renews the lease meanwhile
    else:
        lease = WAIT if job["room"] % 100 == FATES.index("published") else job["lease"]
        held[room] = client.reserve(room, lease=lease)
    return {"outcome": "OK"}


SCENARIO = Scenario("pause", "SIGSTOP of a producer past its lease, then SIGCONT: its late Put is fenced", run)

if __name__ == "__main__":
    sys.exit(main())
