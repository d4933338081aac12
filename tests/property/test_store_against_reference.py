"""Arena, rules and waiting together against a plain-dict model, with few keys and fewer slots, so that all collide."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pd_handoff_server.lifecycle import TokenMint

from .catalogue import FLAWED, LEGAL, Paper
from .pair import EPOCH, Pair, counting
from .terms import SECOND, Ask, Failure, Key, Producer

KEYS: list[Key] = [("", 0, 0), ("", 0, 1), ("", 2**64 - 1, 0), ("other", 0, 0)]
READERS = ["r0", "r1", "r2", "r" * 256]
FAILURES: list[Failure] = [(400, "INPUT_TOO_LONG", "input too long"), (500, "ABORTED", "prefill failed")]

keys = st.sampled_from(KEYS)
attempts = st.sampled_from([0, 0, 0, 1, 2, 2**64 - 1])
producers: st.SearchStrategy[Producer | None] = st.sampled_from([None, None, ("p", 1), ("p", 2), ("p", 3), ("q", 1)])
waits = st.sampled_from([0, 0, 5 * SECOND, 500 * SECOND])
papers = st.sampled_from(LEGAL)
any_papers = st.sampled_from(LEGAL * 2 + FLAWED)
asks = st.builds(
    Ask,
    key=keys,
    owner=st.sampled_from(["a", "b"]),
    attempt=attempts,
    lease=st.sampled_from([None, 0, 2 * SECOND, 10**6 * SECOND]),
    readers=st.sampled_from([1, 1, 2, 3]),
    producer=producers,
    top_logprobs=st.sampled_from([0, 0, 0, 3, 4]),
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
        assert self.pair.put(one.ask.key, one.token, one.paper) == one.published_wall

    @rule(which=recent, key=keys, paper=any_papers)
    def put_astray(self, which: int, key: Key, paper: Paper) -> None:
        self.pair.put(key, self._stray(which), paper)

    @rule(ask=asks, paper=any_papers, wait=waits)
    def put_once(self, ask: Ask, paper: Paper, wait: int) -> None:
        self.pair.put_once(ask, paper, wait)

    # -- get -----------------------------------------------------------------------------------------------------------

    @rule(key=keys, attempt=attempts, reader=st.sampled_from(READERS), consume=st.booleans(), wait=waits)
    def get(self, key: Key, attempt: int, reader: str, consume: bool, wait: int) -> None:
        self.pair.get(key, attempt, reader, consume, wait)

    @precondition(lambda self: any(live.paper for live in self.pair.model.live.values()))
    @rule(which=recent, reader=st.sampled_from(READERS))
    def consume(self, which: int, reader: str) -> None:
        live = [one for one in self.pair.model.live.values() if one.paper is not None]
        ask = live[-1 - which % len(live)].ask
        self.pair.get(ask.key, ask.attempt, reader)

    # -- release and abort ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.pair.tokens)
    @rule(which=recent)
    def release(self, which: int) -> None:
        key, token = self._token(which)
        self.pair.release(key, token)

    @rule(which=recent, key=keys)
    def release_astray(self, which: int, key: Key) -> None:
        self.pair.release(key, self._stray(which))

    @rule(key=keys, reader=st.sampled_from(READERS))
    def release_reader(self, key: Key, reader: str) -> None:
        self.pair.release(key, reader=reader)

    @precondition(lambda self: self.pair.tokens)
    @rule(which=recent, failure=st.sampled_from(FAILURES))
    def abort_by_token(self, which: int, failure: Failure) -> None:
        key, token = self._token(which)
        self.pair.abort(key, failure, token)

    @rule(which=recent, key=keys, failure=st.sampled_from(FAILURES))
    def abort_astray(self, which: int, key: Key, failure: Failure) -> None:
        self.pair.abort(key, failure, self._stray(which))

    @rule(key=keys, attempt=st.none() | attempts, failure=st.sampled_from(FAILURES))
    def abort(self, key: Key, attempt: int | None, failure: Failure) -> None:
        self.pair.abort(key, failure, attempt=attempt)

    # -- time and waiting ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 1.0, 3.0, 20.0, 31.0, 61.0, 121.0]), tick=st.booleans())
    def advance(self, seconds: float, tick: bool) -> None:
        self.pair.clock.advance(seconds)
        if tick:
            self.pair.tick()

    @rule(seconds=st.sampled_from([301.0, 3_600.0, 1e9]), tick=st.booleans())
    def leap(self, seconds: float, tick: bool) -> None:
        self.advance(seconds, tick)

    @rule(seconds=st.sampled_from([-1e6, 1e6]))
    def set_wall_clock(self, seconds: float) -> None:
        self.pair.clock.shift_wall(seconds)

    @rule()
    def tick(self) -> None:
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

    def _token(self, which: int) -> tuple[Key, bytes]:
        tokens = self.pair.tokens
        return tokens[-1 - which % len(tokens)]

    def _stray(self, which: int) -> bytes:
        """A token, whosever it was, or one that this store never made."""
        tokens = FOREIGN + [token for _, token in self.pair.tokens]
        return tokens[which % len(tokens)]


TestStoreAgainstReference = StoreAgainstReference.TestCase
