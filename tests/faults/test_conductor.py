"""The conductor of "kill" takes for a fault what is one, and nothing else, whenever a store is killed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.common import Report
from tests.faults.kill import Conductor, Request

ROOM = 1


class Dice(random.Random):
    """The store is killed again while it starts, once; a moment is short."""

    def __init__(self) -> None:
        super().__init__(0)
        self._next = [0.1]

    def random(self) -> float:
        return self._next.pop() if self._next else 0.9

    def uniform(self, a: float, b: float) -> float:
        return min(b, a + 0.01)


class Fleet:
    """One worker of each side, and a store that is somebody new in every life.

    Attributes:
        said: what the workers will say next.
        given: the jobs that they were given.
    """

    transport = "none"

    def __init__(self) -> None:
        self.life = 1
        self.said: list[dict[str, Any]] = []
        self.given: list[dict[str, Any]] = []
        self.prefills = [SimpleNamespace(side="prefill", send=self._take)]
        self.decodes = [SimpleNamespace(side="decode", send=self._take)]
        self.store = SimpleNamespace(process=SimpleNamespace(kill=lambda: None), close=lambda: None)

    def _take(self, **job: Any) -> None:
        self.given.append(job)

    def start_store(self, *, again: bool = False) -> None:
        assert again is (self.life > 1)
        self.life += 1

    def epoch(self) -> str:
        return f"epoch {self.life}"

    def failures(self) -> list[str]:
        return []

    def next_message(self, seconds: float) -> tuple[None, int, dict[str, Any]] | None:
        return (None, 0, self.said.pop(0)) if self.said else None

    def fail(self, reason: str, *, reader: bool) -> None:
        """The last job of a prefill or decode process fails."""
        job = next(job for job in reversed(self.given) if ("wait" in job) is reader)
        self.said.append({"job": job["job"], "event": "failed", "reason": reason})


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def conductor(fleet: Fleet) -> Conductor:
    """One request is with both its workers."""
    anything: Any = fleet
    made = Conductor(anything, Report(), Dice(), kept=False, epoch=fleet.epoch(), issuing=False)
    made.open[ROOM] = request = Request(ROOM, late=0)
    made.read(request)
    made.prefill(request)
    made.rng = Dice()  # unused yet: what comes next is a kill
    return made


def test_a_store_that_serves_and_is_killed_again_may_tell_of_its_epoch(fleet: Fleet, conductor: Conductor) -> None:
    fleet.fail("STORE_RESTARTED", reader=True)
    fleet.fail("STALE_RESERVATION", reader=False)
    conductor.kill_store()
    conductor.pump(0.01)
    assert conductor.report.figures["kills of a starting store"] == 1
    assert fleet.life == 3
    assert not conductor.report.faults
    assert not fleet.said
    assert conductor.open[ROOM].attempt == 1


@pytest.mark.parametrize(("reason", "reader"), [("STORE_RESTARTED", True), ("STALE_RESERVATION", False)])
def test_what_was_given_out_under_the_present_store_must_not_fail(
    fleet: Fleet, conductor: Conductor, reason: str, reader: bool
) -> None:
    conductor.kill_store()
    for other in (True, False):
        fleet.fail("STORE_RESTARTED" if other else "STALE_RESERVATION", reader=other)
    conductor.pump(0.01)
    assert not conductor.report.faults
    fleet.fail(reason, reader=reader)
    conductor.pump(0.01)
    (fault,) = conductor.report.faults
    assert reason in fault
