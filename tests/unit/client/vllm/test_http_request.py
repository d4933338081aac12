"""Requests to vLLM's HTTP server."""

from __future__ import annotations

from typing import Any

import pytest
from pd_handoff.engines.vllm.http_request import (
    Kind,
    digest_of_body,
    digest_of_token_ids,
    for_prefill,
    given_token_ids,
    has_media,
    is_single,
    kind_of,
    tokenizing,
)
from pd_handoff.model import digest_of_prompt

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completions"),
        ("/prefix/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/inference/v1/generate", "tokens"),
        ("/v1/chat/completions/batch", None),
        ("/v1/embeddings", None),
    ],
)
def test_kinds(path: str, kind: str | None) -> None:
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("kind", "body", "single"),
    [
        ("completions", {"prompt": "a"}, True),
        ("completions", {"prompt": ["a"]}, True),
        ("completions", {"prompt": [1, 2, 3]}, True),
        ("completions", {"prompt": [[1, 2, 3]]}, True),
        ("completions", {"prompt": "a", "n": 1}, True),
        ("completions", {"prompt": ["a", "b"]}, False),
        ("completions", {"prompt": [[1], [2]]}, False),
        ("completions", {"prompt": "a", "n": 2}, False),
        ("completions", {"prompt": "a", "best_of": 2}, False),
        ("completions", {"prompt": "a", "use_beam_search": True}, False),
        ("completions", {"prompt": None, "prompt_embeds": "x"}, False),
        ("chat", {"messages": MESSAGES}, True),
        ("chat", {"messages": MESSAGES, "n": 3}, False),
        ("chat", {"messages": [MESSAGES, MESSAGES]}, False),
        ("responses", {"input": "a"}, True),
        ("responses", {"input": "a", "tools": [{"type": "function", "name": "f"}]}, True),
        ("responses", {"input": "a", "tools": [{"type": "web_search"}]}, False),
        ("responses", {"input": "a", "background": True}, False),
        ("messages", {"messages": MESSAGES}, True),
        ("tokens", {"token_ids": [1], "sampling_params": {}}, True),
        ("tokens", {"token_ids": [1], "sampling_params": {"n": 2}}, False),
    ],
)
def test_one_kv_cache_serves_one_prompt_with_one_sample(kind: Kind, body: dict[str, Any], single: bool) -> None:
    assert is_single(kind, body) is single


def test_prefill_computes_one_token_whatever_decode_is_asked_for() -> None:
    asked: dict[str, Any] = {
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 3,
        "min_tokens": 5,
        "max_completion_tokens": 100,
        "temperature": 0.5,
    }
    before = dict(asked)
    made = for_prefill("chat", asked)
    assert asked == before
    assert made == {
        "messages": MESSAGES,
        "stream": False,
        "n": 1,
        "min_tokens": 0,
        "max_completion_tokens": 1,
        "max_tokens": 1,
        "temperature": 0.5,
    }
    assert for_prefill("responses", {"input": "a", "max_output_tokens": 50})["max_output_tokens"] == 1
    assert for_prefill("tokens", {"token_ids": [1], "sampling_params": {"max_tokens": 9, "n": 1}}) == {
        "token_ids": [1],
        "sampling_params": {"max_tokens": 1, "n": 1},
    }


def test_media() -> None:
    assert not has_media([{"role": "user", "content": [{"type": "text", "text": "image_url"}]}])
    assert has_media([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])
    assert has_media([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}])


def test_the_tokenizer_is_asked_for_texts() -> None:
    body = {"prompt": "a", "model": "m", "kv_transfer_params": {"handoff": {"room": "1"}}}
    assert tokenizing("completions", "/v1/completions", body) == ("/tokenize", {"prompt": "a", "model": "m"})
    assert tokenizing("completions", "/x/v1/completions", {"prompt": ["a"]}) == ("/x/tokenize", {"prompt": "a"})
    chat = {"messages": MESSAGES, "tools": []}
    assert tokenizing("chat", "/v1/chat/completions", chat) == ("/tokenize", chat)
    assert tokenizing("responses", "/v1/responses", {"input": "a"}) is None
    media = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert tokenizing("chat", "/v1/chat/completions", {"messages": media}) is None


def test_token_ids_that_a_request_brings() -> None:
    assert given_token_ids("completions", {"prompt": [1, 2]}) == [1, 2]
    assert given_token_ids("completions", {"prompt": [[1, 2]]}) == [1, 2]
    assert given_token_ids("completions", {"prompt": [1]}) == [1]
    assert given_token_ids("tokens", {"token_ids": [1, 2]}) == [1, 2]
    nothing: list[Any] = ["a", ["a"], [], None]
    for prompt in nothing:
        assert given_token_ids("completions", {"prompt": prompt}) is None
    assert given_token_ids("chat", {"prompt": [1, 2]}) is None


def test_digests_of_token_ids_are_those_of_the_connector() -> None:
    assert digest_of_token_ids([1, 2], {}) == digest_of_prompt([1, 2])
    assert digest_of_token_ids([1, 2], {"cache_salt": "s"}) != digest_of_prompt([1, 2])
    others: list[Any] = [None, [], ["1"], [True]]
    for other in others:
        assert digest_of_token_ids(other, {}) is None


def test_digests_of_a_body_follow_the_prompt_and_nothing_else() -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "stream": True}
    assert digest_of_body(body) == digest_of_body({"stream": False, "messages": MESSAGES, "temperature": 1})
    assert digest_of_body(body) != digest_of_body({"messages": [{"role": "user", "content": "hallo"}]})
    assert len(digest_of_body({"messages": [{"content": "\ud800"}]})) == 16
