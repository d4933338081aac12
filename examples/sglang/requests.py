"""Requests of SGLang's own class, and a model that makes up what they are answered."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from examples.sglang.engine import load

HIDDEN_SIZE = 64
HIDDEN_DTYPE = torch.bfloat16
MASK_TOKENS = 128
TOPK = 8
SPARSE = 32


@dataclass(frozen=True)
class Order:
    """What a user asked for, in so far as the hand-off depends on it.

    Attributes:
        mask: "" without a sampling mask, else SGLang's sampling_logprobs_mode: "selected" or "support".
        eagle: a draft model's state goes along.
        seed: what the model answers depends on this alone.
    """

    rid: str
    room: int
    sample: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    mask: str = ""
    eagle: bool = False
    seed: int = 0


def request_of(order: Order) -> Any:
    """SGLang's Req for it, as either side makes one."""
    scheduling = load("srt.managers.schedule_batch")
    sampling = load("srt.sampling.sampling_params")
    req = scheduling.Req(
        order.rid,
        "",
        array("q", range(1, 9)),
        sampling.SamplingParams(),
        return_logprob=order.logprobs,
        top_logprobs_num=order.top_logprobs,
        return_sampling_mask=bool(order.mask),
        sampling_logprobs_mode=order.mask or "selected",
        bootstrap_host="127.0.0.1",
        bootstrap_room=order.room,
        vocab_size=50_000,
    )
    req.handoff_sample = order.sample
    return req


def compute(req: Any, order: Order) -> None:
    """The prefill: fills the request with what a model would have answered."""
    chance = random.Random(order.seed)
    token = chance.randrange(50_000)
    req.output_ids.append(token)
    req.cached_tokens = chance.randrange(4096)
    req.cached_tokens_device = chance.randrange(4096)
    if order.logprobs:
        req.logprob.output_token_logprobs_val.append(-chance.random() * 20)
        req.logprob.output_token_logprobs_idx.append(token)
        if order.top_logprobs:
            req.logprob.output_top_logprobs_val.append([-chance.random() * 20 for _ in range(order.top_logprobs)])
            req.logprob.output_top_logprobs_idx.append([chance.randrange(50_000) for _ in range(order.top_logprobs)])
    if order.mask:
        ids = np.array(chance.sample(range(50_000), 40), dtype=np.int32)
        count = len(ids) if order.mask == "support" else 1
        logprobs = np.array([-chance.random() * 20 for _ in range(count)], dtype=np.float32)
        req.sampling_mask_rows.append(ids, logprobs)
    if order.eagle:
        maker = torch.Generator().manual_seed(order.seed)
        req.hidden_states_tensor = torch.randn(HIDDEN_SIZE, generator=maker).to(HIDDEN_DTYPE)
        req.output_topk_p = torch.rand(TOPK, generator=maker)
        req.output_topk_index = torch.randint(0, 50_000, (TOPK,), generator=maker)
        req.output_dsa_topk_indices = torch.randint(-1, 50_000, (SPARSE,), generator=maker, dtype=torch.int32)


def shown(req: Any) -> dict[str, Any]:
    """All that decode has of a request after the hand-off, floats as their bits."""
    found: dict[str, Any] = {
        "rid": req.rid,
        "output_ids": list(req.output_ids),
        "cached": [req.cached_tokens, req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage],
        "already_computed": req.already_computed,
        "modality": [req.mm_image_tokens, req.mm_audio_tokens, req.mm_video_tokens, req.mm_token_counts_ready],
    }
    if req.finished_reason is not None:
        found["finished"] = [int(req.finished_reason.status_code or 0), req.finished_reason.message]
    if req.return_logprob:
        found["logprob"] = _bits(req.logprob.output_token_logprobs_val)
        found["logprob_of"] = list(req.logprob.output_token_logprobs_idx)
        found["top"] = [_bits(row) for row in req.logprob.output_top_logprobs_val]
        found["top_of"] = [list(row) for row in req.logprob.output_top_logprobs_idx]
        if req.logprob.token_ids_logprob is not None:
            found["listed"] = [_bits(row) for row in req.logprob.output_token_ids_logprobs_val]
            found["listed_of"] = [list(row) for row in req.logprob.output_token_ids_logprobs_idx]
    if req.return_sampling_mask:
        chunk = req.sampling_mask_rows.view()
        found["mask"] = [chunk.token_ids.tolist(), chunk.logprobs.tobytes().hex()]
    if req.hidden_states_tensor is not None:
        found["hidden"] = req.hidden_states_tensor.view(torch.uint8).numpy().tobytes().hex()
        found["topk"] = [_bits(req.output_topk_p[:TOPK].tolist()), req.output_topk_index[:TOPK].tolist()]
        sparse = req.output_dsa_topk_indices
        found["sparse"] = None if sparse is None else sparse.tolist()
    return found


def _bits(values: Any) -> str:
    return np.array(values, dtype="<f4").tobytes().hex()
