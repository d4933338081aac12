"""The reference model drives a store through real gRPC: any store, and one in this process with its time as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.support import namespaces, requests
from tests.support.local import LocalStore
from tests.support.steps import Steps

from .profiles import TIMEOUT, slower
from .test_store_against_reference import DELAYS, StoreAgainstReference, recent
from .wire import WirePair

SLOTS = 3


class _OverTheWire(StoreAgainstReference):
    """Each example has namespaces of its own, and leaves nothing live in them."""

    def __init__(self, steps: Steps, slots: int, local: LocalStore | None) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._steps = steps
        self._scope = self._stack.enter_context(namespaces.scope())
        self.pair: WirePair = WirePair(steps, slots, local)

    @initialize()
    def allocate(self) -> None:
        """The store is there already."""

    @precondition(lambda self: not self.pair.roomy)
    @rule(seconds=st.sampled_from(DELAYS), tick=st.booleans(), wall=st.sampled_from([0.0] * 4 + [-1e6, 1e6]))
    def advance(self, seconds: float, tick: bool, wall: float) -> None:
        """See the base; the clock of a store with settings of its own cannot be turned."""
        self.pair.clock.advance(seconds)
        self.pair.clock.shift_wall(wall)
        if tick:
            self.pair.tick()

    @precondition(lambda self: any(live.paper and live.token for live in self.pair.model.live.values()))
    @rule(which=recent)
    def put_again(self, which: int) -> None:
        """See the base; over the wire nobody learns the token of a one-shot Put."""
        known = [one for one in self.pair.model.live.values() if one.paper and one.token]
        one = known[-1 - which % len(known)]
        assert one.paper is not None
        assert one.token is not None
        assert self.pair.put(one.ask.key, one.token, one.paper).wall == one.published_wall

    def teardown(self) -> None:
        """End what is live."""
        with self._stack:
            for key in list(self._scope.keys.values()):
                request = requests.abort(key, why=requests.failure(500, "TEST_ENDED", ""))
                self._steps.caller.call("Abort", request.SerializeToString())


def _run(make: Callable[[], _OverTheWire]) -> None:
    run_state_machine_as_test(make, settings=slower(4))  # type: ignore[arg-type]  # any factory will do


@pytest.mark.wire
@pytest.mark.timeout(TIMEOUT)
def test_any_store_against_the_reference(unary: Steps) -> None:
    """Fewer keys than slots, and a model whose time stands still: no deadline is reached."""
    _run(lambda: _OverTheWire(unary, 1_000, None))


@pytest.mark.clock
@pytest.mark.settings(
    slots=SLOTS,
    lease_max=100.0,
    max_wait=200.0,
    max_tokens=2,
    max_top_logprobs=3,
    max_token_ids_logprobs=2,
    max_sampling_mask_tokens=2,
    max_speculative_topk=2,
    max_dsa_topk_indices=3,
    max_customized_info_bytes=12,
    max_hidden_state_bytes=16,
)
@pytest.mark.timeout(TIMEOUT)
def test_a_small_store_against_the_reference(unary: Steps, store: LocalStore) -> None:
    """More keys than slots, and time that passes."""
    _run(lambda: _OverTheWire(unary, SLOTS, store))
