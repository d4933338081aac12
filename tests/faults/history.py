"""Real clients race for a few rooms, and a checker reads their history: who asked what from when to when, and was told
what.

Nothing of the store is looked at but its answers. Of two calls that overlap in time either may have come first, so a
rule is broken only where no order of the calls explains the answers:

- a record that was read is the one of its attempt, and its Put had begun;
- a read that began after a Reserve of a higher attempt was granted gets no record of a lower one;
- a Put that began after such a Reserve was granted is refused;
- one attempt is granted to one owner, until its record was read or it was aborted;
- a record whose Put was answered is read, unless an Abort, or a Reserve of another hand-off, had begun;
- a read that began after an Abort was answered is told of it, unless a higher Reserve had begun.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pd_handoff import DecodeClient, Failure, HandoffError, PrefillClient, Reservation

from tests.support.process import ProcessStore

from .common import WIDTHS, Options, Report, Scenario, differences, per_transport, record_of
from .outside import QUIET

RACERS = 6
ROOMS = 4
"""Rooms that all race for at a time."""
ATTEMPTS = 6
CALLS = 40
"""Of each racer, for one set of rooms."""
LEASE = 600.0


@dataclass(frozen=True)
class Event:
    """One call.

    Attributes:
        attempt: that was asked for; of a read that succeeded, the one that was read.
        began, ended: moments on one clock, in seconds.
        told: "ok", else the reason of the refusal.
    """

    kind: str
    room: int
    attempt: int
    owner: str
    began: float
    ended: float
    told: str


class Racer:
    """A prefill node and a decode node, which do what comes to their minds."""

    def __init__(self, target: str, number: int, session: Any, rng: random.Random) -> None:
        self.history: list[Event] = []
        self.faults: list[str] = []
        self._name = f"racer-{number}"
        self._rng = rng
        self._prefill = PrefillClient(target, instance_id=self._name, session=session)
        self._decode = DecodeClient(target, reader_id=self._name, session=session)
        self._held: list[Reservation] = []
        self._serials = itertools.count()
        self._owner = ""

    def run(self, rooms: range) -> None:
        """So many calls about these rooms."""
        for _ in range(CALLS):
            room, attempt = self._rng.choice(rooms), self._rng.randrange(ATTEMPTS)
            choice = self._rng.random()
            if choice < 0.3 and self._held:
                self._put(self._held.pop(self._rng.randrange(len(self._held))))
            elif choice < 0.5:
                self._reserve(room, attempt)
            elif choice < 0.6:
                self._abort(room, attempt)
            else:
                self._get(room)

    def let_go(self) -> None:
        """Gives back what is still reserved, so that slots last; no part of the history."""
        for held in self._held:
            with contextlib.suppress(HandoffError):  # most have ended otherwise
                self._prefill.release(held)
        self._held.clear()

    def close(self) -> None:
        """Ends both clients."""
        self._prefill.close()
        self._decode.close()

    def _reserve(self, room: int, attempt: int) -> None:
        owner = self._owner = f"{self._name}-{next(self._serials)}"  # each is a hand-off of its own, never a repetition
        held = self._told(
            *("reserve", room, attempt),
            lambda: self._prefill.reserve(room, attempt=attempt, owner=owner, lease=LEASE),
        )
        if held is not None:
            self._held.append(held)

    def _put(self, held: Reservation) -> None:
        record, self._owner = record_of(("", held.key.room, 0), held.attempt), held.owner
        self._told("put", held.key.room, held.attempt, lambda: self._prefill.put(held, record))

    def _abort(self, room: int, attempt: int) -> None:
        self._told("abort", room, attempt, lambda: self._prefill.abort(room, Failure(), attempt=attempt))

    def _get(self, room: int) -> None:
        self._told("get", room, 0, lambda: self._decode.get(room, max_wait=0))

    def _told(self, kind: str, room: int, attempt: int, call: Callable[[], Any]) -> Any:
        began, answer, told = time.monotonic(), None, "ok"
        try:
            answer = call()
        except HandoffError as error:
            told = error.reason or type(error).__name__
            attempt = getattr(error, "attempt", None) or attempt
        ended = time.monotonic()
        if kind == "get" and answer is not None:
            attempt = answer.attempt
            wrong = differences(answer.proto, ("", room, 0), attempt)
            if wrong:
                self.faults.append(f"room {room}: the record of attempt {attempt} differs in {wrong[:5]}")
        self.history.append(Event(kind, room, attempt, self._owner, began, ended, told))
        return answer


def broken(events: list[Event]) -> Iterator[str]:
    """What the answers about one room cannot be explained by, a sentence each."""
    granted = [event for event in events if event.kind == "reserve" and event.told == "ok"]
    asked = [event for event in events if event.kind == "reserve"]
    puts = [event for event in events if event.kind == "put"]
    aborts = [event for event in events if event.kind == "abort"]
    gets = [event for event in events if event.kind == "get"]
    read = [get for get in gets if get.told == "ok"]
    for first, second in itertools.permutations(granted, 2):
        if first.attempt == second.attempt and first.owner != second.owner and first.ended < second.began:
            used = any(get.attempt == first.attempt and _overlaps(get, first, second) for get in read)
            if not used and not any(one.attempt >= first.attempt and _overlaps(one, first, second) for one in aborts):
                yield f"attempt {first.attempt} was granted to {first.owner} and to {second.owner}"
    for put in puts:
        higher = [one for one in granted if one.attempt > put.attempt and one.ended < put.began]
        if put.told == "ok" and higher:
            yield f"a Put of attempt {put.attempt} was taken after attempt {higher[0].attempt} had been granted"
    for get in gets:
        if get.told == "ok":
            if not any(put.attempt == get.attempt and put.began < get.ended for put in puts):
                yield f"attempt {get.attempt} was read and never put"
            higher = [one for one in granted if one.attempt > get.attempt and one.ended < get.began]
            if higher:
                yield f"attempt {get.attempt} was read after attempt {higher[0].attempt} had been granted"
            continue
        for put in puts:
            if put.told != "ok" or put.ended >= get.began:
                continue
            over = any(one.attempt >= put.attempt and one.began < get.ended for one in aborts)
            if get.told == "ALREADY_CONSUMED":  # its slot was needed, or its grace is over
                over = over or any(one.attempt >= put.attempt and one.began < get.ended for one in read)
            if not over and not any(_replaces(one, put) and one.began < get.ended for one in asked):
                yield f"attempt {put.attempt} was put, and a read was told {get.told}"
        for abort in aborts:
            if abort.told != "ok" or abort.ended >= get.began:
                continue
            later = any(one.attempt > abort.attempt and one.began < get.ended for one in asked)
            later = later or any(one.attempt > abort.attempt and one.began < get.ended for one in aborts)
            before = any(one.attempt >= abort.attempt and one.told == "ok" for one in puts)
            if not later and not before and get.told not in {"HANDOFF_ABORTED"}:
                yield f"attempt {abort.attempt} was aborted, and a read was told {get.told}"


def _overlaps(event: Event, first: Event, second: Event) -> bool:
    """Whether it can have taken effect between two others."""
    return event.ended > first.began and event.began < second.ended


def _replaces(reserve: Event, put: Event) -> bool:
    """Whether a Reserve can have begun another hand-off after a Put: a later attempt, or the room used again."""
    again = reserve.attempt == put.attempt and reserve.owner != put.owner
    return (reserve.attempt > put.attempt or again) and reserve.ended > put.began


def play(options: Options, report: Report, transport: str) -> None:
    """One transport."""
    settings: dict[str, Any] = {"slots": 256, "transport": transport, **WIDTHS, **QUIET}
    with ProcessStore(f"unix:{options.directory}/store", **settings).wait() as store:
        racers = [
            Racer(store.target, number, ("never", "always")[number % 2], options.random(f"racer {number}"))
            for number in range(RACERS)
        ]
        for turn in range(options.times(12, 400)):
            rooms = range(turn * ROOMS, (turn + 1) * ROOMS)
            threads = [threading.Thread(target=racer.run, args=(rooms,), daemon=True) for racer in racers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(300)
                report.expect(not thread.is_alive(), "a racer hangs")
            events = [event for racer in racers for event in racer.history]
            for room in rooms:
                for sentence in broken([event for event in events if event.room == room]):
                    report.fault(f"room {room}: {sentence}")
            report.count("calls in the history", len(events))
            report.count("records read", sum(event.kind == "get" and event.told == "ok" for event in events))
            report.count("calls that were refused", sum(event.told != "ok" for event in events))
            for racer in racers:
                racer.let_go()
                report.faults.extend(racer.faults)
                racer.faults.clear()
                racer.history.clear()
        for racer in racers:
            racer.close()


SCENARIO = Scenario(
    "history", "real clients that race for a few rooms: some order must explain all answers", per_transport(play)
)
