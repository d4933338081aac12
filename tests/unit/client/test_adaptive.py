"""When a client opens a stream, and when it leaves it be; on a scripted clock."""

from __future__ import annotations

import pd_handoff
import pytest
from pd_handoff import aio, errors
from pd_handoff._transport.session_policy import FEW, Adaptive


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def eager(clock: Clock) -> Adaptive:
    """Past its first calls."""
    made = Adaptive("auto", differs=False, clock=clock)
    for _ in range(FEW):
        assert not made.wants()
    assert made.wants()
    return made


def pause(policy: Adaptive, clock: Clock) -> float:
    """Seconds until it wants a stream again."""
    began = clock.now
    while not policy.wants():
        clock.now += 0.25
        assert clock.now < began + 10_000
    return clock.now - began


def test_the_modes() -> None:
    assert Adaptive("always", differs=True).wants()
    assert not any(Adaptive("never", differs=False).wants() for _ in range(100))
    each = Adaptive("auto", differs=True)
    assert not any(each.wants() for _ in range(100))  # a stream would lose what each call carries


@pytest.mark.parametrize("module", [pd_handoff, aio])
def test_a_mode_that_is_none(module: object) -> None:
    with pytest.raises(ValueError, match="session must be one of"):
        module.DecodeClient(session="sometimes")  # type: ignore[attr-defined]


def test_no_session_there(eager: Adaptive, clock: Clock) -> None:
    eager.refused(errors.NotAStore("no"))
    assert pause(eager, clock) == 300


def test_a_store_that_is_away_says_nothing_about_streams(eager: Adaptive, clock: Clock) -> None:
    for error in (errors.StoreUnavailable("away"), errors.Draining("soon")):
        eager.refused(error)
        assert pause(eager, clock) == 0.5


def test_a_way_that_holds_streams_back(eager: Adaptive, clock: Clock) -> None:
    pauses = []
    for _ in range(9):
        eager.refused(errors.DeadlineExceeded("held back"))
        pauses.append(pause(eager, clock))
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    eager.opened()
    eager.refused(errors.DeadlineExceeded("held back"))
    assert pause(eager, clock) == 5


def test_streams_that_keep_breaking(eager: Adaptive, clock: Clock) -> None:
    def broken(lived: float) -> float:
        eager.opened()
        eager.ended(lived)
        return pause(eager, clock)

    assert [broken(10) for _ in range(5)] == [0, 0, 5, 10, 20]
    assert [broken(120), broken(10), broken(10)] == [0, 0, 0]
    assert broken(10) > 0
