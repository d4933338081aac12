"""SIGKILL of the store, of prefill and of decode processes at random moments, with and without an arena file.

A conductor gives requests to workers, as a gateway would: each to a prefill and a decode process, again with a higher
attempt when its prefill is lost. It knows what was acknowledged, and so what must never be lost or mixed up.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from pd_handoff import HandoffState, PrefillClient

from .common import WIDTHS, Options, Report, Scenario
from .fleet import Fleet, Worker
from .worker import PATIENCE

WINDOW = 48
"""Requests in flight."""
SETTLE = 120.0
"""Seconds in which all that is in flight must end once nothing is killed any more."""


@dataclass(eq=False)
class Request:
    """One request on its way through the fleet.

    Attributes:
        attempt: the highest that was prefilled, or is being.
        published: epoch of the store under which that attempt's Put was acknowledged.
        late: rounds until it gets its reader.
        prefill_died: some attempt's prefill was killed, so readers may be told so.
    """

    room: int
    late: int
    attempt: int = 0
    published: str | None = None
    reader: Worker | None = None
    prefill_died: bool = False
    outlived: bool = False
    done: bool = False


@dataclass(eq=False)
class Job:
    """What a worker was told."""

    request: Request
    worker: Worker
    attempt: int
    epoch: str
    store_life: int


@dataclass(eq=False)
class Conductor:
    """Keeps requests in flight, and judges every answer."""

    fleet: Fleet
    report: Report
    rng: random.Random
    kept: bool
    epoch: str
    store_life: int = 1
    issuing: bool = True
    open: dict[int, Request] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    _rooms: Any = field(default_factory=itertools.count)
    _numbers: Any = field(default_factory=itertools.count)
    _victims: list[str] = field(default_factory=list)

    # -- giving out work -----------------------------------------------------------------------------------------------

    def issue(self) -> None:
        """Keep the window full."""
        while self.issuing and len(self.open) < WINDOW:
            request = Request(next(self._rooms), self.rng.choice((0, 0, 0, 1, 2)))
            self.open[request.room] = request
            if not request.late and self.rng.random() < 0.5:
                self.read(request)  # before there is anything to read
            self.prefill(request)
            if not request.late and request.reader is None:
                self.read(request)

    def prefill(self, request: Request) -> None:
        """Have it prefilled."""
        request.published = None
        worker = self.rng.choice(self.fleet.prefills)
        number = self._job(request, worker)
        once, pause = self.rng.random() < 0.2, self.rng.uniform(0, 0.08)
        worker.send(job=number, room=request.room, attempt=request.attempt, pause=pause, once=once)

    def prefill_again(self, request: Request) -> None:
        """Its prefill is lost: a higher attempt."""
        self.report.count("prefilled again")
        request.attempt += 1
        self.prefill(request)

    def read(self, request: Request) -> None:
        """Have it read, by the reader that it had before if any."""
        request.reader = request.reader or self.rng.choice(self.fleet.decodes)
        epoch = request.published or self.epoch
        number = self._job(request, request.reader, epoch)
        request.reader.send(job=number, room=request.room, attempt=request.attempt, wait=PATIENCE, epoch=epoch)

    def _job(self, request: Request, worker: Worker, epoch: str = "") -> int:
        number = next(self._numbers)
        self.jobs[number] = Job(request, worker, request.attempt, epoch, self.store_life)
        return int(number)

    # -- answers -------------------------------------------------------------------------------------------------------

    def pump(self, seconds: float) -> None:
        """Give out work and take answers for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.issue()
            message = self.fleet.next_message(left)
            if message is not None:
                self._answer(message[2])

    def _answer(self, message: dict[str, Any]) -> None:
        event = message["event"]
        if event == "reserved":
            return
        job = self.jobs.pop(message["job"])
        request = job.request
        if event == "published":
            if job.attempt == request.attempt:
                request.published = message["epoch"]
                if message["epoch"] != self.epoch and not request.done:
                    self._lost_with_the_store(request)
        elif event == "read":
            self._read(job, message)
        elif job.worker.side == "prefill":
            self._prefill_failed(job, message["reason"])
        else:
            self._read_failed(job, message["reason"])

    def _read(self, job: Job, message: dict[str, Any]) -> None:
        request, attempt = job.request, message["attempt"]
        where = f"room {request.room}, attempt {attempt}"
        self.report.expect(not message["wrong"], f"{where}: read another record, different in {message['wrong'][:5]}")
        self.report.expect(job.attempt <= attempt <= request.attempt, f"{where}: asked for {job.attempt}")
        self.report.expect(message["epoch"] == job.epoch, f"{where}: of epoch {message['epoch']}, not {job.epoch}")
        self.report.count("hand-offs")
        if request.outlived:
            self.report.count("published before a kill of the store and read after it")
        self._close(request)

    def _prefill_failed(self, job: Job, reason: str) -> None:
        if not self.kept and reason == "STALE_RESERVATION" and job.store_life < self.store_life:
            self.report.count("producers told that the store came back empty")
        else:
            self.report.fault(f"room {job.request.room}, attempt {job.attempt}: a living prefill got {reason}")
            self._close(job.request)
        if not job.request.done and job.attempt == job.request.attempt:
            self.prefill_again(job.request)

    def _read_failed(self, job: Job, reason: str) -> None:
        request = job.request
        where = f"room {request.room}, attempt {job.attempt} of {request.attempt}"
        if reason == "STORE_RESTARTED" and not self.kept and job.epoch != self.epoch:
            self.report.count("readers told of the new epoch")
            if request.published not in (None, self.epoch):
                self._lost_with_the_store(request)
        elif reason != "PRODUCER_RESTARTED" or not request.prefill_died or job.attempt == request.attempt:
            lost = "what was published is lost" if request.published else "no record"
            self.report.fault(f"{where}: {lost}: {reason}")
            self._close(request)
            return
        self.read(request)

    def _close(self, request: Request) -> None:
        request.done = True
        self.open.pop(request.room, None)

    def _lost_with_the_store(self, request: Request) -> None:
        self.report.expect(not self.kept, f"room {request.room}: the store came back with another epoch")
        if request.reader is None:
            request.late = 0
            self.read(request)  # it asks for the epoch that it was promised, and learns
        self.prefill_again(request)

    # -- deaths --------------------------------------------------------------------------------------------------------

    def kill_worker(self, worker: Worker) -> None:
        """Its work is given out again: a prefill's as a new attempt, a reader's to its next life."""
        worker.kill()
        self.report.count(f"kills of a {worker.side} process")
        if worker.side == "prefill":
            for job in self.jobs.values():
                job.request.prefill_died = job.request.prefill_died or job.worker is worker
        self.pump(self.rng.choice((0.0, self.rng.uniform(0, 0.3))))  # it may be given more, and what it said is heard
        lost = [self.jobs.pop(number) for number in [*self.jobs] if self.jobs[number].worker is worker]
        for job in lost:
            job.request.prefill_died = job.request.prefill_died or worker.side == "prefill"
        worker.start()
        for job in lost:
            if job.request.done:
                continue
            if worker.side == "decode":
                self.read(job.request)
            elif job.attempt == job.request.attempt:
                self.prefill_again(job.request)

    def kill_store(self) -> None:
        """By SIGKILL, at times by SIGTERM, and at times again before it has come back."""
        fleet, report = self.fleet, self.report
        for request in self.open.values():
            request.outlived = request.outlived or request.published is not None
        if self.kept and self.rng.random() < 0.15:
            report.expect(fleet.store.stop() == 0, "a drained store did not end well")
            report.count("drains of the store")
        else:
            fleet.store.process.kill()
            report.count("kills of the store")
        fleet.store.close()
        report.faults.extend(fleet.failures())
        fleet.start_store()
        while self.rng.random() < 0.2:
            self._let_it_start(self.rng.uniform(0, 2.5))
            fleet.store.close()
            report.count("kills of a starting store")
            fleet.start_store(again=True)
        former, self.epoch = self.epoch, fleet.epoch()
        self.store_life += 1
        report.count(f"lives of the store on {fleet.transport}")
        report.expect((self.epoch == former) == self.kept, f"the epoch was {former}, and is {self.epoch}")
        if not self.kept:
            for request in list(self.open.values()):
                if request.published not in (None, self.epoch):
                    self._lost_with_the_store(request)

    def _let_it_start(self, seconds: float) -> None:
        """For so long, which it may or may not take.

        With a file its epoch is the same, so work goes on. Without one, it may serve, and tell workers rightly of an
        epoch that nobody here can know yet: what they say is left where it is until there is something to judge it by.
        """
        if self.kept:
            self.pump(seconds)
        else:
            threading.Event().wait(seconds)

    def next_round(self) -> None:
        """Let late readers come, then kill somebody."""
        for request in list(self.open.values()):
            if request.late and request.published:
                request.late -= 1
                if not request.late:
                    self.read(request)
        self.pump(self.rng.uniform(0, 0.4))
        self._victims = self._victims or self.rng.sample(("store", "store", "prefill", "decode"), 4)
        victim = self._victims.pop()
        if victim == "store":
            self.kill_store()
        else:
            self.kill_worker(self.rng.choice(self.fleet.prefills if victim == "prefill" else self.fleet.decodes))

    def finish(self) -> None:
        """Nobody dies any more: everything must end, and every slot come back."""
        self.issuing = False
        until = time.monotonic() + SETTLE
        while self.open and time.monotonic() < until:
            for request in self.open.values():
                if request.late and request.published:
                    request.late = 0
                    self.read(request)
            self.pump(0.2)
        for request in self.open.values():
            self.report.fault(f"room {request.room}, attempt {request.attempt}: never read ({request.published})")
        self._sweep()
        self.report.faults.extend(self.fleet.failures())

    def _sweep(self) -> None:
        """A prefill that was thought lost may have put its record after all: that is to be the only thing left."""
        admin = self.fleet.admin
        with PrefillClient(self.fleet.target) as client:
            for left in admin.list_handoffs(states=(HandoffState.RESERVED, HandoffState.PUBLISHED)):
                self.report.expect(left.key.room not in self.open, f"left over: {left.key} {left.state.name}")
                self.report.count("put after all and not needed")
                client.abort(left.key)
        facts = admin.capabilities()
        self.report.expect(facts.slots_free == facts.slots_total, f"{facts.slots_total - facts.slots_free} slots lost")


def play(options: Options, report: Report, *, kept: bool, rounds: int) -> None:
    """So many rounds with a file, or without."""
    # A reader that is killed asks again once it is back, which takes as long as a busy machine has it.
    patient = {"consumed_grace": 3600, "retention": 3600}
    settings: dict[str, Any] = {**WIDTHS, **patient, "slots": 8192, "log_level": "warning", "grace": 5}
    directory = options.directory / ("kept" if kept else "plain")
    directory.mkdir()
    if kept:
        settings["arena_file"] = directory / "arena"
    with Fleet(directory, 2, 2, options.transports, **settings) as fleet:
        report.count(f"lives of the store on {fleet.transport}")
        conductor = Conductor(fleet, report, options.random(directory.name), kept, fleet.epoch())
        for number in range(rounds):
            conductor.next_round()
            if (number + 1) % 20 == 0:
                options.say(f"{directory.name}: {number + 1} of {rounds} rounds, {report.figures}, {report.faults[:3]}")
        conductor.finish()


def run(options: Options) -> Report:
    """Three quarters of the rounds with a file."""
    report = Report()
    rounds = options.times(short=10, long=400)
    report.count("rounds", rounds)
    play(options, report, kept=True, rounds=rounds * 3 // 4)
    play(options, report, kept=False, rounds=rounds - rounds * 3 // 4)
    return report


SCENARIO = Scenario("kill", "SIGKILL of store, prefill and decode processes at random moments", run)
