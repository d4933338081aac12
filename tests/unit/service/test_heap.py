"""When the heap is searched for garbage: after growth, again while it stays grown, and ever more rarely after that."""

from __future__ import annotations

from pd_handoff_server.process.heap import Watch

MIB = 1 << 20


def searches(sizes: list[int], after: list[int] | None = None) -> list[int]:
    """At which turns the heap is searched when it has these sizes in MiB; a search leaves the next size of `after`."""
    watch, left, turns = Watch(), list(after or ()), []
    for turn, size in enumerate(sizes):
        if watch.is_due(size * MIB):
            turns.append(turn)
            watch.note_search((left.pop(0) if left else size) * MIB)
    return turns


def test_a_heap_that_does_not_grow_is_left_alone() -> None:
    assert searches([90, 100, 122, 90, 121, 95] * 20) == []


def test_it_is_searched_when_it_has_grown() -> None:
    assert searches([90, 123, 90, 90, 90, 90], [90]) == [1]
    assert searches([90, 100, 110, 120, 130, 90, 90]) == [4]


def test_growth_counts_from_the_least_that_was_seen() -> None:
    assert searches([120, 90, 121, 123], [90]) == [3]


def test_what_was_in_use_during_a_search_is_searched_again_without_more_growth() -> None:
    """An attack ends just after the search: its garbage is found two turns later, and then all is at rest."""
    assert searches([90, 150, 150, 150, 90, 90, 90, 90], [150, 90]) == [1, 3]


def test_what_has_grown_for_good_is_searched_ever_more_rarely() -> None:
    turns = searches([90] + [200] * 1000)
    assert turns == [1, 3, 7, 15, 31, 63, 127, 255, 511]


def test_more_growth_is_searched_at_once_and_soon_again() -> None:
    sizes = [90] + [200] * 20 + [240] * 10
    assert searches(sizes) == [1, 3, 7, 15, 21, 23, 27]


def test_after_a_rest_it_begins_anew() -> None:
    sizes = [90, 200, 200, 90, 90, 200, 200, 200]
    assert searches(sizes, [200, 200, 200]) == [1, 5, 7]
