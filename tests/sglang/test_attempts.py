"""The same room again: which prefill a record is of, though one side or the other has forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pd_handoff import HandoffAborted, Key, StaleReservation
from pd_handoff.engines.sglang import StoreLink, runtime
from pd_handoff.engines.sglang.attempts import FENCE, STEP, Attempts, is_behind
from pd_handoff.errors import HandoffExists

from tests.sglang.making import Made
from tests.sglang.sides import Settled, Sides


@pytest.fixture
def restarted(target: str) -> Iterator[Sides]:
    """Another prefill process, with a memory of its own."""
    both = Sides(target)
    yield both
    both.close()


def read(sides: Sides, room: int) -> int:
    """Decode's half, once its record is there: the token."""
    token: int = sides.decode.get_buf(0)[0][0].item()
    assert sides.decode.failure(0) is None
    sides.decode.clear_slot(0)
    return token


def waits(sides: Sides, room: int) -> Any:
    """Decode asks for the room."""
    request = Made(room=room).request(computed=False)
    sides.decode.bind(0, request)
    sides.decode.link.settle()  # its fence, which in a deployment has the time of a whole prefill
    return request


def test_attempts_are_counted_and_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts()
    key = Key(1)
    assert attempts.current(key) == attempts.upcoming(key) == 0
    assert attempts.begin(key) == 0
    assert attempts.begin(key) == attempts.upcoming(key) == 0  # goes on
    attempts.end(key)
    attempts.end(Key(2))  # never begun
    assert attempts.upcoming(Key(2)) == 0
    assert attempts.upcoming(key) == STEP
    assert attempts.begin(key) == STEP
    attempts.end(key, 6)  # a later one than was asked for came
    assert attempts.begin(key) == 8
    assert attempts.begin(key, 11) == 11
    attempts.end(key)
    assert attempts.begin(key) == 13
    monkeypatch.setattr("pd_handoff.engines.sglang.attempts.REMEMBERED", 2)
    for room in range(2, 5):
        attempts.begin(Key(room))
    assert attempts.current(key) == 0


def test_only_a_fence_or_an_ended_attempt_means_that_a_prefill_is_behind() -> None:
    fence = {"http_status": "409", "failure_reason": FENCE.reason}
    assert is_behind(HandoffAborted(FENCE.message, metadata=fence))
    assert not is_behind(
        HandoffAborted("left", metadata={"http_status": "503", "failure_reason": "SERVICE_UNAVAILABLE"})
    )
    assert is_behind(StaleReservation(metadata={"state": "ABORTED"}))
    assert is_behind(StaleReservation(metadata={"state": "CONSUMED"}))
    assert not is_behind(StaleReservation(metadata={"state": "RESERVED"}))
    assert not is_behind(HandoffExists())


@pytest.mark.parametrize("reserves", [False, True])
def test_a_prefill_that_restarted_finds_the_attempt_that_decode_waits_for(
    target: str, sides: Sides, restarted: Sides, reserves: bool
) -> None:
    room = 201 + reserves
    for token in range(3):  # two retractions, each by the same prefill
        waits(sides, room)
        assert sides.publish(Made(token=token, room=room).request())
        assert read(sides, room) == token
    waits(sides, room)
    source = Made(token=9, room=room).request()
    assert restarted.prefill.reserve(source) or not reserves
    assert restarted.publish(source)
    assert source.finished_reason is None
    assert read(sides, room) == 9


def test_a_prefill_that_restarted_and_began_before_decode_asked(sides: Sides, restarted: Sides) -> None:
    waits(sides, 203)
    assert sides.publish(Made(token=1, room=203).request())
    assert read(sides, 203) == 1
    source = Made(token=2, room=203).request()
    assert restarted.prefill.reserve(source)  # as attempt 0, which nobody waits for any more
    waits(sides, 203)
    assert restarted.publish(source)
    assert read(sides, 203) == 2


def test_a_prefill_whose_attempt_another_has_overtaken_stays_refused(sides: Sides, restarted: Sides) -> None:
    waits(sides, 204)
    assert sides.publish(Made(token=1, room=204).request())
    assert read(sides, 204) == 1
    waits(sides, 204)
    source = Made(token=2, room=204).request()
    assert sides.prefill.reserve(source)  # attempt 2, under way
    late = Made(token=3, room=204).request(rid="late")
    assert not restarted.publish(late)
    assert late.finished_reason.status_code == 409
    assert sides.publish(source)
    assert read(sides, 204) == 2


def test_decode_goes_on_from_the_attempt_that_it_got(sides: Sides) -> None:
    source = Made(token=1, room=205).request()
    source.handoff_attempt = 7  # of another engine's counting
    waits(sides, 205)
    assert sides.publish(source)
    assert read(sides, 205) == 1
    waits(sides, 205)
    assert sides.decode._binding(0).attempt == 9
    assert sides.publish(Made(token=2, room=205).request())
    assert read(sides, 205) == 2


def test_a_restarted_prefill_that_rejects_is_heard(target: str, sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(sides, 206)
    assert sides.publish(Made(token=1, room=206).request())
    assert read(sides, 206) == 1
    request = waits(sides, 206)
    monkeypatch.setattr(runtime, "prefills", lambda: True)
    buffers = Settled(1, 16, sides.shape.hidden_states_dtype, 16, link=StoreLink(target))
    done = buffers.abort(Made(room=206).request(), "no longer", 400)
    assert done is not None
    assert done.result(20)
    sides.decode.get_buf(0)
    assert (request.finished_reason.status_code, request.finished_reason.message) == (400, "no longer")
    buffers.close()


def test_a_user_that_leaves_between_two_prefills_is_heard_by_a_restarted_one(sides: Sides, restarted: Sides) -> None:
    request = Made(room=207).request(computed=False)
    sides.decode.bind(0, request)
    assert sides.publish(Made(token=1, room=207).request())
    assert read(sides, 207) == 1
    assert sides.decode.abort(request, "while it ran") is None  # its hand-off is over
    request.pd_rebootstrap_in_progress = True  # retracted, and not bound yet
    done = sides.decode.abort(request, "the user left", 503)
    assert done is not None
    assert done.result(20)
    source = Made(token=2, room=207).request()
    assert not restarted.prefill.reserve(source)
    assert (source.finished_reason.status_code, source.finished_reason.message) == (503, "the user left")


def test_a_retracted_request_needs_no_logprobs_of_the_token_that_its_user_has_had(sides: Sides) -> None:
    request = Made(room=208, logprob=-1.0, top_num=2).request(computed=False)
    request.pd_rebootstrap_in_progress, request.pd_rebootstrap_forced_output_id = True, 5
    sides.decode.bind(0, request)
    assert sides.publish(Made(token=6, room=208).request())  # SGLang's second prefill is asked for none
    sides.decode.get_buf(0)
    assert sides.decode.failure(0) is None
    sides.decode.clear_slot(0)
