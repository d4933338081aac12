"""Deadlines against a sorted list, and their memory under callers who renew without end."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pd_handoff_server.lifecycle.deadlines import Deadlines

from tests.property.profiles import TIMEOUT


class Item:
    """Something with a deadline; `number` tells it from others."""

    def __init__(self, number: int, deadline: int | None) -> None:
        self.number = number
        self.deadline = deadline
        self.queued_at: int | None = None


times = st.integers(0, 50)
recent = st.integers(0, 30)


class AgainstSortedList(RuleBasedStateMachine):
    """Items are watched, moved to and fro, forgotten and popped; a plain list knows what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[Item] = Deadlines()
        self.followed: list[Item] = []
        self.now = 0
        self.numbers = 0

    @rule(after=times)
    def watch(self, after: int) -> None:
        self.numbers += 1
        item = Item(self.numbers, self.now + after)
        self.deadlines.watch(item)
        self.followed.append(item)

    @precondition(lambda self: self.followed)
    @rule(which=recent, after=times, tell=st.booleans())
    def move(self, which: int, after: int, tell: bool) -> None:
        """A later moment need not be told; an earlier one must."""
        item = self.followed[which % len(self.followed)]
        assert item.deadline is not None
        earlier = self.now + after < item.deadline
        item.deadline = self.now + after
        if tell or earlier:
            self.deadlines.watch(item)

    @precondition(lambda self: self.followed)
    @rule(which=recent)
    def forget(self, which: int) -> None:
        item = self.followed.pop(which % len(self.followed))
        self.deadlines.forget(item)
        self.deadlines.forget(item)  # twice is once

    @rule(after=times)
    def advance(self, after: int) -> None:
        self.now += after
        due = [item for item in self.followed if item.deadline is not None and item.deadline <= self.now]
        popped = []
        while (item := self.deadlines.pop_due(self.now)) is not None:
            popped.append(item)
            assert len(popped) <= len(due), "something came that was not due, or came twice"
        assert sorted(item.number for item in popped) == sorted(item.number for item in due)
        assert [item.deadline for item in popped] == sorted(item.deadline or 0 for item in popped)
        self.followed = [item for item in self.followed if item not in popped]

    @precondition(lambda self: self.followed)
    @rule(which=recent, after=times)
    def come_back(self, which: int, after: int) -> None:
        """Forgotten and watched again, perhaps for the very moment of a dead entry."""
        item = self.followed[which % len(self.followed)]
        self.deadlines.forget(item)
        item.deadline = self.now + after
        self.deadlines.watch(item)

    @invariant()
    def next_is_never_late(self) -> None:
        earliest = min((item.deadline for item in self.followed if item.deadline is not None), default=None)
        moment = self.deadlines.next()
        if earliest is not None:
            assert moment is not None
            assert moment <= earliest

    @invariant()
    def bounded(self) -> None:
        assert len(self.deadlines) <= 2 * len(self.followed) + 1025


TestAgainstSortedList = pytest.mark.timeout(TIMEOUT)(AgainstSortedList.TestCase)


def test_watching_needs_a_deadline() -> None:
    with pytest.raises(ValueError, match="deadline"):
        Deadlines[Item]().watch(Item(1, None))


@pytest.mark.parametrize("step", [1, -1, 7919], ids=["later", "earlier", "to and fro"])
def test_renewing_without_end_holds_no_memory(step: int) -> None:
    """Each move could leave a dead entry: they are swept out before they outnumber the living by much."""
    deadlines: Deadlines[Item] = Deadlines()
    items = [Item(number, 10**9) for number in range(10)]
    largest = 0
    for turn in range(20_000):
        item = items[turn % len(items)]
        item.deadline = 10**9 + (turn * step) % 10_007 if step == 7919 else 10**9 + turn * step
        deadlines.watch(item)
        largest = max(largest, len(deadlines))
    assert largest <= 2 * len(items) + 1025
    popped = []
    while (item_due := deadlines.pop_due(10**10)) is not None:
        popped.append(item_due.number)
    assert sorted(popped) == list(range(10))
    assert len(deadlines) == 0


def test_ending_without_end_holds_no_memory() -> None:
    """Nearly all hand-offs end before they are due, and each leaves an entry for a moment far away."""
    deadlines: Deadlines[Item] = Deadlines()
    for turn in range(20_000):
        item = Item(turn, 10**9 + turn)
        deadlines.watch(item)
        deadlines.forget(item)
        assert len(deadlines) <= 2 * 1 + 1024, "twice the most that were followed at a time, and a constant"
    assert deadlines.pop_due(10**12) is None


def test_forgetting_twice_counts_once() -> None:
    """What is counted decides when dead entries are swept out: with a count too low, at every new item."""
    deadlines: Deadlines[Item] = Deadlines()
    living = [Item(number, 10**9 + number) for number in range(100)]
    for item in living:
        deadlines.watch(item)
    for turn in range(10_000):
        ended = Item(turn, 10**6 + turn)
        deadlines.watch(ended)
        deadlines.forget(ended)
        deadlines.forget(ended)
        never = Item(turn, None)
        deadlines.forget(never)
    assert deadlines._live == len(living)
    assert sorted(iter(lambda: getattr(deadlines.pop_due(10**10), "number", None), None)) == list(range(100))
    assert deadlines._live == 0
