"""Requests that are refused: whom it reaches, and that both servers go on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.vllm_pair.conftest import Pair
from tests.vllm_pair.requests import CHAT, COMPLETIONS, at_once, both, chat, completion, in_room, outcome, room, text
from tests.vllm_pair.servers import ENGINE_LIMIT, LIMIT, PREFILL_LENGTH

TOO_LONG_FOR_PREFILL = "0123456789" * (PREFILL_LENGTH // 10 + 20)
TOO_LONG = "0123456789" * (PREFILL_LENGTH // 5 + 50)
# What a client may try to say of where prefill is.
TOPOLOGY = {
    "do_remote_prefill": True,
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_block_ids": [[1, 2]],
    "tp_size": 1,
}


def words(answer: Any) -> str:
    """The message of an error."""
    return str(answer["error"]["message"])


def assert_hands_over(pair: Pair, seed: int) -> None:
    """The next request goes as if nothing had happened."""
    body = completion(text(seed))
    before = pair.decode.counters()
    (_, first), (status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, body)
    assert status == 200, (first, answer)
    assert outcome(answer) == outcome(pair.undivided.post(COMPLETIONS, body)[1])
    assert pair.decode.counters()["transfers"] - before.get("transfers", 0) == 1
    pair.assert_serves()


@pytest.mark.short
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_too_many_top_logprobs(pair: Pair, path: str) -> None:
    over = LIMIT + 1
    assert over <= ENGINE_LIMIT
    body = completion(text(1), logprobs=over) if path == COMPLETIONS else chat(text(1), top_logprobs=over)
    for status, answer in both(pair.prefill, pair.decode, path, body):
        assert status == 400, answer
        assert answer["error"]["param"] == ("logprobs" if path == COMPLETIONS else "top_logprobs")
        assert str(LIMIT) in words(answer)
    assert_hands_over(pair, 101)


@pytest.mark.short
def test_prefills_refusal_reaches_the_user_of_decode(pair: Pair) -> None:
    for prefill_after, decode_after in ((0.0, 0.0), (2.0, 0.0), (0.0, 1.0)):
        (status, first), (decode_status, answer) = both(
            *(pair.prefill, pair.decode, COMPLETIONS, completion(TOO_LONG_FOR_PREFILL)),
            prefill_after=prefill_after,
            decode_after=decode_after,
        )
        assert (status, decode_status) == (400, 400), (first, answer)
        assert words(answer) == words(first)
    assert_hands_over(pair, 102)


def test_a_stream_is_refused_with_prefills_status(pair: Pair) -> None:
    body = completion(TOO_LONG_FOR_PREFILL, stream=True)
    (status, _), (decode_status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, body, prefill_after=1.0)
    assert (status, decode_status) == (400, 400), answer


@pytest.mark.short
def test_a_prompt_that_is_too_long_for_both(pair: Pair) -> None:
    (status, first), (decode_status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, completion(TOO_LONG))
    assert (status, decode_status) == (400, 400), (first, answer)
    assert_hands_over(pair, 103)


@pytest.mark.short
@pytest.mark.parametrize("params", [{"do_remote_prefill": True}, TOPOLOGY], ids=["flag", "topology"])
def test_topology_of_a_client_does_not_reach_the_engine(pair: Pair, params: dict[str, Any]) -> None:
    """Case 53: behind a stock server the first of these ends the engine."""
    before = pair.decode.counters()
    status, answer = pair.decode.post(COMPLETIONS, {**completion(TOO_LONG), "kv_transfer_params": params})
    assert status == 400, answer
    for path, body in ((COMPLETIONS, completion(text(7))), (CHAT, chat(text(7)))):
        status, answer = pair.decode.post(path, {**body, "kv_transfer_params": params})
        assert status == 200, answer
        assert outcome(answer) == outcome(pair.undivided.post(path, body)[1])
    assert pair.decode.counters().get("transfers", 0) == before.get("transfers", 0)
    assert_hands_over(pair, 104)


def test_topology_beside_a_room_does_not_reach_the_engine(pair: Pair) -> None:
    body, number = completion(text(8)), room()
    mixed = {**body, "kv_transfer_params": {**TOPOLOGY, "handoff": {"room": str(number)}}}
    first, second = at_once(
        [
            partial(pair.prefill.post, COMPLETIONS, in_room(body, number)),
            partial(pair.decode.post, COMPLETIONS, mixed),
        ]
    )
    assert (first[0], second[0]) == (200, 200), (first, second)
    assert outcome(second[1]) == outcome(pair.undivided.post(COMPLETIONS, body)[1])
    assert_hands_over(pair, 105)


@pytest.mark.short
def test_two_requests_in_one_room(pair: Pair) -> None:
    """Each has its own answer, or 409; never the other's."""
    bodies, number = [completion(text(seed, 25 + seed)) for seed in (1, 2)], room()
    answers = at_once(
        [
            *[partial(pair.prefill.post, COMPLETIONS, in_room(body, number)) for body in bodies],
            *[partial(pair.decode.post, COMPLETIONS, in_room(body, number)) for body in bodies],
        ]
    )
    for status, answer in answers[:2]:
        assert status in (200, 409), answer
    for body, (status, answer) in zip(bodies, answers[2:], strict=True):
        assert status in (200, 409), answer
        if status == 200:
            assert outcome(answer) == outcome(pair.undivided.post(COMPLETIONS, body)[1])
    assert_hands_over(pair, 106)


@pytest.mark.short
def test_one_request_sent_twice(pair: Pair) -> None:
    body, number = completion(text(9)), room()
    answers = at_once([partial(pair.prefill.post, COMPLETIONS, in_room(body, number))] * 2)
    answers += at_once([partial(pair.decode.post, COMPLETIONS, in_room(body, number))] * 2)
    assert {status for status, _ in answers[:2]} <= {200, 409}, answers
    expected = outcome(pair.undivided.post(COMPLETIONS, body)[1])
    for status, answer in answers[2:]:
        assert status in (200, 409), answer
        assert status == 409 or outcome(answer) == expected
    assert_hands_over(pair, 107)


def test_crossed_requests_never_get_a_foreign_answer(pair: Pair) -> None:
    """Case 54: prefill has one of two prompts, decode the other, in one room."""
    for seed in range(20):
        mine, other, number = completion(text(200 + seed)), completion(text(300 + seed)), room()
        first, second = at_once(
            [
                partial(pair.prefill.post, COMPLETIONS, in_room(other, number)),
                partial(pair.decode.post, COMPLETIONS, in_room(mine, number)),
            ]
        )
        assert first[0] == 200, first
        assert second[0] in (200, 409), second
        if second[0] == 200:
            assert outcome(second[1]) == outcome(pair.undivided.post(COMPLETIONS, mine)[1])
    assert_hands_over(pair, 108)


@pytest.mark.parametrize("handoff", [{}, {"room": "-1"}, {"room": str(1 << 64)}, {"room": "x"}, "7"])
def test_what_is_no_room_is_refused(pair: Pair, handoff: Any) -> None:
    body = {**completion(text(10)), "kv_transfer_params": {"handoff": handoff}}
    for server in (pair.prefill, pair.decode):
        status, answer = server.post(COMPLETIONS, body)
        assert status == 400, answer
        assert answer["error"]["param"].startswith("kv_transfer_params.handoff")
    pair.assert_serves()
