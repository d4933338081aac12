"""OpenAI's own client library, at the limit and one above it, for each field that asks for top logprobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest

from tests.vllm_pair.conftest import Pair
from tests.vllm_pair.requests import at_once, room, text
from tests.vllm_pair.servers import ANSWER_SECONDS, HOST, LIMIT, MODEL, Vllm


@pytest.fixture
def clients(pair: Pair) -> Iterator[list[openai.OpenAI]]:
    """Of prefill and decode."""

    def client(server: Vllm) -> openai.OpenAI:
        url = f"http://{HOST}:{server.port}/v1"
        return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=ANSWER_SECONDS)

    made = [client(pair.prefill), client(pair.decode)]
    yield made
    for each in made:
        each.close()


def ask(client: openai.OpenAI, field: str, top: int, number: int) -> Any:
    """A request that asks for so many by this field."""
    more: dict[str, Any] = {"kv_transfer_params": {"handoff": {"room": str(number)}}}
    prompt = text(500 + top)
    messages: Any = [{"role": "user", "content": prompt}]
    if field == "chat top_logprobs":
        return client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=3, logprobs=True, top_logprobs=top, extra_body=more
        )
    if field == "completions logprobs":
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, logprobs=top, extra_body=more)
    if field == "responses top_logprobs":
        return client.responses.create(
            model=MODEL,
            input=prompt,
            max_output_tokens=16,
            include=["message.output_text.logprobs"],
            top_logprobs=top,
            extra_body=more,
        )
    more["prompt_logprobs"] = top
    if field == "completions prompt_logprobs":
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, extra_body=more)
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3, extra_body=more)


FIELDS = [
    "chat top_logprobs",
    "completions logprobs",
    "responses top_logprobs",
    "completions prompt_logprobs",
    "chat prompt_logprobs",
]


@pytest.mark.parametrize("field", FIELDS)
def test_at_the_limit_and_above(pair: Pair, clients: list[openai.OpenAI], field: str) -> None:
    number = room()
    at_once([partial(ask, client, field, LIMIT, number) for client in clients])
    for client in clients:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, field, LIMIT + 1, room())
        assert refused.value.code == "top_logprobs_overflow"
        assert refused.value.param == field.rpartition(" ")[2]
        assert str(LIMIT) in refused.value.message
    pair.assert_serves()
