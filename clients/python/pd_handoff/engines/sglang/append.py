"""The record -> what decode adds to its request, without the detour over padded rows."""

from __future__ import annotations

import importlib
from typing import Any

from pd_handoff._values import exact
from pd_handoff.engines.sglang.request import selected_logprob
from pd_handoff.v1 import record_pb2


def append_to_request(req: Any, record: record_pb2.HandoffRecord, *, replayed_token: int | None = None) -> int:
    """Sets on a decode request what SGLang's `_commit_transfer_to_req` takes from a row; returns the token appended.
    The draft state, the expected checksum of the KV cache and the count of reasoning tokens stay with the engine.

    Lists get exactly the values that prefill had, as many as it had. What prefill left out is None (the logprob) or
    an empty list where SGLang would append 0.0; logprobs of listed token ids are appended where SGLang loses them.
    `replayed_token` is a retracted request's last token, which it goes on from; then logprobs and mask stay those of
    before."""
    token = record.tokens[0]
    committed = token.token_id if replayed_token is None else replayed_token
    req.output_ids.append(committed)
    req.cached_tokens = req.already_computed = record.cached_tokens.total
    req.cached_tokens_device = record.cached_tokens.device
    req.cached_tokens_host = record.cached_tokens.host
    req.cached_tokens_storage = record.cached_tokens.storage
    req.mm_image_tokens = record.modality_tokens.image
    req.mm_audio_tokens = record.modality_tokens.audio
    req.mm_video_tokens = record.modality_tokens.video
    req.mm_token_counts_ready = True
    if replayed_token is not None:
        return committed
    if req.return_logprob:
        logprob = req.logprob
        logprob.output_token_logprobs_val.append(token.logprob if token.HasField("logprob") else None)
        logprob.output_token_logprobs_idx.append(token.token_id)
        wanted = logprob.top_logprobs_num
        logprob.output_top_logprobs_val.append(list(token.top_logprobs.values[:wanted]))
        logprob.output_top_logprobs_idx.append(list(token.top_logprobs.token_ids[:wanted]))
        if logprob.token_ids_logprob is not None:
            logprob.output_token_ids_logprobs_val.append(list(token.token_ids_logprobs.values))
            logprob.output_token_ids_logprobs_idx.append(list(token.token_ids_logprobs.token_ids))
    if req.return_sampling_mask:
        numpy: Any = importlib.import_module("numpy")
        mask = record.sampling_mask
        logprobs = selected_logprob(record) or exact.float32_bytes(mask, "logprobs")
        req.sampling_mask_rows.append(
            numpy.array(mask.token_ids, dtype=numpy.int32), numpy.frombuffer(logprobs, dtype="<f4")
        )
    return committed
