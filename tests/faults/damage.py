"""Rows damaged behind the store's back: what is no longer what was put is never read, and its slot never used again."""

from __future__ import annotations

from itertools import permutations

from tests.support.failures import CallFailed
from tests.support.steps import Steps

from .common import Report
from .lane import Course
from .outside import Rows


def break_rows(steps: Steps, rows: Rows, report: Report) -> None:
    """One row with a bit flipped, one with another's record in its place, whole and with its checksum right."""
    free = steps.free
    held: dict[int, Course] = {}
    for room in range(9_000, 9_006):
        course = Course(("", room, 0), 0)
        before = [row[8:] for row in rows]
        course.token = steps.publish(course.which, course.record)
        (slot,) = (number for number, row in enumerate(rows) if row[8:] != before[number])
        held[slot] = course
    # A row names its generation, not its slot: two of one generation would be a fair exchange.
    generations = [row[:8] for row in rows]
    first, second = next(pair for pair in permutations(held, 2) if generations[pair[0]] != generations[pair[1]])
    source, target = held.pop(first), held.pop(second)
    third, fourth, *_ = held
    flipped, whole = held[third], held[fourth]
    rows.copy(first, second)
    rows.flip(third, 3)
    for course in (target, flipped):
        try:
            found = steps.record(course.which, reader="r")
        except CallFailed as refused:
            told = refused.metadata.get("failure_reason")
            report.expect(told == "ROW_DAMAGED", f"a damaged row was answered with {refused.reason} {told}")
            report.count("damaged rows refused")
        else:
            report.fault(f"a damaged row was read, as {found.customized_info[:24]!r}")
    for course in (source, whole, *(held[slot] for slot in held if slot not in {third, fourth})):
        report.expect(steps.record(course.which, reader="r") == course.record, "beside a damaged row another was read")
    report.expect(steps.free == free - 2, f"{free - steps.free} slots withheld for two damaged rows")
