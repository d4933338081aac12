"""Many hand-offs over few slots: completed, aborted, expired, superseded, repeated, and all of it at once.

Lanes of every kind of caller - single calls, a Session, batches - share eight slots of a real store. At the end each
slot must be free, nobody waiting, and no byte of any record left in the rows.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import requests
from tests.support.caller import BatchCaller, Caller, SessionCaller, UnaryCaller
from tests.support.failures import CallFailed, of_status
from tests.support.process import ProcessStore
from tests.support.steps import Steps
from tests.support.waits import eventually

from . import damage
from .common import WIDTHS, Options, Report, Scenario, per_transport
from .lane import WAIT, Course, Lane
from .outside import QUIET, Rows, metrics

SLOTS = 8
KINDS = (UnaryCaller.name, SessionCaller.name, BatchCaller.name)
LANES = 9
"""More than there are slots, so that each freed one is taken at once."""
MINUTES = 60
"""After so long it ends as a fault, however far it has come."""

ENOUGH = 5
"""Faults after which nothing that follows says more."""


class BatchLane(Lane):
    """Several hand-offs at a time, in real batches: reserved whole or not at all."""

    def run_batches(self, count: int, caller: Caller) -> None:
        """So many hand-offs."""
        while self.report.figures.get("hand-offs", 0) < count and not self.report.faults and not self.stop():
            courses = list({course.key: course for course in (self.next_course() for _ in range(3))}.values())
            try:
                self._batch(caller, courses)
            except (CallFailed, AssertionError) as error:
                if self.stop():
                    return
                self.report.fault(f"a batch of {[course.key for course in courses]}: {error}")
            self.report.count("hand-offs", len(courses))
            self.report.count("in batches", len(courses))

    def _batch(self, caller: Caller, courses: list[Course]) -> None:
        reserves = [
            requests.reserve(course.which, course.owner, attempt=course.attempt, max_wait=WAIT) for course in courses
        ]
        reserved = caller.call("BatchReserve", pb.BatchReserveRequest(requests=reserves), WAIT)
        for course, each in zip(courses, reserved.responses, strict=True):
            course.token = each.token
        # One of them under the token of its neighbour: refused alone.
        wrong = self.rng.randrange(len(courses)) if len(courses) > 1 and self.rng.random() < 0.2 else None
        puts = [requests.put(course.which, course.token, course.record) for course in courses]
        if wrong is not None:
            puts[wrong].token = courses[wrong - 1].token
        for at, put in enumerate(caller.call("BatchPut", pb.BatchPutRequest(requests=puts), WAIT).results):
            if at == wrong:
                self._expect(of_status(put.error).reason == "STALE_RESERVATION", courses[at], "a neighbour's token")
                self.steps.put(courses[at].which, courses[at].token, courses[at].record)
            elif put.WhichOneof("result") == "error":
                raise of_status(put.error)
        gets = [requests.get(course.which, attempt=course.attempt, reader="r", max_wait=WAIT) for course in courses]
        found = caller.call("BatchGet", pb.BatchGetRequest(requests=gets), WAIT)
        for course, got in zip(courses, found.results, strict=True):
            if got.WhichOneof("result") == "error":
                raise of_status(got.error)
            self.check(course, got.response)


def _lanes(store: ProcessStore, options: Options, count: int, report: Report) -> None:
    began, ending = time.monotonic(), threading.Event()
    lanes, threads = [], []
    for number in range(LANES):
        kind = KINDS[number % 3]
        caller = store.caller(kind)
        lane = BatchLane(number, Steps(caller), options.random(f"lane {number}"), ending.is_set)
        lanes.append(lane)
        work: Any = (lane.run, count // LANES + 1)
        if kind == BatchCaller.name and number > 2:
            work = (lane.run_batches, count // LANES + 1, caller)
        threads.append(threading.Thread(target=work[0], args=work[1:], name=f"lane {number}", daemon=True))
    for thread in threads:
        thread.start()
    told = 0
    while any(thread.is_alive() for thread in threads) and not ending.is_set():
        for thread in threads:
            thread.join(0.2)
        done = sum(lane.report.figures.get("hand-offs", 0) for lane in lanes)
        if done - told >= 5_000:
            told = done
            options.say(f"{done:,} hand-offs in {time.monotonic() - began:.0f} s")
        if time.monotonic() - began > MINUTES * 60:
            report.fault(f"not done in {MINUTES} minutes")
            ending.set()
        if sum(len(lane.report.faults) for lane in lanes) >= ENOUGH:
            ending.set()
    if ending.is_set():
        store.process.kill()  # so that no lane waits for what never comes
        store.process.wait(30)
    for thread in threads:
        thread.join(2 * WAIT)
        report.expect(not thread.is_alive(), f"{thread.name} hangs")
    for lane in lanes:
        for name, number in sorted(lane.report.figures.items()):
            report.count(name, number)
        report.faults.extend(lane.report.faults)


def _soak(options: Options, report: Report, transport: str) -> None:
    settings: dict[str, Any] = {
        **WIDTHS,
        **QUIET,
        "transport": transport,
        "slots": SLOTS,
        "lease_min": 0.01,
        "consumed_grace": 2.0,
        "arena_file": options.directory / "arena",
    }
    with ProcessStore(f"unix:{options.directory / 's'}", **settings).wait() as store:
        _lanes(store, options, options.times(short=900, long=100_000), report)
        if store.process.poll() is not None:
            report.expect(bool(report.faults), "the store has ended")
            return
        steps = store.steps()
        report.expect(steps.free == SLOTS, f"{SLOTS - steps.free} slots lost")
        report.count("slots lost", SLOTS - steps.free)
        shown = metrics(store)
        for name in ('waiters{kind="record"}', 'waiters{kind="slot"}', "waiting_bytes"):
            left = shown[f"pd_handoff_{name}"]
            report.expect(left == 0, f"{name} is {left:g} when all is over")
        rows = Rows(options.directory / "arena", **settings)
        freed = 'pd_handoff_slots{state="free"}'
        try:
            eventually(lambda: metrics(store)[freed] == SLOTS, "every slot is free")
        except AssertionError as error:
            report.fault(f"{error}; {[value for value in metrics(store).items() if 'slots{' in value[0]]}")
        report.count("rows with a residue", rows.residues())
        report.expect(rows.residues() == 0, f"{rows.residues()} rows still hold what their last owner wrote")
        if not report.faults:  # it needs free slots
            damage.break_rows(steps, rows, report)


SCENARIO = Scenario(
    "soak", "a mix of every fate over eight slots, each record compared field by field", per_transport(_soak)
)
