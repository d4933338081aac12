"""What a store knew is what the next process knows, field by field."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff_server.lifecycle import Failure, Handoff, Outcome, Spec, State, Tombstone
from pd_handoff_server.persistence import codec
from pd_handoff_server.persistence.codec import Head
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Query, Reserved

from tests.support.lives import live
from tests.support.records import full, numbered
from tests.support.waits import at_once

from .kept import SECOND, Kept, ignore, policy

KEY = ("name.space", 2**64 - 1, 2**32 - 1)


@pytest.fixture
def kept(path: Path) -> Iterator[Kept]:
    """A fresh store."""
    store = Kept(path)
    yield store
    store.close()


def same(store: Kept) -> Kept:
    """The next process, after a check that it knows the same."""
    before = store.state()
    after = store.restart()
    assert after.state() == before
    assert not after.residue()
    assert not after.report.damaged
    return after


def reserve(store: Kept, room: int, owner: str = "owner", **more: object) -> Handoff:
    """A reservation."""
    handoff = store.store.reserve(Spec(("", room, 0), owner, **more), 0, ignore)  # type: ignore[arg-type]
    return live(store.lifecycle, handoff)


def test_a_reservation_takes_its_put_with_the_old_token(kept: Kept) -> None:
    spec = Spec(KEY, "o" * 256, 2**64 - 1, 7 * SECOND, 1024, ("i" * 256, 2**64 - 1), (1, 2, 0, 0, 0, 0, 0, 16, 0, 3, 0))
    spec.request_digest = bytes(range(32))
    handoff = kept.store.reserve(spec, 0, ignore)
    assert isinstance(handoff, Reserved)
    after = same(kept)
    after.clock.advance(6)
    wall = after.store.put(KEY, handoff.token, full(3), at_once)
    again = same(after)
    reading = again.store.get(Query(KEY, 0, "r", True), 0, ignore)
    assert not isinstance(reading, Refusal)
    assert (reading.image, reading.published_wall) == (full(3).SerializeToString(), wall.wall)  # type: ignore[union-attr]
    same(again).close()


@pytest.mark.parametrize("published", [False, True])
def test_a_request_digest_is_kept(kept: Kept, published: bool) -> None:
    token = reserve(kept, 1, request_digest=b"mine").token
    if published:
        kept.store.put(("", 1, 0), token, numbered(1), at_once)
    after = same(kept)
    with pytest.raises(Refusal) as refused:
        after.store.get(Query(("", 1, 0), 0, "r", True, request_digest=b"other"), SECOND, ignore)
    assert refused.value.reason == "REQUEST_MISMATCH"
    with pytest.raises(Refusal) as refused:
        reserve(after, 1, request_digest=b"other")
    assert refused.value.reason == "HANDOFF_EXISTS"
    assert reserve(after, 1, request_digest=b"mine").token == token
    after.close()


def test_a_lease_goes_on_counting_while_there_is_no_process(kept: Kept) -> None:
    token = reserve(kept, 1, lease=5 * SECOND).token
    kept.close()
    kept.clock.shift_wall(-86400)
    kept.clock.advance(5.001)
    after = kept.restart()
    with pytest.raises(Refusal) as refused:
        after.store.put(("", 1, 0), token, numbered(1), at_once)
    assert refused.value.reason == "RESERVATION_EXPIRED"
    after.close()


def test_a_renewed_lease_is_kept(kept: Kept) -> None:
    reserve(kept, 1, lease=5 * SECOND)
    kept.clock.advance(4)
    reserve(kept, 1, lease=50 * SECOND)
    after = same(kept)
    after.clock.advance(49)
    assert after.lifecycle.state_of(("", 1, 0)) == "RESERVED"
    after.close()


@pytest.mark.parametrize("readers", [1, 8, 9, 1024])
def test_readers_are_not_counted_twice(kept: Kept, readers: int) -> None:
    token = reserve(kept, 1, expected_readers=readers).token
    kept.store.put(("", 1, 0), token, numbered(1), at_once)
    names = [f"rank {number}" * (1 + number % 3) for number in range(readers)]
    for name in names[:-1]:
        kept.store.get(Query(("", 1, 0), 0, name, True), 0, ignore)
    after = same(kept)
    for name in names[:-1]:
        after.store.get(Query(("", 1, 0), 0, name, True), 0, ignore)
    assert after.lifecycle.state_of(("", 1, 0)) == "PUBLISHED"
    after.store.get(Query(("", 1, 0), 0, names[-1], True), 0, ignore)
    assert after.lifecycle.state_of(("", 1, 0)) == "CONSUMED"
    same(after).close()


def test_outcomes_are_told_as_before(kept: Kept) -> None:
    failure = Failure(400, "INPUT_TOO_LONG", "zu lang: ü" * 100)
    token = reserve(kept, 1).token
    kept.store.abort(("", 1, 0), failure, token, None, at_once)
    kept.store.abort(("", 2, 0), failure, b"", 7, at_once)  # ahead of its Reserve
    kept.store.put(("", 3, 0), reserve(kept, 3, lease=SECOND).token, numbered(3), at_once)
    reserve(kept, 4, lease=SECOND)
    kept.clock.advance(1)
    kept.store.tick()
    after = same(kept)
    with pytest.raises(Refusal) as refused:
        after.store.get(Query(("", 1, 0), 0, "r", True), 0, ignore)
    assert (refused.value.reason, refused.value.message) == ("HANDOFF_ABORTED", failure.message)
    with pytest.raises(Refusal) as refused:
        reserve(after, 2, attempt=7)
    assert refused.value.metadata["failure_reason"] == "INPUT_TOO_LONG"
    after.close()


def test_a_put_whose_answer_was_lost_is_still_answered_after_the_end(kept: Kept) -> None:
    handoff = reserve(kept, 1)
    wall = kept.store.put(("", 1, 0), handoff.token, numbered(1), at_once)
    kept.store.get(Query(("", 1, 0), 0, "r", True), 0, ignore)
    kept.store.release(("", 1, 0), handoff.token, "", at_once)
    after = same(kept)
    assert after.store.put(("", 1, 0), handoff.token, numbered(1), at_once) == wall
    with pytest.raises(Refusal) as refused:
        after.store.put(("", 1, 0), handoff.token, numbered(2), at_once)
    assert refused.value.reason == "RECORD_IMMUTABLE"
    after.close()


def test_a_shorter_grace_holds_for_what_was_consumed_before(kept: Kept) -> None:
    reserve(kept, 1)
    for room in (1, 2):
        handoff = reserve(kept, room)
        kept.store.put(("", room, 0), handoff.token, numbered(room), at_once)
    kept.store.get(Query(("", 1, 0), 0, "r", True), 0, ignore)
    after = kept.restart(rules=policy(consumed_grace=5 * SECOND))
    after.store.get(Query(("", 2, 0), 0, "r", True), 0, ignore)
    after.clock.advance(5)
    after.store.tick()
    assert [after.lifecycle.state_of(("", room, 0)) for room in (1, 2)] == ["CONSUMED", "CONSUMED"]
    assert (after.lifecycle.live, after.lifecycle.consumed) == (0, 0)
    after.close()


def test_a_fenced_outcome_stays_fenced(kept: Kept) -> None:
    for room in (1, 2, 3):
        kept.store.abort(("", room, 0), Failure(500, "ABORTED", ""), b"", 0, at_once)
    reserve(kept, 2, attempt=1)  # amid others
    after = same(kept)
    reserve(after, 1, attempt=1)  # the oldest
    same(after).close()


def test_producers_of_an_earlier_start_are_refused(kept: Kept) -> None:
    reserve(kept, 1, producer=("p", 5))
    after = same(kept)
    with pytest.raises(Refusal) as refused:
        reserve(after, 2, producer=("p", 4))
    assert refused.value.reason == "PRODUCER_RESTARTED"
    reserve(after, 2, producer=("p", 6))
    assert after.lifecycle.state_of(("", 1, 0)) == "ABORTED"
    same(after).close()


def test_the_log_of_producers_moves_when_it_is_full(path: Path) -> None:
    store = Kept(path)
    for epoch in range(40):
        for instance in range(20):
            spec = Spec(("", instance, 0), "o", epoch, producer=(f"instance {instance}" * 8, epoch))
            store.store.reserve(spec, 0, ignore)
            store.store.release(("", instance, 0), store.lifecycle._live["", instance, 0].token, "", at_once)
        store = same(store)
    store.close()


def test_more_producers_than_the_store_knows(path: Path) -> None:
    store = Kept(path, rules=policy(producers=3))
    for instance in range(10):
        handoff = reserve(store, instance, producer=(f"instance {instance}", 1))
        store.store.release(("", instance, 0), handoff.token, "", at_once)
    same(store).close()


def test_a_forgotten_producer_stays_forgotten(kept: Kept) -> None:
    reserve(kept, 1, producer=("p", 5))
    reserve(kept, 2, producer=("q", 5))
    kept.clock.advance(3000)
    reserve(kept, 3, producer=("q", 5))
    kept.clock.advance(601)
    kept.store.tick()
    after = same(kept)
    assert after.state()["producers"] == [(("", "q"), 5)]
    reserve(after, 1, producer=("p", 4))
    same(after).close()


def test_after_a_restart_a_producer_counts_as_just_seen(kept: Kept) -> None:
    reserve(kept, 1, producer=("p", 5))
    kept.clock.advance(3000)
    after = same(kept)
    after.clock.advance(3000)
    with pytest.raises(Refusal) as refused:
        reserve(after, 2, producer=("p", 4))
    assert refused.value.reason == "PRODUCER_RESTARTED"
    after.clock.advance(601)
    reserve(after, 2, producer=("p", 4))
    same(after).close()


def test_many_producers_are_forgotten_at_one_moment(path: Path) -> None:
    store = Kept(path, rules=policy(producers=5000))
    for instance in range(4000):
        handoff = reserve(store, instance, producer=(f"instance {instance}", 1))
        store.store.release(("", instance, 0), handoff.token, "", at_once)
    store = same(store)
    assert len(store.state()["producers"]) == 4000
    store.clock.advance(3601)
    store.store.tick()
    assert store.state()["producers"] == []
    same(store).close()


@pytest.mark.parametrize("tombstones", [0, 1, 2, 50])
def test_the_ring_of_tombstones_goes_round(path: Path, tombstones: int) -> None:
    store = Kept(path, rules=policy(tombstones=tombstones))
    for number in range(150):
        message = "x" * (number * 37 % 1024)
        store.store.abort(("", number, 0), Failure(500, "ABORTED", message), b"", None, at_once)
        if number % 10 == 0:
            store.clock.advance(1)
            store = same(store)
    store.clock.advance(121)
    store.store.tick()
    same(store).close()


def test_a_quarantined_slot_stays_out_of_use(kept: Kept) -> None:
    handoff = reserve(kept, 1)
    kept.store.put(("", 1, 0), handoff.token, numbered(1), at_once)
    kept.arena.storage[handoff.slot, 70] ^= 255
    with pytest.raises(Refusal):
        kept.store.get(Query(("", 1, 0), 0, "r", True), 0, ignore)
    after = same(kept)
    assert after.lifecycle.slots.free == 2
    assert after.report.quarantined == 1
    after.close()


def test_a_superseded_attempt_is_stale_and_the_new_one_live(kept: Kept) -> None:
    old = reserve(kept, 1)
    kept.store.put(("", 1, 0), old.token, numbered(1), at_once)
    new = reserve(kept, 1, "other", attempt=1)
    after = same(kept)
    with pytest.raises(Refusal) as refused:
        after.store.put(("", 1, 0), old.token, numbered(1), at_once)
    assert refused.value.reason == "STALE_RESERVATION"
    after.store.put(("", 1, 0), new.token, numbered(2), at_once)
    same(after).close()


def test_the_oldest_consumed_is_still_the_first_to_go(kept: Kept) -> None:
    for room in (1, 2, 3):
        kept.store.put(("", room, 0), reserve(kept, room).token, numbered(room), at_once)
    for room in (2, 3, 1):
        kept.clock.advance(1)
        kept.store.get(Query(("", room, 0), 0, "r", True), 0, ignore)
    after = same(kept)
    reserve(after, 4)
    assert [after.lifecycle.state_of(("", room, 0)) for room in (1, 2, 3)] == ["CONSUMED", "CONSUMED", "CONSUMED"]
    assert after.lifecycle.newest(("", 2, 0)).deadline == after.clock.monotonic() + 120 * SECOND  # type: ignore[union-attr]
    same(after).close()


def test_readers_without_memory_are_said_and_not_half_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    token = reserve(kept, 1, expected_readers=20).token
    kept.store.put(("", 1, 0), token, numbered(1), at_once)
    monkeypatch.setattr(kept.persistence._file, "allocate", refuse)
    for number in range(12):
        kept.store.get(Query(("", 1, 0), 0, f"r{number}", True), 0, ignore)
    assert kept.complaints
    after = kept.restart()
    assert sorted(after.lifecycle._live["", 1, 0].readers) == [f"r{number}".encode() for number in range(8)]
    after.close()


# -- as many as the settings say, shared out by namespace --------------------------------------------------------------

LONGEST = Failure(599, "R" * 64, "\u20ac" * 341)


def abort(store: Kept, namespace: str, room: int, failure: Failure = LONGEST) -> None:
    """An outcome without a hand-off."""
    store.store.abort((namespace, room, 0), failure, b"", None, ignore)


def test_case_47_as_many_tombstones_are_kept_as_the_settings_say_however_long_they_are(path: Path) -> None:
    """Also when their places have been used before, in another order."""
    store = Kept(path, slots=1, rules=policy(tombstones=300, tombstone_time=1000 * SECOND))
    for room in range(700):
        key, token = ("n" * 128, room, 0), b""
        if room % 2:
            spec = Spec(key, "o" * 256, producer=("i" * 256, 1), request_digest=b"d" * 32)
            token = live(store.lifecycle, store.store.reserve(spec, 0, ignore)).token
        store.store.abort(key, LONGEST, token, None, ignore)
    assert len(store.state()["tombstones"]) == 300
    after = same(store)
    assert [one["key"][1] for one in after.state()["tombstones"]] == list(range(400, 700))
    abort(after, "n" * 128, 1000)
    after = same(after)
    assert [one["key"][1] for one in after.state()["tombstones"]] == [*range(401, 700), 1000]
    after.close()


def test_case_40_no_namespace_pushes_anothers_tombstones_out_of_the_file(path: Path) -> None:
    store = Kept(path, rules=policy(tombstones=64, tombstone_time=1000 * SECOND))
    for room in range(8):
        abort(store, "good", room)
    for room in range(500):
        abort(store, "evil", room)
    after = same(store)
    kept = [one["key"] for one in after.state()["tombstones"]]
    assert [key for key in kept if key[0] == "good"] == [("good", room, 0) for room in range(8)]
    assert len(kept) == 64
    after.close()


def test_case_40_no_namespace_pushes_anothers_producers_out_of_the_file(path: Path) -> None:
    store = Kept(path, slots=1, rules=policy(producers=20_000))
    kept = store.persistence.journal.producers.kept
    assert 3000 < kept < 20_000

    rooms = itertools.count()

    def seen(namespace: str, instance: str) -> None:
        spec = Spec((namespace, next(rooms), 0), "o", producer=(instance, 7))
        handoff = live(store.lifecycle, store.store.reserve(spec, 0, ignore))
        store.store.release(handoff.key, handoff.token, "", ignore)

    for number in range(5):
        seen("good", f"{number}")
    for number in range(2 * kept):
        seen("evil", f"{number:05}".ljust(256, "x"))
    after = store.restart()
    found = [instance for instance, _ in after.state()["producers"]]
    assert [name for namespace, name in found if namespace == "good"] == [f"{number}" for number in range(5)]
    assert len(found) >= kept * 3 // 4
    after.close()


def test_a_long_tombstone_without_memory_is_said_and_not_half_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    abort(kept, "", 1, Failure(400, "R", "short"))
    monkeypatch.setattr(kept.persistence.journal.outcomes, "_allocate", refuse)
    abort(kept, "", 2)
    abort(kept, "", 3, Failure(400, "R", "short"))
    assert ["forget it" in complaint for complaint in kept.complaints] == [True]
    with pytest.raises(Refusal, match="\u20ac"):
        reserve(kept, 2)
    after = kept.restart()
    assert [one["key"][1] for one in after.state()["tombstones"]] == [1, 3]
    after.close()


# -- every field of a slot and of a tombstone --------------------------------------------------------------------------

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
times = st.integers(0, 2**63 - 1)
names = st.text(max_size=64)
producers = st.none() | st.tuples(names, u64)
keys = st.tuples(st.text("abcXYZ019._-", max_size=128), u64, u32)


@settings(max_examples=200, deadline=None)
@given(
    st.builds(Spec, keys, names, u64, st.none(), u32, producers, st.none() | st.tuples(*[u64] * 11)),
    u64,
    st.binary(max_size=64),
    st.tuples(*[times] * 6),
    st.sampled_from(State),
    st.integers(0, 1000),
)
def test_a_slot_comes_back(
    spec: Spec, generation: int, token: bytes, moments: tuple[int, ...], state: State, slot: int
) -> None:
    handoff = Handoff(spec, slot, generation, token, moments[0], moments[1], moments[2])
    handoff.state, handoff.deadline = state, moments[3]
    handoff.published_mono, handoff.published_wall = moments[4:]
    head = Head(memoryview(codec.pack_head(handoff, 5, 17)), slot)
    serial, back = codec.unpack_claim(memoryview(codec.pack_claim(handoff, 99)), slot, head)
    assert (serial, head.readers, head.marks_crc) == (99, 5, 17)
    for name in Handoff.__slots__:
        assert getattr(back, name) == getattr(handoff, name), name


@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        Tombstone,
        keys,
        u64,
        st.sampled_from(Outcome),
        times,
        times,
        st.none() | st.builds(Failure, st.integers(100, 599), st.text("ABC_", max_size=63), st.text(max_size=256)),
        names,
        st.binary(max_size=64),
        producers,
        st.none() | st.binary(max_size=16),
        times,
        times,
    ),
    u32,
    u64,
)
def test_a_tombstone_comes_back(tombstone: Tombstone, place: int, serial: int) -> None:
    data = codec.pack_tombstone(tombstone, place, serial)
    found, size, crc, flag = codec.TOMBSTONE_FRAME.unpack_from(data)
    assert (found, size + codec.TOMBSTONE_FRAME.size, flag) == (serial, len(data), codec.REMEMBERED)
    back = codec.unpack_tombstone(data[codec.TOMBSTONE_FRAME.size :], crc, place, serial)
    for name in Tombstone.__slots__:
        assert getattr(back, name) == getattr(tombstone, name), name


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=17))
def test_a_reader_comes_back(mark: bytes) -> None:
    assert codec.unpack_mark(memoryview(codec.pack_mark(mark))) == mark
