"""Contract section 4, "one slot, one owner": whatever a stale token is tried on, it is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

Use = Callable[[Steps, requests.Key, bytes], object]

USES: dict[str, Use] = {
    "Put": lambda steps, key, token: steps.put(key, token, records.numbered(666)),
    "Release": lambda steps, key, token: steps.release(key, token=token),
    "Abort": lambda steps, key, token: steps.abort(key, token=token),
}


@pytest.fixture(params=USES)
def use(request: pytest.FixtureRequest) -> Use:
    """Each call that takes a token."""
    return USES[request.param]


def assert_works(steps: Steps, key: requests.Key, token: bytes) -> None:
    """The hand-off of this token is untouched: it takes its record, and shows it."""
    steps.put(key, token, records.numbered(1))
    assert steps.record(key, reader="decode") == records.numbered(1)


@pytest.mark.settings(slots=1, tombstones=0)
def test_token_of_a_former_generation(steps: Steps, store: LocalStore, use: Use) -> None:
    stale = steps.reserve(7, "first").token
    generation = store.sight(7).generation
    steps.release(7, token=stale)
    with refused("STALE_RESERVATION", state="NONE"):
        use(steps, 7, stale)
    token = steps.reserve(7, "second").token
    assert store.sight(7).generation == generation + 1
    with refused("STALE_RESERVATION", state="RESERVED"):
        use(steps, 7, stale)
    assert_works(steps, 7, token)


@pytest.mark.settings(slots=1, tombstones=0)
def test_token_of_a_former_generation_whose_slot_serves_another_key(steps: Steps, use: Use) -> None:
    stale = steps.publish(7)
    steps.get(7, reader="decode")
    token = steps.reserve(8).token  # takes the consumed slot
    for key in (7, 8):
        with refused("STALE_RESERVATION"):
            use(steps, key, stale)
    assert_works(steps, 8, token)


@pytest.mark.internals
def test_token_of_a_former_store_epoch(start: Start, kind: str, use: Use) -> None:
    former = start()
    stale = former.steps(kind).reserve(7).token
    former.close()
    steps = start(listen=(former.target,)).steps(kind)
    with refused("STALE_RESERVATION", state="NONE"):
        use(steps, 7, stale)
    token = steps.reserve(7).token  # the same slot and generation, in another epoch
    with refused("STALE_RESERVATION", state="RESERVED"):
        use(steps, 7, stale)
    assert_works(steps, 7, token)


@pytest.mark.internals
def test_token_of_another_store(start: Start, kind: str, use: Use) -> None:
    here, there = start().steps(kind), start().steps(kind)
    foreign, token = there.reserve(7).token, here.reserve(7).token
    with refused("STALE_RESERVATION", state="RESERVED"):
        use(here, 7, foreign)
    assert_works(here, 7, token)
    assert_works(there, 7, foreign)


@pytest.mark.parametrize(
    "other",
    [
        rp.HandoffKey(room=8),
        rp.HandoffKey(room=7, sample=1),
        rp.HandoffKey(room=7, namespace="n"),
        rp.HandoffKey(room=7 + (1 << 32)),
    ],
    ids=["room", "sample", "namespace", "high bits"],
)
def test_token_of_another_key(steps: Steps, use: Use, other: rp.HandoffKey) -> None:
    token, others = steps.reserve(7).token, steps.reserve(other).token
    with refused("STALE_RESERVATION", state="RESERVED"):
        use(steps, 7, others)
    with refused("STALE_RESERVATION", state="NONE"):
        use(steps, 99, token)
    assert_works(steps, 7, token)
    assert_works(steps, other, others)


@pytest.mark.clock
def test_token_of_an_ended_hand_off_of_another_key(steps: Steps, store: LocalStore, use: Use) -> None:
    token = steps.reserve(7).token
    aborted, consumed = steps.reserve(8).token, steps.publish(9)
    steps.abort(8)
    steps.get(9, reader="decode")
    store.advance(30)
    for others in (aborted, consumed):
        with refused("STALE_RESERVATION", state="RESERVED"):
            use(steps, 7, others)
        with refused("STALE_RESERVATION", state="NONE"):
            use(steps, 99, others)
    assert_works(steps, 7, token)


@pytest.mark.parametrize("published", [False, True])
def test_token_of_a_superseded_attempt(steps: Steps, use: Use, published: bool) -> None:
    stale = steps.publish(7) if published else steps.reserve(7).token
    token = steps.reserve(7, attempt=1).token
    for _ in range(2):
        with refused("STALE_RESERVATION", state="RESERVED"):
            use(steps, 7, stale)
    steps.put(7, token, records.numbered(1))
    with refused("STALE_RESERVATION", state="PUBLISHED"):
        use(steps, 7, stale)
    assert steps.get(7, reader="decode").record == records.numbered(1)
    with refused("STALE_RESERVATION", state="CONSUMED"):
        use(steps, 7, stale)


@pytest.mark.clock
@pytest.mark.parametrize("end", ["aborted", "expired", "released"])
def test_token_of_an_attempt_that_ended_and_was_superseded(steps: Steps, store: LocalStore, use: Use, end: str) -> None:
    stale = steps.reserve(7, lease=1).token
    if end == "aborted":
        steps.abort(7)
    elif end == "released":
        steps.release(7, token=stale)
    else:
        store.advance(1)
    token = steps.reserve(7, attempt=1).token
    with refused("STALE_RESERVATION", state="RESERVED"):
        use(steps, 7, stale)
    assert_works(steps, 7, token)


@pytest.mark.clock
@pytest.mark.settings(tombstone_time=10.0)
def test_token_of_an_attempt_that_is_forgotten(steps: Steps, store: LocalStore, use: Use) -> None:
    stale = steps.reserve(7).token
    steps.abort(7)
    store.advance(10)
    with refused("STALE_RESERVATION", state="NONE"):
        use(steps, 7, stale)


def test_forged_tokens(steps: Steps, use: Use) -> None:
    token = steps.reserve(7).token
    forged = [token[:-1], token + b"\0", token[::-1], b"\0" * len(token), token * 100, b"\xff" * 10_000]
    forged += [token[:at] + bytes((token[at] ^ 1,)) + token[at + 1 :] for at in range(len(token))]
    for each in forged:
        with refused("STALE_RESERVATION", state="RESERVED"):
            use(steps, 7, each)
    assert_works(steps, 7, token)


def test_tokens_do_not_repeat_and_tell_nothing_to_guess_by(steps: Steps) -> None:
    tokens = [steps.reserve(7, f"owner {attempt}", attempt=attempt).token for attempt in range(50)]
    assert len(set(tokens)) == 50
    assert {len(token) for token in tokens} == {len(tokens[0])}
    assert len({token[-12:] for token in tokens}) == 50


def test_the_same_put_again_gets_the_same_answer(steps: Steps) -> None:
    token = steps.publish(7, records.numbered(1))
    first = steps.put(7, token, records.numbered(1))
    assert steps.put(7, token, records.numbered(1)) == first
