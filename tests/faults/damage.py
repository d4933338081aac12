"""Rows damaged behind the store's back: what is no longer what was put is never read, and its slot never used again."""

from __future__ import annotations

from tests.support.failures import CallFailed
from tests.support.steps import Steps

from .common import Report
from .lane import Course
from .outside import Rows


def break_rows(steps: Steps, rows: Rows, report: Report) -> None:
    """One row with a bit flipped, one with another's record in its place, whole and with its checksum right."""
    free = steps.free
    courses = [Course(("", room, 0), 0) for room in range(9_000, 9_004)]
    slots = []
    for course in courses:
        before = [row[8:] for row in rows]
        course.token = steps.publish(course.which, course.record)
        after = [row[8:] for row in rows]
        (slot,) = (number for number, row in enumerate(after) if row != before[number])
        slots.append(slot)
    source, target, flipped, whole = courses
    rows.copy(slots[0], slots[1])
    rows.flip(slots[2], 3)
    for course in (target, flipped):
        try:
            found = steps.record(course.which, reader="r")
        except CallFailed as refused:
            told = refused.metadata.get("failure_reason")
            report.expect(told == "ROW_DAMAGED", f"a damaged row was answered with {refused.reason} {told}")
            report.count("damaged rows refused")
        else:
            report.fault(f"a damaged row was read, as {found.customized_info[:24]!r}")
    for course in (source, whole):
        report.expect(steps.record(course.which, reader="r") == course.record, "beside a damaged row another was read")
    report.expect(steps.free == free - 2, f"{free - steps.free} slots withheld for two damaged rows")
