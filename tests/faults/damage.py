"""Rows damaged behind the store's back: what is no longer what was put is never read, and its slot never used again."""

from __future__ import annotations

from tests.support.failures import CallFailed
from tests.support.steps import Steps

from .common import Report
from .lane import Course
from .outside import Rows


def break_rows(steps: Steps, rows: Rows, report: Report) -> None:
    """Three rows of a store without hand-offs: one gets its slot's former row back, one that of its neighbour under its
    own generation, one a flipped bit. The others are left alone."""
    free = steps.free
    for course in _fill(steps, rows, 9_000, free).values():
        steps.abort(course.which)
    held = _fill(steps, rows, 9_100, free)
    outdated, exchanged, flipped = sorted(held)[:3]
    rows.put_back(outdated)
    rows.copy(sorted(held)[-1], exchanged)
    rows.flip(flipped, 3)
    for slot, course in held.items():
        damaged = slot in {outdated, exchanged, flipped}
        try:
            found = steps.record(course.which, reader="r")
        except CallFailed as refused:
            told = refused.metadata.get("failure_reason")
            report.expect(damaged, f"beside damaged rows another was answered with {refused.reason} {told}")
            report.expect(told == "ROW_DAMAGED", f"a damaged row was answered with {refused.reason} {told}")
            report.count("damaged rows refused")
        else:
            report.expect(not damaged, f"a damaged row was read, as {found.customized_info[:24]!r}")
            report.expect(damaged or found == course.record, "beside damaged rows another record was read")
    report.expect(steps.free == free - 3, f"{free - steps.free} slots withheld for three damaged rows")


def _fill(steps: Steps, rows: Rows, first_room: int, count: int) -> dict[int, Course]:
    """A record in each of so many free slots, by slot; the rows are remembered as they are then."""
    held: dict[int, Course] = {}
    for room in range(first_room, first_room + count):
        course = Course(("", room, 0), 0)
        before = [row[8:] for row in rows]
        course.token = steps.publish(course.which, course.record)
        (slot,) = (number for number, row in enumerate(rows) if row[8:] != before[number])
        held[slot] = course
    rows.remember()
    return held
