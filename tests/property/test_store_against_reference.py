"""Arena, rules and waiting together against a plain-dict model, with few keys and fewer slots, so that all collide."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pd_handoff_server.lifecycle import TokenMint

from .catalogue import FLAWED, LEGAL, Paper
from .pair import EPOCH, Pair, counting
from .profiles import TIMEOUT
from .terms import SECOND, Ask, Failure, Key, Producer

KEYS: list[Key] = [("", 0, 0), ("", 0, 1), ("", 2**64 - 1, 0), ("other", 0, 0)]
READERS = ["r0", "r1", "r2", "r" * 256]
FAILURES: list[Failure] = [(400, "INPUT_TOO_LONG", "input too long"), (500, "ABORTED", "prefill failed")]

DELAYS = [0.001] * 4 + [1.0] * 4 + [3.0, 3.0, 20.0, 31.0, 61.0, 121.0, 301.0, 3_600.0, 1e9]

keys = st.sampled_from(KEYS)
failures = st.sampled_from(FAILURES)
attempts = st.sampled_from([0] * 8 + [1, 1, 2, 2**64 - 1])
producers: st.SearchStrategy[Producer | None] = st.sampled_from(
    [None] * 6 + [("p", 1), ("p", 1), ("p", 2), ("p", 3), ("q", 1)]
)
waits = st.sampled_from([0, 0, 5 * SECOND, 500 * SECOND])
papers = st.sampled_from(LEGAL)
any_papers = st.sampled_from(LEGAL * 4 + FLAWED)
asks = st.builds(
    Ask,
    key=keys,
    owner=st.sampled_from(["a", "b"]),
    attempt=attempts,
    lease=st.sampled_from([None, 0, 2 * SECOND, 10**6 * SECOND]),
    readers=st.sampled_from([1, 1, 2, 3]),
    producer=producers,
    top_logprobs=st.sampled_from([0] * 10 + [3, 4]),
)
batches = st.lists(asks, min_size=1, max_size=4, unique_by=lambda ask: ask.key)

# Never of this store: another epoch's token of slot 0, and bytes that are none.
FOREIGN = [
    TokenMint("11" * 8, counting()).mint(0, 0),
    TokenMint(EPOCH, lambda size: b"?" * size).mint(0, 0),
    b"no token",
]

recent = st.integers(0, 15)
"""Which of a list, counted from its end."""


class StoreAgainstReference(RuleBasedStateMachine):
    """Each rule is one call to both."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(2)

    @initialize(slots=st.sampled_from([2, 2, 3, 4]))
    def allocate(self, slots: int) -> None:
        self.pair = Pair(slots)

    # -- reserve -------------------------------------------------------------------------------------------------------

    @rule(ask=asks, wait=waits)
    def reserve(self, ask: Ask, wait: int) -> None:
        self.pair.reserve([ask], wait)

    @rule(batch=batches, wait=waits)
    def reserve_batch(self, batch: list[Ask], wait: int) -> None:
        self.pair.reserve(batch, wait, batch=True)

    @precondition(lambda self: self.pair.model.live)
    @rule(which=recent, again=st.booleans(), higher=st.integers(0, 1), producer=producers, wait=waits)
    def reserve_beside(self, which: int, again: bool, higher: int, producer: Producer | None, wait: int) -> None:
        """A retry, a rival, or a later attempt of something live."""
        live = list(self.pair.model.live.values())
        ask = live[-1 - which % len(live)].ask
        owner = ask.owner if again else "c"
        attempt = min(ask.attempt + higher, 2**64 - 1)
        self.pair.reserve([Ask(ask.key, owner, attempt, None, 2, producer or ask.producer)], wait)

    @precondition(lambda self: self.pair.model.live)
    @rule(fresh=asks, order=st.booleans(), producer=producers, wait=waits)
    def reserve_batch_beside(self, fresh: Ask, order: bool, producer: Producer | None, wait: int) -> None:
        """Renewals of all that is live, and something else, in one batch."""
        live = [one.ask for one in self.pair.model.live.values() if one.ask.key != fresh.key]
        batch = [Ask(ask.key, ask.owner, ask.attempt, None, 1, producer) for ask in live]
        self.pair.reserve([fresh, *batch] if order else [*batch, fresh], wait, batch=True)

    @precondition(lambda self: len(self.pair.model.live) < self.pair.model.slots)
    @rule(readers=st.sampled_from([1, 2]), producer=producers)
    def fill(self, readers: int, producer: Producer | None) -> None:
        """Take all slots, so that whoever comes next has to wait."""
        for key in KEYS:
            if key not in self.pair.model.live:
                self.pair.reserve([Ask(key, "f", self._next_attempt(key), None, readers, producer)])

    @precondition(lambda self: not self.pair.model.slots_free)
    @rule(size=st.integers(1, 2), paper=st.none() | papers, wait=st.sampled_from([5 * SECOND, 500 * SECOND]))
    def queue_up(self, size: int, paper: Paper | None, wait: int) -> None:
        """Wait for slots: for one, for two at a time, or with a record at hand."""
        absent = [key for key in KEYS if key not in self.pair.model.live][:size]
        batch = [Ask(key, "q", self._next_attempt(key)) for key in absent]
        if paper is not None and batch:
            self.pair.put_once(batch[0], paper, wait)
        elif batch:
            self.pair.reserve(batch, wait, batch=size > 1)

    # -- put -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pair.tokens)
    @rule(which=recent, paper=any_papers)
    def put(self, which: int, paper: Paper) -> None:
        key, token = self._token(which)
        self.pair.put(key, token, paper)

    @precondition(lambda self: any(live.paper for live in self.pair.model.live.values()))
    @rule(which=recent)
    def put_again(self, which: int) -> None:
        live = [one for one in self.pair.model.live.values() if one.paper is not None]
        one = live[-1 - which % len(live)]
        assert one.paper is not None
        assert one.token is not None
        assert self.pair.put(one.ask.key, one.token, one.paper).wall == one.published_wall

    @rule(ask=asks, paper=any_papers, wait=waits)
    def put_once(self, ask: Ask, paper: Paper, wait: int) -> None:
        self.pair.put_once(ask, paper, wait)

    # -- get -----------------------------------------------------------------------------------------------------------

    @rule(key=keys, attempt=attempts, reader=st.sampled_from(READERS), consume=st.booleans(), wait=waits)
    def get(self, key: Key, attempt: int, reader: str, consume: bool, wait: int) -> None:
        self.pair.get(key, attempt, reader, consume, wait)

    @rule(key=keys, reader=st.sampled_from(READERS), consume=st.booleans())
    def listen(self, key: Key, reader: str, consume: bool) -> None:
        """Wait for what is reserved, or for what may come next."""
        live = self.pair.model.live.get(key)
        attempt = self._next_attempt(key) if live is None else live.ask.attempt
        self.pair.get(key, attempt, reader, consume, 500 * SECOND)

    @precondition(lambda self: any(live.paper for live in self.pair.model.live.values()))
    @rule(which=recent, reader=st.sampled_from(READERS))
    def consume(self, which: int, reader: str) -> None:
        live = [one for one in self.pair.model.live.values() if one.paper is not None]
        ask = live[-1 - which % len(live)].ask
        self.pair.get(ask.key, ask.attempt, reader)

    # -- release and abort ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pair.tokens)
    @rule(which=recent, reader=st.none() | st.sampled_from(READERS))
    def release(self, which: int, reader: str | None) -> None:
        key, token = self._token(which)
        if reader is None:
            self.pair.release(key, token)
        else:
            self.pair.release(key, reader=reader)

    @precondition(lambda self: self.pair.tokens)
    @rule(which=recent, failure=failures, form=st.sampled_from(["token", "attempt", "neither"]))
    def abort(self, which: int, failure: Failure, form: str) -> None:
        key, token = self._token(which)
        live = self.pair.model.live.get(key)
        if form == "token":
            self.pair.abort(key, failure, token)
        else:
            self.pair.abort(key, failure, attempt=live.ask.attempt if live and form == "attempt" else None)

    @rule(key=keys, attempt=st.none() | attempts, failure=failures)
    def abort_ahead(self, key: Key, attempt: int | None, failure: Failure) -> None:
        self.pair.abort(key, failure, attempt=attempt)

    @rule(which=recent, key=keys, paper=any_papers, call=st.sampled_from(["put", "release", "abort"]))
    def stray(self, which: int, key: Key, paper: Paper, call: str) -> None:
        """A token, whosever it was, or one that this store never made."""
        tokens = FOREIGN + [token for _, token in self.pair.tokens]
        token = tokens[which % len(tokens)]
        if call == "put":
            self.pair.put(key, token, paper)
        elif call == "release":
            self.pair.release(key, token)
        else:
            self.pair.abort(key, FAILURES[0], token)

    # -- time and waiting ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(DELAYS), tick=st.booleans(), wall=st.sampled_from([0.0] * 4 + [-1e6, 1e6]))
    def advance(self, seconds: float, tick: bool, wall: float) -> None:
        """Time passes; whether the timer has noticed must make no difference to any answer."""
        self.pair.clock.advance(seconds)
        self.pair.clock.shift_wall(wall)
        if tick:
            self.pair.tick()

    @precondition(lambda self: self.pair.handles)
    @rule(which=recent)
    def cancel(self, which: int) -> None:
        numbers = list(self.pair.handles)
        self.pair.cancel(numbers[-1 - which % len(numbers)])

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def whole(self) -> None:
        self.pair.check()

    def teardown(self) -> None:
        """Drain, use what a draining store still does, and find every slot back and every row clean."""
        pair = self.pair
        pair.drain()
        pair.reserve([Ask(KEYS[0], "late")])
        pair.put_once(Ask(KEYS[0], "late"), LEGAL[0], wait=SECOND)
        for key in KEYS:
            pair.get(key, reader="late", wait=SECOND)
        for key, token in pair.tokens[-4:]:
            pair.put(key, token, LEGAL[1])
            pair.check()
            pair.abort(key, FAILURES[0], token)
        pair.check()
        for _ in range(2):  # once for what is live, once for the memory of it
            pair.clock.advance(1e9)
            pair.tick()
            pair.check()
        assert not list(pair.lifecycle.handoffs())
        assert not list(pair.lifecycle.tombstones())
        assert pair.store.facts().slots_free == pair.lifecycle.slots.total
        assert pair.store.waiting == 0

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _next_attempt(self, key: Key) -> int:
        """One that nothing remembered stands against."""
        ended = self.pair.model.newest_ended(key)
        return 0 if ended is None else min(ended.attempt + 1, 2**64 - 1)

    def _token(self, which: int) -> tuple[Key, bytes]:
        tokens = self.pair.tokens
        return tokens[-1 - which % len(tokens)]


TestStoreAgainstReference = pytest.mark.timeout(TIMEOUT)(StoreAgainstReference.TestCase)
