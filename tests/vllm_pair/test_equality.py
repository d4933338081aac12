"""What the pair answers is what an undivided vLLM of the same version answers, token for token and bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_pair.conftest import Pair
from tests.vllm_pair.requests import (
    CHAT,
    COMPLETIONS,
    Body,
    at_once,
    both,
    chat,
    completion,
    in_room,
    outcome,
    room,
    text,
)
from tests.vllm_pair.servers import LIMIT


def check(pair: Pair, path: str, body: Body, *, prefill_after: float = 0.0, decode_after: float = 0.0) -> Any:
    """Hands one request over, and compares. Returns decode's answer."""
    (status, first), (decode_status, answer) = both(
        *(pair.prefill, pair.decode, path, body), prefill_after=prefill_after, decode_after=decode_after
    )
    assert status == 200, first
    assert decode_status == 200, answer
    alone_status, alone = pair.undivided.post(path, body)
    assert alone_status == 200, alone
    assert outcome(answer) == outcome(alone)
    return answer


def tokens_of(body: Body) -> int:
    """How many tokens the prompts have: each byte is one."""
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    return sum(len(prompt) for prompt in prompts)


@pytest.mark.short
def test_a_few_requests_of_each_kind(pair: Pair) -> None:
    before = pair.decode.counters()
    for number, path, make in ((1, COMPLETIONS, completion), (2, CHAT, chat)):
        check(pair, path, make(text(number)))
        check(pair, path, make(text(number + 10)), prefill_after=1.0)  # decode asks first
        check(pair, path, make(text(number + 20)), decode_after=1.0)
    after = pair.decode.counters()
    assert after["transfers"] - before.get("transfers", 0) == 6
    assert after["local_compute"] == before.get("local_compute", 0), "decode computed a prompt by itself"


@pytest.mark.parametrize("top", [0, 1, 5, 20, LIMIT])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_ten_requests_with_each_number_of_top_logprobs(pair: Pair, path: str, top: int) -> None:
    before = pair.decode.counters()
    for number in range(10):
        prompt = text(100 * top + number)
        check(pair, path, completion(prompt, logprobs=top) if path == COMPLETIONS else chat(prompt, top_logprobs=top))
    after = pair.decode.counters()
    assert after["transfers"] - before["transfers"] == 10
    assert after["local_compute"] == before["local_compute"]


@pytest.mark.parametrize(
    ("name", "when"),
    [("decode 3 s first", {"prefill_after": 3.0}), ("decode 2 s late", {"decode_after": 2.0}), ("at once", {})],
)
def test_in_whichever_order_the_legs_come(pair: Pair, name: str, when: dict[str, float]) -> None:
    before = pair.decode.counters()
    check(pair, COMPLETIONS, completion(text(len(name))), **when)
    assert pair.decode.counters()["transfers"] - before["transfers"] == 1


def test_rooms_of_64_bits(pair: Pair) -> None:
    for number in (0, 1 << 63, (1 << 64) - 1):
        before = pair.decode.counters()
        body = completion(text(number % 1000))
        (_, first), (status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, body, number=number)
        assert status == 200, (first, answer)
        assert outcome(answer) == outcome(pair.undivided.post(COMPLETIONS, body)[1])
        assert pair.decode.counters()["transfers"] - before["transfers"] == 1


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_three_samples(pair: Pair, path: str) -> None:
    body = (completion if path == COMPLETIONS else chat)(text(3), n=3, temperature=0.8, seed=11)
    answer = check(pair, path, body)
    assert len(answer["choices"]) == 3


def test_a_list_of_prompts(pair: Pair) -> None:
    before = pair.decode.counters()
    body = completion([text(31), text(32, 20), text(33, 50)])
    answer = check(pair, COMPLETIONS, body)
    assert len(answer["choices"]) == 3
    after = pair.decode.counters()
    if pair.way == "connector":  # each prompt has a record of its own
        assert after["transfers"] - before["transfers"] == 3
        assert after["external_kv_transfer"] - before["external_kv_transfer"] == tokens_of(body)


def test_a_prompt_of_token_ids(pair: Pair) -> None:
    before = pair.decode.counters()
    check(pair, COMPLETIONS, completion(list(range(10, 150))))
    assert pair.decode.counters()["transfers"] - before["transfers"] == 1


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream(pair: Pair, path: str) -> None:
    body = (completion if path == COMPLETIONS else chat)(text(41))
    number = room()

    def tokens(events: Any) -> list[int]:
        return [token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()]

    first, streamed = at_once(
        [
            lambda: pair.prefill.post(path, in_room({**body, "stream": True}, number)),
            lambda: tokens(pair.decode.stream(path, in_room(body, number))),
        ]
    )
    assert first[0] == 200, first
    assert streamed == pair.undivided.post(path, body)[1]["choices"][0]["token_ids"]


def test_sampling_with_a_seed(pair: Pair) -> None:
    for seed in range(3):
        check(pair, COMPLETIONS, completion(text(50 + seed), temperature=1.0, seed=seed))


def test_prompt_logprobs_are_computed_by_decode(pair: Pair) -> None:
    check(pair, COMPLETIONS, completion(text(60), prompt_logprobs=2))


def test_an_ordinary_request_is_served(pair: Pair) -> None:
    body = completion(text(70))
    for server in (pair.prefill, pair.decode):
        status, answer = server.post(COMPLETIONS, body)
        assert status == 200, answer
        assert outcome(answer) == outcome(pair.undivided.post(COMPLETIONS, body)[1])


def test_what_prefill_answers_serves_a_router_that_asks_one_after_the_other(pair: Pair) -> None:
    body = completion(text(80))
    before = pair.decode.counters()
    status, first = pair.prefill.post(COMPLETIONS, in_room(body, room()))
    assert status == 200, first
    params = first["kv_transfer_params"]
    assert not {"remote_host", "remote_port", "remote_block_ids", "remote_engine_id"} & set(params)
    status, answer = pair.decode.post(COMPLETIONS, {**body, "kv_transfer_params": params})
    assert status == 200, answer
    assert outcome(answer) == outcome(pair.undivided.post(COMPLETIONS, body)[1])
    assert pair.decode.counters()["transfers"] - before["transfers"] == 1
