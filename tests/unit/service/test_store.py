"""The embedded store where the reference model does not look: damage, re-entrance, the alarm, and its own record."""

from __future__ import annotations

import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.layout import HEADER, Layout
from pd_handoff_server.lifecycle import Handoff, Lifecycle, Observer, Policy, Spec, TokenMint
from pd_handoff_server.lifecycle.model import watchers
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.embedded import EmbeddedStore
from pd_handoff_server.store.interface import Query, Reading, Reserved

from tests.support import records as make
from tests.support.clock import FakeClock
from tests.support.lives import live
from tests.support.waits import at_once

from .strategies import SMALL

SECOND = 1_000_000_000
ROOM = ("", 7, 0)
OTHER = ("", 8, 0)


class Store:
    """An embedded store with its parts at hand, and everything that was completed."""

    def __init__(self, slots: int = 2, *, tombstones: int = 100, watch: Observer | None = None) -> None:
        self.clock = FakeClock()
        self.arena = Arena(slots, Layout(SMALL))
        policy = Policy(60 * SECOND, SECOND, 100 * SECOND, 300 * SECOND, 30 * SECOND, 120 * SECOND, tombstones)
        self.lifecycle = Lifecycle(slots, policy, self.clock, TokenMint("ab" * 8), self.arena, [watch or Observer()])
        self.core = EmbeddedStore(
            self.arena, self.lifecycle, self.clock, epoch="ab" * 8, max_wait=600 * SECOND, max_waiters=1000
        )
        self.completed: list[Any] = []

    def reserve(self, key: tuple[str, int, int] = ROOM, owner: str = "o", wait: int = 0) -> Any:
        """A Reserve; the hand-off behind the answer, if it was granted at once."""
        answer = self.core.reserve(Spec(key, owner), wait, self.completed.append)
        return live(self.lifecycle, answer) if isinstance(answer, Reserved) else answer

    def publish(self, key: tuple[str, int, int] = ROOM) -> Handoff:
        """Reserve and put."""
        handoff = self.reserve(key)
        assert isinstance(handoff, Handoff)
        self.core.put(key, handoff.token, make.full(), at_once)
        return handoff

    def get(self, key: tuple[str, int, int] = ROOM, wait: int = 0) -> Any:
        """A consuming Get."""
        return self.core.get(Query(key, 0, "r", True), wait, self.completed.append)

    def damage(self, handoff: Handoff) -> None:
        """Flip a bit of its record."""
        self.arena.storage[handoff.slot, HEADER.size + 3] ^= 1


def refusal_of(act: Callable[[], Any]) -> Refusal:
    """What it is refused with."""
    with pytest.raises(Refusal) as caught:
        act()
    return caught.value


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tombstones", [100, 0])
def test_a_damaged_record_is_never_returned_and_its_slot_never_used_again(tombstones: int) -> None:
    store = Store(2, tombstones=tombstones)
    handoff = store.publish()
    store.damage(handoff)
    refused = refusal_of(store.get)
    assert refused.reason == "HANDOFF_ABORTED"
    assert refused.metadata == {"http_status": "500", "failure_reason": "ROW_DAMAGED"}
    assert store.core.facts().slots_free == 1
    assert store.lifecycle.slots.quarantined == {handoff.slot}
    assert store.reserve().slot != handoff.slot if tombstones == 0 else store.reserve(OTHER).slot != handoff.slot
    assert refusal_of(lambda: store.reserve(("", 9, 0))).reason == "ARENA_FULL"


def test_damage_is_told_alike_to_all_who_come_later() -> None:
    store = Store()
    handoff = store.publish()
    store.damage(handoff)
    first = refusal_of(store.get)
    for again in (refusal_of(store.get), refusal_of(lambda: store.core.put(ROOM, handoff.token, make.full(), at_once))):
        assert (again.reason, again.metadata, again.message) == (first.reason, first.metadata, first.message)


def test_damage_found_by_a_repeated_put_is_no_success() -> None:
    store = Store()
    handoff = store.publish()
    store.damage(handoff)
    assert refusal_of(lambda: store.core.put(ROOM, handoff.token, make.full(), at_once)).reason == "HANDOFF_ABORTED"


def test_a_neighbour_of_a_damaged_row_is_read() -> None:
    store = Store()
    store.damage(store.publish())
    store.publish(OTHER)
    assert refusal_of(store.get).reason == "HANDOFF_ABORTED"
    assert store.get(OTHER).image == make.full().SerializeToString()


# -- readers -----------------------------------------------------------------------------------------------------------


def test_observers_are_told_who_reads_again() -> None:
    told: list[tuple[bytes, bool]] = []

    class Watch(Observer):
        """Notes consumptions."""

        def consumed(self, handoff: Handoff, reader: bytes, *, again: bool) -> None:
            """Of any hand-off."""
            told.append((reader, again))

    store = Store(watch=Watch())
    handoff = store.core.reserve(Spec(ROOM, "o", expected_readers=2), 0, store.completed.append)
    assert isinstance(handoff, Reserved)
    store.core.put(ROOM, handoff.token, make.full(), at_once)
    for reader in ("a", "a", "b", "b", "c"):
        store.core.get(Query(ROOM, 0, reader, True), 0, store.completed.append)
    assert told == [(b"a", False), (b"a", True), (b"b", False), (b"b", True), (b"c", True)]


# -- completions -------------------------------------------------------------------------------------------------------


def test_completions_run_outside_the_lock_and_may_call_the_store() -> None:
    store = Store()
    seen: list[Any] = []

    def done(result: Any) -> None:
        seen.append(result)
        seen.append(store.core.get(Query(ROOM, 0, "nested", False), 0, seen.append))
        store.core.release(ROOM, b"", "nested", at_once)

    store.core.get(Query(ROOM, 0, "r", True), SECOND, done)
    store.publish()
    assert [type(result) for result in seen] == [Reading, Reading]
    assert store.core.waiting == 0


def test_each_of_many_waiting_readers_is_answered_once_whichever_threads_come() -> None:
    store = Store(1)
    answers: list[list[Any]] = [[] for _ in range(200)]
    parked = [store.core.get(Query(ROOM, 0, str(n), False), SECOND, answers[n].append) for n in range(200)]
    cancelled = [False] * 200
    start = threading.Barrier(3)

    def cancel() -> None:
        start.wait()
        for number, each in enumerate(parked):
            if number % 2:
                assert not isinstance(each, Reading)
                cancelled[number] = each.cancel()

    def publish() -> None:
        start.wait()
        store.publish()

    threads = [threading.Thread(target=cancel), threading.Thread(target=publish)]
    for thread in threads:
        thread.start()
    start.wait()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for number in range(200):
        assert len(answers[number]) == (0 if cancelled[number] else 1)
    assert store.core.waiting == 0


# -- the timer ---------------------------------------------------------------------------------------------------------


def test_the_alarm_rings_when_something_is_due_earlier_than_the_timer_knows() -> None:
    store = Store()
    rung: list[int] = []
    store.core.alarm = lambda: rung.append(1)
    store.core.tick()
    store.reserve()
    assert len(rung) == 1
    store.reserve(OTHER)  # due no earlier
    assert len(rung) == 1
    store.get(("", 9, 0), wait=SECOND)  # due earlier than both leases
    assert len(rung) == 2
    assert store.core.tick() == store.clock.monotonic() + SECOND


def test_the_timer_has_nothing_to_do_in_an_empty_store() -> None:
    store = Store()
    assert store.core.tick() is None
    store.reserve()
    store.clock.advance(61)
    assert store.core.tick() is not None, "the outcome is to be forgotten"
    store.clock.advance(121)
    assert store.core.tick() is None


def test_everything_ends_by_the_timer_alone() -> None:
    """Expiry needs no traffic: ticks at the moments that the store itself names, and nothing else."""
    store = Store()
    store.reserve()
    store.publish(OTHER)
    for _ in range(20):
        due = store.core.tick()
        if due is None:
            break
        store.clock.advance((due - store.clock.monotonic()) / SECOND)
    assert due is None
    assert store.core.facts().slots_free == 2
    assert not list(store.lifecycle.tombstones())


def test_consumed_hand_offs_end_in_the_order_in_which_they_were_consumed() -> None:
    store = Store()
    for key in (ROOM, OTHER):
        store.publish(key)
    store.get(OTHER)
    store.clock.advance(10)
    store.get(ROOM)
    ends = []
    for _ in range(2):
        due = store.core.tick()
        assert due is not None
        ends.append(due - store.clock.monotonic())
        store.clock.advance(ends[-1] / SECOND)
    store.core.tick()
    assert ends == [20 * SECOND, 10 * SECOND]
    assert [ended.key for ended in store.lifecycle.tombstones()] == [OTHER, ROOM]


def test_observers_are_called_only_for_what_they_do_something_about() -> None:
    class Watch(Observer):
        def published(self, handoff: Handoff) -> None:
            seen.append(handoff)

    seen: list[Handoff] = []
    watch = Watch()
    assert watchers([Observer(), watch], "published") == (watch.published,)
    assert watchers([Observer(), watch], "reserved") == ()
    store = Store(watch=watch)
    assert seen == [store.publish()]


# -- looking -----------------------------------------------------------------------------------------------------------


def test_looking_changes_nothing() -> None:
    store = Store()
    handoff = store.publish()
    deadline, readers = handoff.deadline, set(handoff.readers)
    sight, image = store.core.look_at(ROOM, True, at_once)
    assert image == make.full().SerializeToString()
    assert (sight.key, sight.state, sight.slot) == (handoff.key, "PUBLISHED", handoff.slot)
    assert sight.widths == store.arena.widths(handoff.slot)
    sights, more = store.core.look(None, frozenset({"PUBLISHED"}), 0, 10, at_once)
    assert sights == [sight]
    assert more == 0
    assert (handoff.deadline, handoff.readers) == (deadline, readers)
    assert handoff.state.value == "PUBLISHED"


def test_contents_are_shown_only_when_asked_for() -> None:
    store = Store()
    store.publish()
    assert store.core.look_at(ROOM, False, at_once)[1] is None
    store.reserve(OTHER)
    assert store.core.look_at(OTHER, True, at_once)[1] is None
    assert refusal_of(lambda: store.core.look_at(("", 99, 0), True, at_once)).reason == "HANDOFF_NOT_FOUND"


def test_a_wait_that_is_over_holds_nothing_of_its_call() -> None:
    """A caller's whole call hangs on what is told of the answer, and the deadlines keep what has ended for a while."""
    store = Store()

    class Caller:
        """Whoever waits."""

        def __call__(self, result: Any) -> None:
            """The answer."""

    def wait(call: Callable[[Caller], Any], over: Callable[[Any], object]) -> None:
        caller = Caller()
        here, parked = weakref.ref(caller), call(caller)
        over(parked)
        del caller
        assert here() is None
        parked.cancel()

    wanted = ("", 9, 0)
    for room in (ROOM, OTHER):
        store.reserve(room)

    def run_out(parked: Any) -> None:
        del parked
        store.clock.advance(11)
        store.core.tick()

    for over in (lambda parked: parked.cancel(), run_out):
        wait(lambda caller: store.core.get(Query(wanted, 0, "r", True), 10 * SECOND, caller), over)
        wait(lambda caller: store.core.put_reserving(Spec(wanted, "b"), make.full(), 10 * SECOND, caller), over)
    assert store.core.waiting == 0
    assert all(getattr(entry[2], "draft", None) is None for entry in store.core._waiting.deadlines._heap)


def test_a_batch_looks_at_no_more_consumed_slots_than_it_takes() -> None:
    slots = 5000
    store = Store(slots)
    for room in range(slots):
        store.publish(("", room, 0))
        store.get(("", room, 0))
    assert store.lifecycle.consumed == slots
    specs = [Spec(("", slots + number, 0), "o") for number in range(8)]
    tracemalloc.start()
    try:
        handoffs = store.core.reserve_all(specs, 0, store.completed.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(handoffs, list)
    assert len(handoffs) == 8
    assert store.lifecycle.consumed == slots - 8
    assert peak < 100_000  # a set of all of them takes more
