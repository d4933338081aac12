"""The real store and the reference model side by side: each call goes to both, and the answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pd_handoff_server.arena.arena import Arena
from pd_handoff_server.arena.layout import HEADER, Layout
from pd_handoff_server.lifecycle import Failure as StoreFailure
from pd_handoff_server.lifecycle import (
    Handoff,
    Lifecycle,
    Observer,
    Policy,
    Spec,
    TokenMint,
    Tombstone,
)
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.embedded import EmbeddedStore
from pd_handoff_server.store.interface import Parked, Query, Reading, Reserved
from pd_handoff_server.store.waiting import Waiter

from tests.support.clock import FakeClock
from tests.support.waits import at_once

from .catalogue import LIMITS, Paper
from .reference import Reference
from .terms import Ask, Expected, Failure, Granted, Key, Live, Plain, Published, Read, Refused, Times, Waits

EPOCH = "00c0ffee00c0ffee"
RETRIABLE = {"ARENA_FULL", "TOO_MANY_WAITERS", "DRAINING"}


def counting() -> Callable[[int], bytes]:
    """Randomness that is none: every block differs, and every run is the same."""
    blocks = iter(range(1 << 30))

    def random(size: int) -> bytes:
        block = next(blocks)
        return b"".join((block << 16 | at).to_bytes(4, "big") for at in range(size // 4))

    return random


class Ledger(Observer):
    """Who had which slot: told by the store itself, and checked at once."""

    def __init__(self) -> None:
        self.holders: dict[int, Handoff] = {}
        self.frees: dict[int, int] = {}
        self.granted: dict[bytes, Handoff] = {}  # by token

    def reserved(self, handoff: Handoff) -> None:
        """A slot may be handed out only while nobody has it, with a generation that counts how often it came back."""
        assert handoff.slot not in self.holders, "one slot, two owners"
        assert handoff.generation == self.frees.get(handoff.slot, 0)
        self.holders[handoff.slot] = handoff
        self.granted[handoff.token] = handoff

    def ended(self, handoff: Handoff, tombstone: Tombstone | None) -> None:
        """Only its holder frees a slot."""
        assert self.holders.pop(handoff.slot, None) is handoff, "freed by another than its owner"
        self.frees[handoff.slot] = self.frees.get(handoff.slot, 0) + 1


class Pair:
    """Both stores on one clock."""

    def __init__(self, slots: int, max_waiters: int = 6, times: Times | None = None) -> None:
        self.clock = FakeClock()
        self.times = times = times or Times()
        self.ledger = Ledger()
        self.arena = Arena(slots, Layout(LIMITS))
        policy = Policy(
            lease_default=times.lease_default,
            lease_min=times.lease_min,
            lease_max=times.lease_max,
            retention=times.retention,
            consumed_grace=times.grace,
            tombstone_time=times.tombstone,
            tombstones=1000,
        )
        mint = TokenMint(EPOCH, counting())
        self.lifecycle = Lifecycle(slots, policy, self.clock, mint, self.arena, [self.ledger])
        self.store = EmbeddedStore(
            self.arena, self.lifecycle, self.clock, epoch=EPOCH, max_wait=times.max_wait, max_waiters=max_waiters
        )
        self.model = Reference(slots, times, max_waiters, self.clock.monotonic, self.clock.wall)
        self.tokens: list[tuple[Key, bytes]] = []
        self.handles: dict[int, Parked] = {}
        self.completed: dict[int, Any] = {}
        self._step: dict[int, Any] = {}
        self._numbers = 0

    # -- calls ---------------------------------------------------------------------------------------------------------

    def reserve(self, asks: Sequence[Ask], wait: int = 0, *, batch: bool = False) -> Any:
        """One, or a batch."""
        number, done = self._waiter()
        specs = [_spec(ask) for ask in asks]

        def real() -> Any:
            return self.store.reserve_all(specs, wait, done) if batch else self.store.reserve(specs[0], wait, done)

        return self._both(real, lambda: self.model.reserve(asks, wait, number, batch=batch), number)

    def put(self, key: Key, token: bytes, paper: Paper) -> Any:
        """With a token."""
        return self._both(
            lambda: self.store.put(key, token, paper.message, at_once),
            lambda: self.model.put(key, token, paper),
        )

    def put_once(self, ask: Ask, paper: Paper, wait: int = 0) -> Any:
        """Reserve and Put in one."""
        number, done = self._waiter()
        return self._both(
            lambda: self.store.put_reserving(_spec(ask), paper.message, wait, done),
            lambda: self.model.put_once(ask, paper, wait, number),
            number,
        )

    def get(self, key: Key, attempt: int = 0, reader: str = "r", consume: bool = True, wait: int = 0) -> Any:
        """A read."""
        number, done = self._waiter()
        return self._both(
            lambda: self.store.get(Query(key, attempt, reader, consume), wait, done),
            lambda: self.model.get(key, attempt, reader, consume, wait, number),
            number,
        )

    def release(self, key: Key, token: bytes = b"", reader: str = "") -> Any:
        """By token, or by reader."""
        return self._both(
            lambda: self.store.release(key, token, reader, at_once),
            lambda: self.model.release(key, token, reader),
        )

    def abort(self, key: Key, failure: Failure, token: bytes = b"", attempt: int | None = None) -> Any:
        """In every form."""
        return self._both(
            lambda: self.store.abort(key, StoreFailure(*failure), token, attempt, at_once),
            lambda: self.model.abort(key, failure, token, attempt),
        )

    def tick(self) -> None:
        """The timer looks."""
        self._begin()
        due = self.store.tick()
        assert due is None or due > self.clock.monotonic(), "the timer would spin"
        self._compare_completions(self.model.tick(self._seen()))

    def cancel(self, number: int) -> None:
        """A waiting caller goes away."""
        self.tick()
        self._begin()
        waits = number in self.model.parked
        assert self.handles[number].cancel() is waits
        self.model.parked.pop(number, None)
        self._compare_completions(self.model.settle(self._seen()))

    def drain(self) -> None:
        """The store is to end."""
        self.tick()
        self._begin()
        self.store.drain()
        self._compare_completions(self.model.drain())

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._step = {}

    def _seen(self) -> dict[int, str]:
        return {number: getattr(result, "reason", "OK") for number, result in self._step.items()}

    def _waiter(self) -> tuple[int, Callable[[Any], None]]:
        self._numbers += 1
        number = self._numbers

        def done(result: Any) -> None:
            assert number not in self.completed, "completed twice"
            assert number in self.handles or number == self._numbers, "completed, though it was answered at once"
            self.completed[number] = result
            self._step[number] = result

        return number, done

    def _both(self, real: Callable[[], Any], model: Callable[[], Expected], number: int = 0) -> Any:
        self.clock.advance(1e-9)  # no two calls at one moment, hence no deadline that is met exactly
        self._begin()
        try:
            result = real()
        except Refusal as refused:
            result = refused
        if isinstance(result, Waiter):
            self.handles[number] = result
        expected = model()
        completions = self.model.settle(self._seen())  # may renew what was just granted, before the caller looks
        self._match(result, expected)
        self._compare_completions(completions)
        return result

    def _compare_completions(self, expected: dict[int, Expected]) -> None:
        assert self._step.keys() == expected.keys(), (self._step, expected)
        for number, result in self._step.items():
            self._match(result, expected[number])

    def _match(self, result: Any, expected: Expected) -> None:
        match expected:
            case Refused():
                _match_refusal(result, expected)
            case Granted(lives):
                handoffs = result if isinstance(result, list) else [result]
                for handoff, live in zip(handoffs, lives, strict=True):
                    self._match_grant(handoff, live)
            case Published(wall):
                assert result == (wall, self.store.facts().epoch)
            case Read(live, paper):
                assert isinstance(result, Reading), result
                assert result.image == paper.image
                seen = (result.attempt, result.reserved_wall, result.published_wall, result.epoch)
                assert seen == (live.ask.attempt, live.reserved_wall, live.published_wall, self.store.facts().epoch)
            case Waits():
                assert isinstance(result, Waiter), result
            case Plain(values):
                self._match_any(result, values)

    def _match_any(self, result: Any, values: Sequence[object]) -> None:
        if isinstance(result, Refusal):
            options = [value for value in values if isinstance(value, Refused)]
            assert options, (result.reason, values)
            _match_refusal(result, options[0])
        else:
            plain = [
                (value.wall, self.store.facts().epoch) if isinstance(value, Published) else value for value in values
            ]
            assert result in plain, (result, values)

    def _match_grant(self, reserved: Any, live: Live) -> None:
        assert isinstance(reserved, Reserved), reserved
        if live.token is None:
            assert all(reserved.token != token for _, token in self.tokens), "a token was handed out twice"
            live.token = reserved.token
            self.tokens.append((live.ask.key, reserved.token))
        assert reserved == (live.token, live.lease, self.store.facts().epoch)

    # -- what must hold at any time ------------------------------------------------------------------------------------

    def check(self) -> None:
        """No residue, no shared slot, nothing lost, nothing left over."""
        slots, model = self.lifecycle.slots, self.model
        live = list(self.lifecycle.handoffs())
        held = {handoff.slot: handoff for handoff in live}
        assert len(held) == len(live), "one slot, two owners"
        assert held == self.ledger.holders
        assert slots.free + len(held) == slots.total
        assert not slots.quarantined
        assert self.store.facts().slots_free == model.slots_free
        assert self.store.waiting == len(model.parked)
        assert self.lifecycle.touched == []
        assert len(self.lifecycle._deadlines) <= 2 * len(live) + 1024
        by_key = {handoff.key: handoff for handoff in live}
        assert by_key.keys() == model.live.keys()
        for key, expected in model.live.items():
            self._check_live(by_key[key], expected)
        for slot in set(range(slots.total)) - held.keys():
            self._check_empty(slot, slots.generations[slot])

    def _check_live(self, handoff: Handoff, live: Live) -> None:
        assert handoff.state.value == live.state
        assert handoff.owner == live.ask.owner
        assert handoff.attempt == live.ask.attempt
        assert handoff.deadline == live.until
        if live.token is None:  # a waiting one-shot Put got it: nobody was told the token
            live.token = handoff.token
            self.tokens.append((handoff.key, handoff.token))
        assert handoff.token == live.token
        if live.paper is None:
            self._check_empty(handoff.slot, handoff.generation)
            return
        assert self.arena.read(handoff.slot, handoff.generation) == live.paper.image
        tail = self.arena.storage[handoff.slot, HEADER.size + len(live.paper.image) :]
        assert not tail.any(), "a tail of a former record"

    def _check_empty(self, slot: int, generation: int) -> None:
        row = bytes(self.arena.storage[slot].numpy())
        assert row == HEADER.pack(generation, *(0,) * 14) + bytes(len(row) - HEADER.size), "a residue"


def _spec(ask: Ask) -> Spec:
    widths = (1, ask.top_logprobs, 0, 0, 0, 0, 0, 0, 0, 0, 0) if ask.top_logprobs else None
    return Spec(ask.key, ask.owner, ask.attempt, ask.lease, ask.readers, ask.producer, widths)


def _match_refusal(result: Any, expected: Refused) -> None:
    assert isinstance(result, Refusal), (result, expected)
    assert result.reason in expected.options, (result.reason, result.metadata, expected)
    for name, values in expected.options[result.reason].items():
        assert result.metadata.get(name) in values, (result.reason, result.metadata, expected)
    assert (result.retry_after is not None) == (result.reason in RETRIABLE)
    assert bool(result.violations) == result.reason.startswith("INVALID_")
    if result.reason == "HANDOFF_ABORTED" and expected.message:
        assert result.message == expected.message
