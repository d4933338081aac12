"""TensorRT-LLM's `disaggregated_params` as a record of the store, and back.

TensorRT-LLM's orchestrator takes it from the context server's answer and sends it to the generation server. It is the
JSON form of the class `DisaggregatedParams` in the engine's OpenAI protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pd_handoff._values.arrays import UnfitError, float32_of
from pd_handoff.engines.payload import (
    UnusableHandoff,
    fields_of,
    integer_of,
    object_of,
    refused,
    state_of,
    token_id_of,
    token_ids_of,
)
from pd_handoff.record import CachedTokens, Logprobs, Record, SpeculativeState, Token
from pd_handoff.v1 import record_pb2

TYPE = "tensorrt_llm/DisaggregatedParams;v=1"
# Field -> why it cannot be carried. None, which is how the engine says that there is none, can.
_NOT_CARRIED = {
    "first_gen_logits": "logits of a whole vocabulary do not fit a record; ask for logprobs",
    "multimodal_embedding_handles": "a CUDA IPC handle means nothing on another machine",
    "mrope_position_ids_handle": "a CUDA IPC handle means nothing on another machine",
    "mrope_position_deltas_handle": "a CUDA IPC handle means nothing on another machine",
}
_PHASES = ("context_only", "generation_only", "context_and_generation")
_CANDIDATE = {"token_id", "logprob", "rank"}
_LOG_PROBS = "first_gen_log_probs"

__all__ = ["TYPE", "UnusableHandoff", "params_of", "record_of"]


def record_of(params: Mapping[str, Any]) -> Record:
    """The record of a context server's answer.

    Args:
        params: `disaggregated_params` of one choice, with these fields of its own:

            - `first_gen_tokens`: becomes the record's only token. More than one is a beam search, which is refused.
            - `first_gen_log_probs`: of that token: either its logprob, or candidates with `token_id`, `logprob` and
              `rank`, which become the token's `top_logprobs`. The record holds float32; wider values are narrowed once.
            - `draft_tokens`: become `speculative.draft_token_ids`.
            - `ctx_usage`: `prompt_tokens` and `prompt_tokens_details.cached_tokens` become the record's counters.
            - All others, also those of later versions, become the engine state.

    Returns:
        A record for `PrefillHandoff.put`. It has no token where there are no `first_gen_tokens`.

    Raises:
        InvalidRecord: a field holds what cannot be carried; `violations` names it.
    """
    fields = object_of(params, "disaggregated_params")
    for name, why in _NOT_CARRIED.items():
        if fields.get(name) is not None:
            raise refused(name, why)
    if fields.get("request_type") not in (None, *_PHASES):
        raise refused("request_type", f"must be one of {', '.join(_PHASES)}")
    token = _take_token(fields)
    speculative = None
    if fields.get("draft_tokens") is not None:
        speculative = SpeculativeState(draft_token_ids=token_ids_of(fields.pop("draft_tokens"), "draft_tokens"))
    prompt_tokens, cached = _take_usage(fields)
    return Record(
        tokens=[] if token is None else [token],
        cached_tokens=None if cached is None else CachedTokens(cached),
        speculative=speculative,
        engine_state=state_of(TYPE, fields),
        prompt_tokens=prompt_tokens,
    )


def params_of(record: Record) -> dict[str, Any]:
    """The `disaggregated_params` that `record_of` was given; set `request_type` for the generation server.

    A candidate that came without `rank` has None there. Raises UnusableHandoff for the record of another engine.
    """
    fields, message = fields_of(TYPE, record), record.to_proto()
    if len(message.tokens) > 1:
        raise UnusableHandoff(f"the record has {len(message.tokens)} tokens, TensorRT-LLM hands over one")
    for token in message.tokens:
        fields["first_gen_tokens"] = [token.token_id]
        if token.HasField("top_logprobs"):
            fields[_LOG_PROBS] = [_candidates_of(token.top_logprobs)]
        elif token.HasField("logprob"):
            fields[_LOG_PROBS] = [token.logprob]
    if message.HasField("speculative"):
        fields["draft_tokens"] = list(message.speculative.draft_token_ids)
    if message.HasField("prompt_tokens"):
        _object_in(fields, "ctx_usage")["prompt_tokens"] = message.prompt_tokens
    if message.HasField("cached_tokens"):
        details = _object_in(_object_in(fields, "ctx_usage"), "prompt_tokens_details")
        details["cached_tokens"] = message.cached_tokens.total
    return fields


def _take_token(fields: dict[str, Any]) -> Token | None:
    token_ids = fields.get("first_gen_tokens")
    log_probs = fields.get(_LOG_PROBS)
    if not token_ids:  # None and an empty list are two things to the engine: they stay in the state
        if log_probs:
            raise refused(_LOG_PROBS, "has no first_gen_tokens to belong to")
        return None
    token_ids = token_ids_of(token_ids, "first_gen_tokens")
    if len(token_ids) > 1:
        raise refused("first_gen_tokens", f"has {len(token_ids)} beams; a record holds one sample")
    del fields["first_gen_tokens"]
    token = Token(token_ids[0])
    if not log_probs:
        return token
    if not isinstance(log_probs, (list, tuple)):
        raise refused(_LOG_PROBS, f"must be a list, is {type(log_probs).__name__}")
    if len(log_probs) > 1:
        raise refused(_LOG_PROBS, f"has {len(log_probs)} positions for one token")
    del fields[_LOG_PROBS]
    if isinstance(log_probs[0], (list, tuple)):
        _add_candidates(token, log_probs[0])
    else:
        token.logprob = _number_of(log_probs[0], f"{_LOG_PROBS}[0]")
    return token


def _add_candidates(token: Token, candidates: Any) -> None:
    values, token_ids, ranks = [], [], []
    for index, candidate in enumerate(candidates):
        path = f"{_LOG_PROBS}[0][{index}]"
        entry = object_of(candidate, path)
        for name in entry.keys() - _CANDIDATE:
            raise refused(f"{path}.{name}", "a record has no place for it")
        token_ids.append(token_id_of(entry.get("token_id"), f"{path}.token_id"))
        values.append(_number_of(entry.get("logprob"), f"{path}.logprob"))
        rank = entry.get("rank")
        if rank is not None:
            ranks.append(integer_of(rank, f"{path}.rank", 32))
            if not rank:
                raise refused(f"{path}.rank", "ranks count from 1")
        if token_ids[-1] == token.token_id:
            token.logprob, token.rank = values[-1], rank
    if ranks and len(ranks) < len(token_ids):
        raise refused(f"{_LOG_PROBS}[0]", "some candidates have a rank and some do not")
    token.top_logprobs = Logprobs(values, token_ids, ranks)


def _candidates_of(logprobs: record_pb2.Logprobs) -> list[dict[str, Any]]:
    ranks: list[int | None] = [*logprobs.ranks] or [None] * len(logprobs.token_ids)
    return [
        {"token_id": token_id, "logprob": value, "rank": rank}
        for value, token_id, rank in zip(logprobs.values, logprobs.token_ids, ranks, strict=True)
    ]


def _take_usage(fields: dict[str, Any]) -> tuple[int | None, int | None]:
    """Takes both counters out of `ctx_usage`."""
    if fields.get("ctx_usage") is None:
        return None, None
    fields["ctx_usage"] = usage = object_of(fields["ctx_usage"], "ctx_usage")
    prompt_tokens = cached = None
    if usage.get("prompt_tokens") is not None:
        prompt_tokens = integer_of(usage.pop("prompt_tokens"), "ctx_usage.prompt_tokens", 32)
    path = "ctx_usage.prompt_tokens_details"
    if usage.get("prompt_tokens_details") is not None:
        usage["prompt_tokens_details"] = details = object_of(usage["prompt_tokens_details"], path)
        if details.get("cached_tokens") is not None:
            cached = integer_of(details.pop("cached_tokens"), f"{path}.cached_tokens", 64)
    return prompt_tokens, cached


def _object_in(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.setdefault(name, {})
    if not isinstance(found, dict):
        raise UnusableHandoff(f"{name} of the engine state is no object")
    return found


def _number_of(value: object, path: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise refused(path, f"must be a number, is {type(value).__name__}")
    try:
        float32_of(value)
    except UnfitError as error:
        raise refused(path, error.description) from None
    return float(value)
