"""Hand-offs of every fate, one after the other, each answer compared with what the contract says it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import requests
from tests.support.failures import CallFailed
from tests.support.steps import Steps

from .common import Report, differences, record_of

WAIT = 60.0
"""Seconds that a call may wait for its turn or its record; nothing here takes so long."""
SHORT_LEASE = 0.05
"""Seconds of a lease that is meant to run out."""

SHARES = (54, 26, 13, 7)
"""Of completed, aborted, expired and superseded ones; with the batches, all complete, these are 20 %, 10 % and 5 %."""


@dataclass
class Course:
    """One hand-off under way."""

    key: tuple[str, int, int]
    attempt: int
    token: bytes = b""

    @property
    def which(self) -> rp.HandoffKey:
        """Its key as a message."""
        return rp.HandoffKey(namespace=self.key[0], room=self.key[1], sample=self.key[2])

    @property
    def record(self) -> rp.HandoffRecord:
        """What its producer writes."""
        return record_of(self.key, self.attempt)

    @property
    def owner(self) -> str:
        """Who reserves it."""
        return f"owner-{self.attempt}"

    @property
    def failure(self) -> pb.Failure:
        """Why it is aborted, if it is."""
        room = self.key[1] % 997
        return requests.failure(400 + room % 99, f"REASON_{room}", f"{self.key} {self.attempt}")


@dataclass
class Lane:
    """A producer, its readers and whoever aborts them: one thread, keys of its own, all slots shared with other lanes.

    Attributes:
        report: its own, added to the scenario's when the lane ends.
        used: tokens of earlier hand-offs, none of which is good for anything any more.
        stop: whether all is over already, so that what still fails says nothing.
    """

    number: int
    steps: Steps
    rng: random.Random
    stop: Callable[[], bool]
    report: Report = field(default_factory=Report)
    used: list[tuple[Course, bytes]] = field(default_factory=list)
    _attempts: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def run(self, count: int) -> None:
        """So many hand-offs. Whatever fails is a fault with its place; a few faults are enough to end a lane."""
        fates = (self.whole, self.aborted, self.expired, self.superseded)
        while self.report.figures.get("hand-offs", 0) < count and len(self.report.faults) < 5 and not self.stop():
            course = self.next_course()
            fate = self.rng.choices(fates, SHARES)[0]
            try:
                fate(course)
            except (CallFailed, AssertionError) as error:
                self._wrong(course, f"{fate.__name__}: {error}")
            self.report.count("hand-offs")
            self.used.append((course, course.token))
            del self.used[:-50]

    def next_course(self) -> Course:
        """Keys come again and again, each time with a higher attempt."""
        rooms = (self.number, self.number + 2**63, 2**64 - 1 - self.number, self.number + 10**6)
        key = (self.rng.choice(("", "m.1")), self.rng.choice(rooms), self.rng.randrange(2))
        self._attempts[key] = attempt = self._attempts.get(key, -1) + 1
        return Course(key, attempt)

    # -- fates ---------------------------------------------------------------------------------------------------------

    def whole(self, course: Course) -> None:
        """Reserved, put, read by all its readers, with repetitions and strangers in between."""
        rng, steps = self.rng, self.steps
        readers = [f"reader-{number}" for number in range(rng.choice((1, 1, 1, 2)))]
        early = [
            steps.start_get(course.which, WAIT, reader=reader, attempt=course.attempt)
            for reader in (readers if rng.random() < 0.3 else [])
        ]
        if rng.random() < 0.15:
            steps.put_once(
                course.which,
                course.record,
                course.owner,
                attempt=course.attempt,
                readers=len(readers),
                max_wait=WAIT,
            )
        else:
            self.reserve(course, readers=len(readers))
            if rng.random() < 0.1:
                self.strangers(course)
            published = steps.put(course.which, course.token, course.record).published_at
            if rng.random() < 0.1:
                again = steps.put(course.which, course.token, course.record).published_at
                self._expect(again == published, course, "a repeated Put got another answer")
                self.report.count("repeated Puts")
            if rng.random() < 0.1:
                self._refused(course, "RECORD_IMMUTABLE", self._put_other, course)
        for pending in early:
            self.check(course, pending.result(WAIT))
        for reader in readers[len(early) :]:
            self.check(course, steps.get(course.which, reader=reader, attempt=course.attempt, max_wait=WAIT))
        if rng.random() < 0.2:
            self.afterwards(course, readers[0])

    def afterwards(self, course: Course, reader: str) -> None:
        """Of a hand-off that is over: whatever is repeated gets its former answer, and nothing changes any more."""
        steps = self.steps
        try:
            self.check(course, steps.get(course.which, reader=reader, attempt=course.attempt))
            self.report.count("redelivered")
        except CallFailed as refused:  # its slot was needed
            self._expect(refused.reason == "ALREADY_CONSUMED", course, f"read again: {refused.reason}")
        self._expect(not steps.abort(course.which, attempt=course.attempt), course, "aborted after it was complete")
        if not course.token:
            return
        steps.put(course.which, course.token, course.record)
        self.report.count("repeated Puts")
        self._refused(course, "RECORD_IMMUTABLE", self._put_other, course)
        if self.rng.random() < 0.3:
            steps.release(course.which, token=course.token)
            steps.release(course.which, token=course.token)
            self._refused(course, "ALREADY_CONSUMED", self._get, course)
            steps.put(course.which, course.token, course.record)
            self._refused(course, "RECORD_IMMUTABLE", self._put_other, course)

    def strangers(self, course: Course) -> None:
        """Tokens that are not this reservation's: of ended ones, of its own under other keys, damaged and invented."""
        steps, rng, record = self.steps, self.rng, course.record
        for former, token in rng.sample(self.used, min(3, len(self.used))):
            if token:
                self._refused(course, "STALE_RESERVATION", steps.put, course.which, token, record)
                if former.key != course.key:
                    self._refused(course, "STALE_RESERVATION", steps.put, former.which, course.token, record)
        for token in (course.token[:-1] + bytes((course.token[-1] ^ 1,)), rng.randbytes(32), course.token + b"\0"):
            self._refused(course, "STALE_RESERVATION", steps.put, course.which, token, record)
            self._refused(course, "STALE_RESERVATION", steps.abort, course.which, token=token)
        self._refused(course, "HANDOFF_EXISTS", steps.reserve, course.which, "stranger", attempt=course.attempt)

    def aborted(self, course: Course) -> None:
        """In each state."""
        steps, when = self.steps, self.rng.choice(("before", "reserved", "waited for", "published", "released"))
        attempt = course.attempt
        why: pb.Failure | None = course.failure
        if when == "before":
            ended = steps.abort(course.which, why=why, attempt=attempt)
            self._refused(course, "HANDOFF_ABORTED", self.reserve, course, wait=None)
        else:
            pending = steps.start_get(course.which, WAIT, reader="r", attempt=attempt) if when == "waited for" else None
            self.reserve(course)
            if when == "published":
                steps.put(course.which, course.token, course.record)
            if when == "released":
                steps.release(course.which, token=course.token)
                ended, why = True, None
            elif self.rng.random() < 0.5:
                ended = steps.abort(course.which, why=why, token=course.token)
            else:
                ended = steps.abort(course.which, why=why, attempt=self.rng.choice((None, attempt)))
            if pending is not None:
                self._refused(course, "HANDOFF_ABORTED", pending.result, WAIT, why=why)
            self._refused(course, "HANDOFF_ABORTED", steps.put, course.which, course.token, course.record, why=why)
        self._expect(ended, course, f"{when}: its Abort ended nothing")
        self._refused(course, "HANDOFF_ABORTED", self._get, course, why=why)
        self._expect(not steps.abort(course.which, attempt=attempt), course, f"{when}: aborted twice")
        self.report.count("aborts")

    def expired(self, course: Course) -> None:
        """Reserved, and never put in time."""
        pending = None
        if self.rng.random() < 0.5:
            pending = self.steps.start_get(course.which, WAIT, reader="r", attempt=course.attempt)
        self.reserve(course, lease=SHORT_LEASE)
        read = self.steps.start_get(course.which, WAIT, reader="r", attempt=course.attempt)
        for each in (pending, read):
            if each is not None:
                self._refused(course, "HANDOFF_EXPIRED", each.result, WAIT)
        self._refused(course, "RESERVATION_EXPIRED", self.steps.put, course.which, course.token, course.record)
        self._refused(course, "RESERVATION_EXPIRED", self.reserve, course, wait=None)
        self._expect(not self.steps.abort(course.which, token=course.token), course, "aborted after its expiry")
        self.report.count("expiries")

    def superseded(self, course: Course) -> None:
        """A second prefill takes over: the first one's token is worth nothing, and readers get the second's record."""
        steps = self.steps
        first = Course(course.key, course.attempt)
        course.attempt = self._attempts[course.key] = first.attempt + 1
        pending = steps.start_get(course.which, WAIT, reader="r", attempt=first.attempt)
        self.reserve(first)
        self.reserve(course)
        record = first.record
        for attempt in ("first", "second"):
            self._refused(course, "STALE_RESERVATION", steps.put, first.which, first.token, record)
            self._refused(course, "STALE_RESERVATION", self.reserve, first, wait=None)
            self._refused(course, "STALE_RESERVATION", steps.abort, first.which, token=first.token)
            if attempt == "first":
                steps.put(course.which, course.token, course.record)
        self.check(course, pending.result(WAIT))
        self.used.append((first, first.token))
        self.report.count("superseded")

    # -- parts ---------------------------------------------------------------------------------------------------------

    def reserve(
        self, course: Course, *, lease: float | None = None, readers: int = 1, wait: float | None = WAIT
    ) -> None:
        """Reserve, at times twice."""
        again = self.rng.random() < 0.1 and lease is None
        for _ in range(1 + again):
            former = course.token
            course.token = self.steps.reserve(
                course.which, course.owner, attempt=course.attempt, lease=lease, readers=readers, max_wait=wait
            ).token
            self._expect(former in (b"", course.token), course, "a repeated Reserve got another token")

    def check(self, course: Course, found: pb.GetResponse) -> None:
        """Compare a record, field by field."""
        self._expect(found.attempt == course.attempt, course, f"attempt {found.attempt} was read")
        wrong = differences(found.record, course.key, course.attempt)
        self._expect(not wrong, course, f"read another record, different in {wrong[:5]}")
        self.report.count("records compared")

    def _get(self, course: Course) -> Any:
        return self.steps.get(course.which, reader="late", attempt=course.attempt, max_wait=WAIT)

    def _put_other(self, course: Course) -> Any:
        return self.steps.put(course.which, course.token, record_of(course.key, course.attempt + 10**9))

    def _refused(
        self,
        course: Course,
        reason: str,
        call: Callable[..., Any],
        *arguments: Any,
        why: pb.Failure | None = None,
        **more: Any,
    ) -> None:
        try:
            answer = call(*arguments, **more)
        except CallFailed as refused:
            self._expect(refused.reason == reason, course, f"{refused.reason} where {reason} was due")
            if why is not None:
                told = (refused.metadata.get("http_status"), refused.metadata.get("failure_reason"), refused.message)
                self._expect(told == (str(why.http_status), why.reason, why.message), course, f"told {told}")
            self.report.count("refusals compared")
        else:
            self._wrong(course, f"{type(answer).__name__} where {reason} was due")

    def _expect(self, holds: bool, course: Course, sentence: str) -> None:
        if not holds:
            self._wrong(course, sentence)

    def _wrong(self, course: Course, sentence: str) -> None:
        if not self.stop():
            self.report.fault(f"{course.key}, attempt {course.attempt}: {sentence}")
