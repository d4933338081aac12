"""When a call is repeated, how long it pauses, and what is left of its wait; without gRPC, on a scripted clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pd_handoff import Failure, Record, Retries, Token, errors
from pd_handoff._calls.calls import Calls
from pd_handoff._calls.prefill import Prefill
from pd_handoff._calls.steps import Pause, Send, Steps
from pd_handoff._values.durations import duration
from pd_handoff.retries import NO_RETRIES, Outage
from pd_handoff.v1 import metadata_store_pb2 as pb

STEADY = Retries(total_seconds=10, initial_backoff=1, max_backoff=4, multiplier=2, jitter=0)
AWAY = errors.StoreUnavailable("away")


class World:
    """Carries out steps: pauses move the clock, each call takes its scripted time and ends as scripted."""

    def __init__(self, *outcomes: Any, takes: float = 0.0, look: Any = AWAY) -> None:
        """`look` is what a look at the store finds after a wait that got no answer."""
        self.now = 0.0
        self.look = look
        self.looks = 0
        self.outcomes = list(outcomes)
        self.takes = takes
        self.sent: list[tuple[float, Any, float]] = []
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def run(self, steps: Steps[Any]) -> Any:
        try:
            step: Send | Pause = next(steps)
            while True:
                if isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    self.now += step.seconds
                    step = steps.send(None)
                    continue
                if isinstance(step.request, pb.CapabilitiesRequest) and step.timeout == 2.0:
                    self.looks += 1
                    step = steps.throw(self.look) if isinstance(self.look, Exception) else steps.send(self.look)
                    continue
                request = type(step.request)()
                request.CopyFrom(step.request)
                self.sent.append((self.now, request, step.timeout))
                outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
                self.now += self.takes
                if isinstance(outcome, tuple):
                    seconds, outcome = outcome
                    self.now += seconds
                if callable(outcome):
                    outcome = outcome(request)
                step = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
        except StopIteration as done:
            return done.value


def calls(world: World, retries: Retries = STEADY, **settings: Any) -> Calls:
    return Calls(clock=world.clock, retries=retries, reader_id="me", **settings)


GET: dict[str, Any] = {"attempt": 0, "max_wait": None, "consume": True, "reader_id": None, "expected_store_epoch": None}


def test_a_store_that_comes_back() -> None:
    world = World(AWAY, AWAY, AWAY, pb.GetResponse(store_epoch="e"))
    assert world.run(calls(world).get(1, **GET)).store_epoch == "e"
    assert world.pauses == [1, 2, 4]
    assert [timeout for _, _, timeout in world.sent] == [5.0] * 4


def test_the_budget_ends() -> None:
    world = World(AWAY)
    with pytest.raises(errors.StoreUnavailable):
        world.run(calls(world).get(1, **GET))
    assert world.pauses == [1, 2, 4]  # another 4 would pass the 10 s
    assert world.now <= 10


def test_no_retries() -> None:
    world = World(AWAY)
    with pytest.raises(errors.StoreUnavailable):
        world.run(calls(world, NO_RETRIES).get(1, **GET))
    assert len(world.sent) == 1


FINAL = [
    errors.ArenaFull("full", retry_after=0.1),
    errors.TooManyWaiters("full", retry_after=0.1),
    errors.ProducerRestarted("gone"),
    errors.DeadlineExceeded("slow"),
    errors.MessageTooLarge("large"),
    errors.Unauthenticated("who"),
    errors.StoreInternalError("oops"),
    errors.RecordNotReady("wait"),
    errors.HandoffAborted("no"),
    errors.StaleReservation("old"),
    errors.ClientClosed("closed"),
    errors.HandoffError("a newer store's", reason="NEW", code="UNAVAILABLE"),
]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_everything_else_is_final(error: errors.HandoffError) -> None:
    world = World(error)
    with pytest.raises(type(error)):
        world.run(calls(world).get(1, **GET))
    assert len(world.sent) == 1


def test_what_the_caller_asks_for_is_retried_too() -> None:
    world = World(errors.ArenaFull("full", retry_after=3), pb.ReserveResponse(token=b"t"))
    retries = Retries(total_seconds=10, initial_backoff=1, max_backoff=4, jitter=0, also=frozenset({"ARENA_FULL"}))
    assert world.run(calls(world, retries).reserve(1, **reserve_options())).token == b"t"
    assert world.pauses == [3]


def test_the_stores_hint_is_honoured_and_bounded_by_the_budget() -> None:
    world = World(errors.Draining("later", retry_after=6), pb.AbortResponse(ended=True))
    assert world.run(calls(world).abort(1, Failure(), None)) is True
    assert world.pauses == [6]
    world = World(errors.Draining("later", retry_after=11))
    with pytest.raises(errors.Draining):
        world.run(calls(world).abort(1, Failure(), None))
    assert world.pauses == []


def test_a_wait_is_carried_over_an_outage() -> None:
    world = World((100, AWAY), AWAY, pb.GetResponse())
    world.run(calls(world).get(1, **{**GET, "max_wait": 300}))
    assert [request.max_wait.seconds for _, request, _ in world.sent] == [300, 199, 197]
    assert [timeout for _, _, timeout in world.sent] == [305, 204, 202]


def test_a_wait_used_up_by_an_outage_is_still_a_wait() -> None:
    world = World(AWAY, AWAY, errors.RecordNotReady("none"))
    with pytest.raises(errors.RecordNotReady):
        world.run(calls(world).get(1, **{**GET, "max_wait": 1.5}))
    assert [request.max_wait.ToMilliseconds() for _, request, _ in world.sent] == [1500, 500, 1]
    assert world.sent[-1][2] == 5.0


def test_each_outage_of_a_long_wait_has_its_own_budget() -> None:
    world = World((60, AWAY), AWAY, (60, AWAY), AWAY, (60, AWAY), pb.GetResponse())
    world.run(calls(world).get(1, **{**GET, "max_wait": 300}))
    assert world.pauses == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("look", [pb.CapabilitiesResponse(), errors.PermissionDenied("no")], ids=["answer", "refusal"])
def test_a_wait_that_is_cut_while_the_store_is_well_is_no_outage(look: Any) -> None:
    world = World(*[(2, AWAY)] * 20, pb.GetResponse(), look=look)
    world.run(calls(world).get(1, **{**GET, "max_wait": 300}))
    assert world.pauses == [1] * 20
    assert world.looks == 20
    assert [request.max_wait.seconds for _, request, _ in world.sent][:3] == [300, 297, 294]


@pytest.mark.parametrize("look", [AWAY, errors.DeadlineExceeded("late"), errors.Draining("stops")], ids=str)
def test_else_it_is_one(look: Any) -> None:
    world = World((2, AWAY), look=look)
    with pytest.raises(errors.StoreUnavailable):
        world.run(calls(world).get(1, **{**GET, "max_wait": 300}))
    assert world.pauses == [1, 2]


def test_nobody_looks_after_a_call_that_did_not_wait_or_was_not_carried_out() -> None:
    for options, took in ((GET, 2.0), ({**GET, "max_wait": 300}, 0.4)):
        world = World((took, AWAY), pb.GetResponse(), look=AssertionError())
        world.run(calls(world).get(1, **options))
        assert world.looks == 0


def test_without_waiting_anything_there_is_no_wait() -> None:
    world = World(AWAY, pb.GetResponse())
    world.run(calls(world).get(1, **GET))
    assert not any(request.HasField("max_wait") for _, request, _ in world.sent)


def test_a_waiting_reserve_and_one_shot_put_carry_theirs() -> None:
    world = World((2, AWAY), pb.ReserveResponse())
    world.run(calls(world).reserve(1, **reserve_options(max_wait=10)))
    first, second = (request for _, request, _ in world.sent)
    assert (first.max_wait.seconds, second.max_wait.seconds) == (10, 7)
    assert first.owner == second.owner != ""
    world = World((2, AWAY), pb.PutResponse())
    world.run(calls(world).put_once(1, Record(tokens=[Token(1)]), **reserve_options(max_wait=10)))
    first, second = (request for _, request, _ in world.sent)
    assert (first.reserve.max_wait.seconds, second.reserve.max_wait.seconds) == (10, 7)
    assert first.reserve.owner == second.reserve.owner != ""


def test_items_woken_by_a_drain_are_asked_again_alone(refusal: Callable[..., Any]) -> None:
    draining = refusal("UNAVAILABLE", "DRAINING", retry_after=2)
    gone = refusal("ABORTED", "HANDOFF_EXPIRED")

    def first(request: pb.BatchGetRequest) -> pb.BatchGetResponse:
        assert [one.key.room for one in request.requests] == [1, 2, 3]
        return pb.BatchGetResponse(
            results=[
                pb.BatchGetResult(response=pb.GetResponse(attempt=1)),
                pb.BatchGetResult(error=draining),
                pb.BatchGetResult(error=gone),
            ]
        )

    def second(request: pb.BatchGetRequest) -> pb.BatchGetResponse:
        (one,) = request.requests
        assert (one.key.room, one.max_wait.seconds) == (2, 48)
        return pb.BatchGetResponse(results=[pb.BatchGetResult(response=pb.GetResponse(attempt=2))])

    world = World((50, first), second)
    one, two, three = world.run(calls(world).get_many([1, 2, 3], **{**GET, "max_wait": 100}))
    assert (one.attempt, two.attempt) == (1, 2)
    assert isinstance(three, errors.HandoffExpired)
    assert world.pauses == [2]
    assert world.sent[0][2] == 105


def test_a_batch_whose_budget_ends_tells_the_last_error(refusal: Callable[..., Any]) -> None:
    draining = refusal("UNAVAILABLE", "DRAINING", retry_after=4)
    world = World(pb.BatchGetResponse(results=[pb.BatchGetResult(error=draining)]))
    (answer,) = world.run(calls(world).get_many([1], **GET))
    assert isinstance(answer, errors.Draining)
    assert len(world.sent) == 3


def test_an_empty_batch_asks_nobody() -> None:
    world = World(AWAY)
    assert world.run(calls(world).get_many([], **GET)) == []
    assert world.run(calls(world).put_many([])) == []
    assert world.run(calls(world).reserve_many([], **batch_options())) == []
    assert world.sent == []


def test_jitter_spreads_downwards() -> None:
    retries = Retries(total_seconds=100, initial_backoff=1, max_backoff=1, jitter=0.5)
    shares = [Outage(retries, lambda share=share: share).pause(AWAY, 0, 0) for share in (0.0, 0.5, 1.0)]  # type: ignore[misc]
    assert shares == [1.0, 0.75, 0.5]


@pytest.mark.parametrize(
    "bad",
    [
        {"total_seconds": -1},
        {"total_seconds": float("nan")},
        {"initial_backoff": 0},
        {"initial_backoff": 2, "max_backoff": 1},
        {"multiplier": 0.5},
        {"jitter": 2},
    ],
)
def test_settings_out_of_bounds(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Retries"):
        Retries(**bad)  # type: ignore[arg-type]


def reserve_options(max_wait: float | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"owner": None, "widths": None, "lease": None, "expected_readers": 1, "attempt": 0}
    return {**options, "max_wait": max_wait}


def batch_options() -> dict[str, Any]:
    options = reserve_options()
    del options["owner"]
    return options


def test_the_defaults_are_as_documented() -> None:
    """Ten seconds in all; the first pause of a twentieth, each further one twice as long, up to a second."""
    defaults = Retries()
    assert (defaults.total_seconds, defaults.initial_backoff, defaults.max_backoff) == (10, 0.05, 1)
    assert (defaults.multiplier, defaults.jitter, defaults.also) == (2, 0.2, frozenset())
    world = World(AWAY)
    with pytest.raises(errors.StoreUnavailable):
        world.run(calls(world, Retries(jitter=0)).get(7, **GET))
    assert world.pauses[:6] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1])
    assert sum(world.pauses) == pytest.approx(10, abs=1)


@pytest.mark.parametrize("lease", [0.3, 30, 3600])
def test_a_lease_is_renewed_at_a_third_of_it(lease: float) -> None:
    """Of what the store gave, each time: two renewals may fail before it runs out."""
    given = iter((lease, lease / 2))

    def reserve(_: Any) -> pb.ReserveResponse:
        return pb.ReserveResponse(token=b"t", lease=duration(next(given), "lease"))

    world = World(reserve)
    unset = dict.fromkeys(("owner", "widths", "lease", "expected_readers", "max_wait"))
    hand_off = Prefill(calls(world), 7, {**unset, "attempt": 0})
    world.run(hand_off._begin())
    renewing = hand_off._keep()
    pause = next(renewing)
    assert isinstance(pause, Pause)
    assert pause.seconds == pytest.approx(lease / 3)
    step: Any = renewing.send(None)
    assert isinstance(step, Send)
    step = renewing.send(reserve(None))
    assert isinstance(step, Pause)
    assert step.seconds == pytest.approx(lease / 2 / 3)
