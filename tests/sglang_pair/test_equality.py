"""The pair answers what an undivided engine of the same version answers: token ids equal, the first token's logprob and
its list bit for bit. Later tokens are decode's own, in batches of another size: their logprobs differ in last bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sglang_pair.calls import Answer, at_once, flush, in_room, new_room, pair, post, undivided
from tests.sglang_pair.servers import DECODE, PREFILL, TOP_LOGPROBS

PROMPTS = [
    *("hello", "The quick brown fox", "a", "0123456789" * 6, "pd-handoff"),
    *("x y z", "Once upon a time", "{}[]()", "zzzz", "ABC" * 40),
    *("1 + 1 =", "def f(x):\n    return", "\n\n\n", "To be, or not", "~!@#$%^&*"),
    *("aaaaaaaaaaaaaaaa", "Seventeen words of a prompt", "Q: why?\nA:", "[1, 2, 3]", "the the the the the"),
]
TOPS = (0, 1, 5, 19, TOP_LOGPROBS)
CLOSE = 1e-4
"""How far a later token's logprob may be off, as float32 sums in another order come out."""


def generate(prompt: Any, top: Any, **more: Any) -> dict[str, Any]:
    """A body of /generate."""
    return {
        "text": prompt,
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True, **more.pop("params", {})},
        "return_logprob": True,
        "top_logprobs_num": top,
        **more,
    }


def first(answer: Any, top: int) -> tuple[Any, Any]:
    """The first token's logprob and its list, which has `top` entries."""
    meta = answer["meta_info"]
    listed = (meta.get("output_top_logprobs") or [[]])[0] or []
    assert len(listed) == top
    return meta["output_token_logprobs"][0], listed


def same(ours: Any, theirs: Any, top: int, *, prefill: Any = None) -> None:
    """One answer of /generate is the other, as far as that can be. With prefill's own answer, the first token is
    compared with that bit for bit: prompts that come together are prefilled in batches that differ from engine to
    engine, and so do their last bits."""
    assert ours["output_ids"] == theirs["output_ids"]
    assert ours["text"] == theirs["text"]
    mine, other = ours["meta_info"], theirs["meta_info"]
    assert first(ours, top) == first(theirs if prefill is None else prefill, top)
    pairs = zip(mine["output_token_logprobs"], other["output_token_logprobs"], strict=True)
    assert max(abs(one[0] - two[0]) for one, two in pairs) < CLOSE


@pytest.mark.parametrize("top", [0, 5, TOP_LOGPROBS])
def test_generate_in_short(top: int) -> None:
    flush()
    for prompt in PROMPTS[:6]:
        both, alone = pair(generate(prompt, top)), undivided(generate(prompt, top))
        assert (*both.statuses, alone.status) == (200, 200, 200), both
        same(both.decode.body, alone.body, top)


@pytest.mark.whole
@pytest.mark.parametrize("top", TOPS)
def test_a_hundred_requests(top: int) -> None:
    flush()
    for prompt in PROMPTS:
        both, alone = pair(generate(prompt, top)), undivided(generate(prompt, top))
        assert (*both.statuses, alone.status) == (200, 200, 200), both
        same(both.decode.body, alone.body, top)


def completions(top: int) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    body = {"model": "model", "prompt": "The quick brown fox", "max_tokens": 6, "temperature": 0, "logprobs": top}
    return "/v1/completions", body


def chat(top: int) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    messages = [{"role": "user", "content": "Once upon a time"}]
    more = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": top}
    return "/v1/chat/completions", {"model": "model", "messages": messages, **more}


@pytest.mark.parametrize("form", [completions, chat])
@pytest.mark.parametrize("top", [1, TOP_LOGPROBS])
def test_the_openai_forms(form: Callable[[int], tuple[str, dict[str, Any]]], top: int) -> None:
    flush()
    path, body = form(top)
    both, alone = pair(body, path=path), undivided(body, path)
    assert (*both.statuses, alone.status) == (200, 200, 200), both
    [ours], [theirs] = both.decode.body["choices"], alone.body["choices"]
    key = "message" if "message" in ours else "text"
    content = [one[key]["content"] if key == "message" else one[key] for one in (ours, theirs)]
    assert content[0] == content[1]
    assert first_token(ours["logprobs"]) == first_token(theirs["logprobs"])


def first_token(logprobs: Any) -> Any:
    """What either form says of it."""
    if "content" in logprobs:
        return logprobs["content"][0]
    return logprobs["tokens"][0], logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]


def test_three_samples_and_a_list_of_prompts() -> None:
    flush()
    three = generate("hello", 5, params={"n": 3})
    both, alone = pair(three), undivided(three)
    assert (*both.statuses, alone.status) == (200, 200, 200), both
    assert [one["output_ids"] for one in both.decode.body] == [one["output_ids"] for one in alone.body]
    listed = generate(PROMPTS[:3], [0, 5, TOP_LOGPROBS])
    rooms = [new_room() for _ in range(3)]
    both, alone = pair(listed, rooms), undivided(listed)
    assert (*both.statuses, alone.status) == (200, 200, 200), both
    answers = zip(both.decode.body, alone.body, both.prefill.body, (0, 5, TOP_LOGPROBS), strict=True)
    for ours, theirs, handed, top in answers:
        same(ours, theirs, top, prefill=handed)


@pytest.mark.parametrize("room", [0, (1 << 63) - 1])
def test_the_first_room_and_a_very_high_one(room: int) -> None:
    body = generate("pd-handoff", 5)
    both, alone = pair(body, room), undivided(body)
    assert (*both.statuses, alone.status) == (200, 200, 200), both
    assert both.decode.body["output_ids"] == alone.body["output_ids"]


@pytest.mark.parametrize(
    "more",
    [
        {"token_ids_logprob": [5, 6, 7]},
        {"logprob_start_len": 0},
        {"params": {"max_new_tokens": 1}},
    ],
)
def test_what_else_a_user_asks_for(more: dict[str, Any]) -> None:
    body = generate("x y z", 5, **more)
    both, alone = pair(body), undivided(body)
    assert (*both.statuses, alone.status) == (200, 200, 200), both
    assert both.decode.body["output_ids"] == alone.body["output_ids"]


@pytest.mark.whole
def test_five_hundred_requests_sixteen_at_a_time() -> None:
    expected = {prompt: undivided(generate(prompt, 5)).body["output_ids"] for prompt in PROMPTS}

    def one(number: int) -> Callable[[], tuple[Answer, str]]:
        prompt = PROMPTS[number % len(PROMPTS)]
        full = in_room(generate(prompt, 5), new_room())

        def send() -> tuple[Answer, str]:
            _, decode = at_once(lambda: post(PREFILL, full), lambda: post(DECODE, full))
            return decode, prompt

        return send

    for start in range(0, 500, 16):
        for answer, prompt in at_once(*(one(number) for number in range(start, min(start + 16, 500)))):
            assert answer.status == 200, answer
            assert answer.body["output_ids"] == expected[prompt]
