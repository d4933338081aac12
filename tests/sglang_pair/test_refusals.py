"""What cannot be handed over is refused on both sides, before any compute, and both servers go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pd_handoff.engines.sglang.runtime import answered_status

from tests.sglang_pair.calls import Answer, at_once, in_room, new_room, pair, post, undivided
from tests.sglang_pair.servers import DECODE, PREFILL, TOP_LOGPROBS
from tests.sglang_pair.test_equality import generate

PORTS = {"prefill": PREFILL, "decode": DECODE}


@pytest.mark.parametrize("top", [TOP_LOGPROBS + 1, 128, 129, 200])
def test_more_top_logprobs_than_a_row_holds(top: int) -> None:
    both = pair(generate("hello", top))
    assert both.statuses == (400, 400)
    for answer in (both.prefill, both.decode):
        assert f"top_logprobs_num {top} exceeds disaggregation metadata capacity {TOP_LOGPROBS}" in answer.words
    assert pair(generate("hello", TOP_LOGPROBS)).statuses == (200, 200)


def test_over_the_limit_in_chat() -> None:
    body: dict[str, Any] = {
        "model": "model",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS + 1,
    }
    assert pair(body, path="/v1/chat/completions").statuses == (400, 400)


def test_a_room_that_is_none() -> None:
    for room in (1 << 64, -1):
        both = pair(generate("hello", 0), room)
        assert all(400 <= status < 500 for status in both.statuses), both


LONG = generate("first of two, a longer prompt " * 4, 5, params={"max_new_tokens": 48})
SHORT = generate("second of two", 5, params={"max_new_tokens": 48})


def two_in_a_room(order: tuple[tuple[str, str], ...] = ()) -> dict[tuple[str, str], Answer]:
    """Two requests, A and B, with one room, to both sides: all at once, or each after the one before it in `order` was
    sent off."""
    room = new_room()
    bodies = {"A": in_room(LONG, room), "B": in_room(SHORT, room)}
    legs = order or tuple((name, leg) for name in bodies for leg in PORTS)
    turns = [threading.Event() for _ in legs]

    def call(place: int) -> tuple[tuple[str, str], Answer]:
        name, leg = legs[place]
        if order and place:
            turns[place - 1].wait(30.0)
            threading.Event().wait(0.05)  # the one before is on its way; either order is right
        turns[place].set()
        return (name, leg), post(PORTS[leg], bodies[name])

    return dict(at_once(*(lambda place=place: call(place) for place in range(len(legs)))))


def right(answers: dict[tuple[str, str], Answer], expected: dict[str, Any]) -> None:
    """No user has another's answer, and no server has died of it."""
    for (name, leg), answer in answers.items():
        assert answer.status in (200, answered_status(409), 500), (name, leg, answer)
        if leg == "decode" and answer.status == 200:
            assert answer.body["output_ids"] == expected[name], (name, answer)


@pytest.fixture(scope="module")
def expected(deployment: Any) -> dict[str, Any]:
    """What each of the two is answered alone."""
    return {name: undivided(body).body["output_ids"] for name, body in (("A", LONG), ("B", SHORT))}


CROSSED = (("A", "prefill"), ("B", "decode"), ("A", "decode"), ("B", "prefill"))


@pytest.mark.parametrize("order", [(), CROSSED], ids=["at once", "crossed"])
def test_two_requests_with_one_room(order: tuple[tuple[str, str], ...], expected: dict[str, Any]) -> None:
    for _ in range(3):
        right(two_in_a_room(order), expected)
    assert pair(SHORT).statuses == (200, 200)


@pytest.mark.whole
@pytest.mark.parametrize("order", [(), CROSSED], ids=["at once", "crossed"])
def test_many_pairs_of_requests_with_one_room(order: tuple[tuple[str, str], ...], expected: dict[str, Any]) -> None:
    for _ in range(50):
        right(two_in_a_room(order), expected)
    assert pair(SHORT).statuses == (200, 200)
