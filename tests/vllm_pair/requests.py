"""Requests to the pair, and what of an answer must be equal to the undivided server's."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.vllm_pair.servers import MODEL, Vllm

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
Body = dict[str, Any]

_rooms = itertools.count(random.getrandbits(62))
_WORDS = [
    "prefill",
    "decode",
    "store",
    "room",
    "token",
    "cache",
    "block",
    "layer",
    "head",
    "lease",
    "epoch",
    "owner",
    "record",
    "reader",
    "fence",
    "slot",
]


def room() -> int:
    """A room that no other test of this run has."""
    return next(_rooms)


def text(seed: int, words: int = 30) -> str:
    """A prompt; a byte is a token."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(_WORDS) for _ in range(words)) + f" {seed}."


def completion(prompt: Any, **more: Any) -> Body:
    """A request for 12 tokens, greedy."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 5, "ignore_eos": True}
    return {**body, "return_token_ids": True, "return_tokens_as_token_ids": True, **more}


def chat(content: str, **more: Any) -> Body:
    """The same by chat."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True}
    return {**body, "top_logprobs": 5, "ignore_eos": True, "return_token_ids": True, **more}


def in_room(body: Body, number: int) -> Body:
    """For either leg: a router sends both the same."""
    return {**body, "kv_transfer_params": {"handoff": {"room": str(number)}}}


def outcome(answer: Any) -> list[Any]:
    """Token ids and logprobs of each choice, exactly."""
    made = []
    for choice in answer["choices"]:
        logprobs = choice.get("logprobs") or {}
        if "content" in logprobs:
            told: Any = [
                (item["token"], item["logprob"], [(top["token"], top["logprob"]) for top in item["top_logprobs"]])
                for item in logprobs["content"] or ()
            ]
        else:
            told = [logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")]
        made.append((choice["index"], choice.get("token_ids"), told))
    return made


def at_once(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Calls at the same time; their results in order."""
    work = list(calls)
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(call) for call in work]]


def both(
    prefill: Vllm,
    decode: Vllm,
    path: str,
    body: Body,
    *,
    number: int | None = None,
    prefill_after: float = 0.0,
    decode_after: float = 0.0,
) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Both legs of one request, each after so many seconds; the answers of prefill and decode."""
    body = in_room(body, room() if number is None else number)

    def leg(server: Vllm, after: float) -> tuple[int, Any]:
        threading.Event().wait(after)
        return server.post(path, body)

    first, second = at_once([lambda: leg(prefill, prefill_after), lambda: leg(decode, decode_after)])
    return first, second
