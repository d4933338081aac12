"""Tombstones and producers: what is remembered, how much of it, and in which order it is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff_server.lifecycle.deadlines import NEVER
from pd_handoff_server.lifecycle.model import Key, Outcome, Tombstone
from pd_handoff_server.lifecycle.producers import Producers
from pd_handoff_server.lifecycle.tombstones import Tombstones

ROOM: Key = ("", 7, 0)


def stone(attempt: int = 0, *, key: Key = ROOM, deadline: int = 100, token: bytes = b"", owner: str = "") -> Tombstone:
    """An outcome."""
    return Tombstone(key, attempt, Outcome.EXPIRED, deadline, 0, owner=owner, token=token)


def test_found_by_key_and_by_token_until_its_time_is_over() -> None:
    stones = Tombstones(10)
    one = stone(token=b"t")
    assert stones.add(one) == []
    assert stones.newest(ROOM) is one
    assert stones.of_token(b"t") is one
    assert stones.next() == 100
    assert stones.expire(99) == []
    assert stones.expire(100) == [one]
    assert stones.newest(ROOM) is None
    assert stones.of_token(b"t") is None
    assert stones.next() is None
    assert len(stones) == 0


def test_the_newest_attempt_counts_and_of_equal_ones_the_latest() -> None:
    stones = Tombstones(10)
    zero, one, again = stone(0, token=b"0"), stone(1, token=b"1"), stone(1, token=b"1'")
    for each in (one, zero, again):
        stones.add(each)
    assert stones.newest(ROOM) is again
    assert [stones.of_token(token) for token in (b"0", b"1", b"1'")] == [zero, one, again]


def test_each_owner_of_a_reused_room_finds_its_own_latest_outcome() -> None:
    stones = Tombstones(10)
    first, second = stone(1, owner="a", deadline=10), stone(1, owner="b", deadline=20)
    third, again = stone(1, owner="c", deadline=30), stone(1, owner="a", deadline=40)
    for each in (first, second, third):
        stones.add(each)
    assert [stones.own(ROOM, 1, owner) for owner in "abcd"] == [first, second, third, None]
    assert stones.own(ROOM, 0, "a") is stones.own(ROOM, 2, "a") is stones.own(("", 8, 0), 1, "a") is None
    stones.add(again)
    assert stones.own(ROOM, 1, "a") is again
    assert stones.expire(10) == [first]
    assert [stones.own(ROOM, 1, owner) for owner in "abc"] == [again, second, third]
    stones.add(stone(1, owner="d", deadline=50))
    assert stones.own(ROOM, 1, "a") is again
    assert stones.expire(30) == [second, third]
    assert [stones.own(ROOM, 1, owner) for owner in "abc"] == [again, None, None]
    stones.add(stone(2, owner="a"))
    assert stones.own(ROOM, 1, "a") is None, "a higher attempt has ended"
    stones.expire(100)
    assert len(stones) == len(stones._former) == len(stones._by_key) == 0


def test_owners_of_a_reused_room_take_no_more_memory_than_outcomes() -> None:
    stones = Tombstones(5)
    for number in range(100):
        stones.add(stone(owner=str(number)))
    assert len(stones) == 5
    assert len(stones._former) == 4
    assert [owner for owner in map(str, range(100)) if stones.own(ROOM, 0, owner)] == ["95", "96", "97", "98", "99"]


def test_fencing_drops_what_is_below_and_nothing_else() -> None:
    stones = Tombstones(10)
    two, one = stone(2, token=b"2"), stone(1, token=b"1")
    other = stone(0, key=("", 8, 0))
    for each in (two, one, other):
        stones.add(each)
    assert stones.fence(ROOM, 2) is None
    assert stones.fence(ROOM, 3) is two
    assert stones.fence(ROOM, 3) is None
    assert stones.newest(ROOM) is None
    assert stones.of_token(b"2") is None
    assert stones.of_token(b"1") is one
    assert stones.newest(("", 8, 0)) is other
    assert list(stones) == [one, other]
    assert stones.expire(1000) == [one, other], "each is told once"


def test_the_oldest_make_room() -> None:
    stones = Tombstones(2)
    first, second, third = (stone(key=("", room, 0)) for room in range(3))
    stones.add(first)
    stones.add(second)
    assert stones.add(third) == [first]
    assert len(stones) == 2
    assert stones.newest(first.key) is None
    assert stones.newest(second.key) is second


def test_a_capacity_of_none_remembers_none() -> None:
    stones = Tombstones(0)
    stones.add(stone(token=b"t"))
    assert len(stones) == 0
    assert stones.newest(ROOM) is None
    assert stones.of_token(b"t") is None


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["add", "fence", "expire"]), st.integers(0, 2), st.integers(0, 3)), max_size=60),
)
def test_against_a_list(capacity: int, steps: list[tuple[str, int, int]]) -> None:
    """Bounded, each forgotten once, and always the newest of what is left.

    One that another of the same or a higher attempt stands before is found by its token alone.
    """
    stones = Tombstones(capacity)
    added: list[Tombstone] = []
    gone: list[Tombstone] = []
    replaced: list[Tombstone] = []
    now = 0
    for number, (step, room, attempt) in enumerate(steps):
        key: Key = ("", room, 0)
        if step == "add":
            one = stone(attempt, key=key, deadline=now + 10, token=bytes([number]))
            gone += stones.add(one)
            for other in added:
                if other.key == key and other not in gone and other not in replaced:
                    replaced.append(other if other.attempt <= attempt else one)
            added.append(one)
        elif step == "fence":
            fenced = stones.fence(key, attempt)
            gone += [] if fenced is None else [fenced]
        else:
            now += attempt * 4
            gone += stones.expire(now)
        left = [one for one in added if one not in gone]
        assert len(gone) == len({id(one) for one in gone})
        assert list(stones) == left
        assert len(stones) <= capacity
        for each in range(3):
            of_key = [one for one in left if one.key == ("", each, 0) and one not in replaced]
            assert stones.newest(("", each, 0)) is max(of_key, key=lambda one: one.attempt, default=None)
        for one in added:
            assert stones.of_token(one.token) is (one if one in left else None)


# -- producers ---------------------------------------------------------------------------------------------------------


def test_only_a_higher_epoch_raises() -> None:
    producers = Producers(10, 100)
    assert producers.epoch(("", "p")) is None
    assert producers.accept(("", "p"), 0, 0)[0] is True
    assert producers.accept(("", "p"), 0, 0)[0] is False
    assert producers.accept(("", "p"), 5, 0)[0] is True
    assert producers.accept(("", "p"), 4, 0)[0] is False
    assert producers.epoch(("", "p")) == 5


def test_instances_are_told_apart_by_namespace() -> None:
    producers = Producers(10, 100)
    producers.accept(("a", "p"), 5, 0)
    producers.accept(("b", "p"), 2**64 - 1, 0)
    assert producers.epoch(("a", "p")) == 5
    assert producers.epoch(("b", "p")) == 2**64 - 1
    assert producers.epoch(("", "p")) is None


def test_the_least_recently_seen_is_forgotten_first() -> None:
    producers = Producers(2, 100)
    producers.accept(("", "a"), 1, 0)
    producers.accept(("", "b"), 1, 0)
    producers.accept(("", "a"), 1, 0)  # seen again, though nothing was raised
    producers.accept(("", "c"), 1, 0)
    assert [instance for (_, instance), _ in producers] == ["a", "c"]
    assert producers.epoch(("", "b")) is None


@pytest.mark.parametrize("capacity", [1, 3])
def test_memory_is_bounded(capacity: int) -> None:
    producers = Producers(capacity, 100)
    for number in range(100):
        producers.accept(("", str(number)), number, 0)
        assert len(producers) <= capacity


def test_a_producer_is_forgotten_when_it_was_not_seen_for_its_time() -> None:
    producers = Producers(10, 100)
    assert producers.due == NEVER
    producers.accept(("", "a"), 5, 0)
    producers.accept(("", "b"), 5, 10)
    assert producers.due == 100
    producers.accept(("", "a"), 4, 50)  # seen, though nothing was raised
    assert producers.expire(100) == []
    assert producers.due == 110
    assert producers.expire(110) == [("", "b")]
    assert (producers.epoch(("", "a")), producers.epoch(("", "b"))) == (5, None)
    assert producers.due == 150
    producers.accept(("", "c"), 1, 120)
    assert producers.expire(1000) == [("", "a"), ("", "c")]
    assert (len(producers), producers.due) == (0, NEVER)
    assert producers.accept(("", "a"), 4, 1000)[0] is True
