"""Requests to vLLM's HTTP server, as far as a hand-off looks at them. No ASGI here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pd_handoff.model import digest_of_prompt

Kind = Literal["chat", "completions", "responses", "messages", "tokens"]
PARAMS = "kv_transfer_params"

_KINDS: tuple[tuple[str, Kind], ...] = (
    ("/chat/completions", "chat"),
    ("/completions", "completions"),
    ("/v1/responses", "responses"),
    ("/v1/messages", "messages"),
    ("/inference/v1/generate", "tokens"),
)
# What a prompt is made of; other parameters say what is done with it.
_PROMPT_FIELDS = (
    "add_generation_prompt",
    "add_special_tokens",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "input",
    "instructions",
    "messages",
    "mm_processor_kwargs",
    "prompt",
    "reasoning_effort",
    "system",
    "tools",
    "truncate_prompt_tokens",
)


def kind_of(path: str) -> Kind | None:
    """The kind of endpoint; None where no hand-off is done."""
    return next((kind for end, kind in _KINDS if path.endswith(end)), None)


def is_single(kind: Kind, body: Mapping[str, Any]) -> bool:
    """Whether the request is one prompt with one sample, so that one KV cache serves all of it. vLLM gives the same
    parameters to each prompt of a list, to each sample, and to each turn of a Responses request with tools of the
    server's own. Prefill's blocks can be fetched once, so such requests are computed by decode."""
    if body.get("use_beam_search"):
        return False
    sampling = body.get("sampling_params") if kind == "tokens" else body
    if not isinstance(sampling, Mapping):
        return sampling is None
    if any(sampling.get(name) not in (None, 1) for name in ("n", "best_of")):
        return False
    if kind == "completions":
        prompt = body.get("prompt")
        if body.get("prompt_embeds") is not None:
            return False
        return isinstance(prompt, str) or _is_token_ids(prompt) or (isinstance(prompt, list) and len(prompt) == 1)
    if kind == "chat":
        messages = body.get("messages")
        return isinstance(messages, list) and not any(isinstance(message, list) for message in messages)
    if kind == "responses":
        tools = body.get("tools") or ()
        return not body.get("background") and all(
            isinstance(tool, Mapping) and tool.get("type") == "function" for tool in tools
        )
    return True


def _is_token_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(item) is int for item in prompt)


def for_prefill(kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for prefill: one token, one sample, no stream. A router may send both sides the same body."""
    made = dict(body)
    for name in ("stream_options", "best_of"):
        made.pop(name, None)
    if "stream" in made:
        made["stream"] = False
    target = made
    if kind == "tokens":
        target = made["sampling_params"] = dict(made.get("sampling_params") or {})
    for name in ("n", "min_tokens"):
        if target.get(name) is not None:
            target[name] = 1 if name == "n" else 0
    if kind == "responses":
        target["max_output_tokens"] = 1
    else:
        target["max_tokens"] = 1
    if kind == "chat" and "max_completion_tokens" in target:
        target["max_completion_tokens"] = 1
    return made


def has_media(value: Any) -> bool:
    """Whether a prompt holds more than text. Its token ids then do not say all of it."""
    if isinstance(value, Mapping):
        kind = value.get("type")
        if isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file", "embed")):
            return True
        return any(has_media(item) for item in value.values())
    return isinstance(value, list) and any(has_media(item) for item in value if isinstance(item, (Mapping, list)))


def tokenizing(kind: Kind, path: str, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Path and body of a request to vLLM's own tokenizer that gives the token ids of this prompt; None where there is
    none for this kind, or where the token ids do not say all of the prompt."""
    end = next(end for end, known in _KINDS if known == kind)
    if kind not in ("chat", "completions") or has_media(body.get("messages")):
        return None
    prefix = path[: -len(end)].removesuffix("/v1")
    asked = {name: value for name, value in body.items() if name != PARAMS}
    if kind == "completions" and isinstance(body.get("prompt"), list):
        asked["prompt"] = body["prompt"][0]
    return f"{prefix}/tokenize", asked


def given_token_ids(kind: Kind, body: Mapping[str, Any]) -> list[int] | None:
    """The token ids of the prompt, where the request brings them."""
    prompt = body.get("token_ids" if kind == "tokens" else "prompt")
    if kind == "completions" and isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt if _is_token_ids(prompt) else prompt[0]
    return prompt if kind in ("tokens", "completions") and _is_token_ids(prompt) else None


def digest_of_token_ids(token_ids: Any, body: Mapping[str, Any]) -> bytes | None:
    """The digest of a prompt by its token ids, in the form that the connector uses; None for what are none."""
    if not _is_token_ids(token_ids):
        return None
    digest = digest_of_prompt(token_ids)
    salt = body.get("cache_salt")
    return further_digest(digest, (), salt, None) if salt else digest


def further_digest(digest: bytes, features: Iterable[str], salt: str | None, adapter: str | None) -> bytes:
    """The digest of a prompt whose KV cache depends on more than its token ids."""
    return hashlib.blake2b(digest + json.dumps([list(features), salt, adapter]).encode(), digest_size=16).digest()


def digest_of_body(body: Mapping[str, Any]) -> bytes:
    """The digest of a prompt whose token ids are not to be had or do not say all of it, from the request itself."""
    prompt = {name: body[name] for name in _PROMPT_FIELDS if body.get(name) is not None}
    text = json.dumps(prompt, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"pd-handoff-body").digest()
