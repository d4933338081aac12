"""Hypothesis makes requests, of SGLang's own class."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from pd_handoff.engines.sglang import RowShape

from examples.sglang.engine import load

INT32 = 2**31 - 1
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
token_ids = st.integers(0, INT32)
logprobs = st.floats(width=32)  # NaN, infinities, -0.0 and denormals too
counts = st.integers(0, INT32)
rooms = st.integers(1, 2**63 - 1)  # those that SGLang's class can hold


@dataclass
class Made:
    """All that set_buf reads of a request, and what the request asked for."""

    token: int = 1
    room: int | None = 7
    cached: tuple[int, int, int, int] = (0, 0, 0, 0)
    modality: tuple[int, int, int] = (0, 0, 0)
    logprob: float | None = None
    top_num: int = 0
    top_val: list[list[float]] = field(default_factory=list)
    top_idx: list[list[int]] = field(default_factory=list)
    listed: dict[int, float] | None = None
    """Logprobs of the token ids that the request lists."""
    mask: list[int] | None = None
    mask_logprobs: list[float] = field(default_factory=list)
    mask_mode: str = "selected"
    hidden: torch.Tensor | None = None
    topk_p: torch.Tensor | None = None
    topk_index: torch.Tensor | None = None
    sparse: torch.Tensor | None = None
    checksum: tuple[int, int] | None = None

    def request(self, *, rid: str = "request", computed: bool = True) -> Any:
        """SGLang's Req: as prefill has it (computed), or as decode has it before the hand-off."""
        req = load("srt.managers.schedule_batch").Req(
            rid,
            "",
            array("q", [1, 2, 3]),
            load("srt.sampling.sampling_params").SamplingParams(),
            return_logprob=self.logprob is not None,
            top_logprobs_num=self.top_num,
            token_ids_logprob=None if self.listed is None else list(self.listed),
            return_sampling_mask=self.mask is not None,
            sampling_logprobs_mode=self.mask_mode,
            bootstrap_host="127.0.0.1",
            bootstrap_room=self.room,
            vocab_size=INT32,
        )
        req.metadata_buffer_index = 0
        if computed:
            self._fill(req)
        return req

    def _fill(self, req: Any) -> None:
        req.output_ids.append(self.token)
        req.cached_tokens, req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage = self.cached
        req.mm_image_tokens, req.mm_audio_tokens, req.mm_video_tokens = self.modality
        req.mm_token_counts_ready = True
        if self.logprob is not None:
            req.logprob.output_token_logprobs_val.append(self.logprob)
            req.logprob.output_token_logprobs_idx.append(self.token)
            req.logprob.output_top_logprobs_val.extend(self.top_val)
            req.logprob.output_top_logprobs_idx.extend(self.top_idx)
            if self.listed is not None:
                req.logprob.output_token_ids_logprobs_val.append(list(self.listed.values()))
                req.logprob.output_token_ids_logprobs_idx.append(list(self.listed))
        if self.mask is not None:
            values = np.array(self.mask_logprobs, dtype=np.float32)
            req.sampling_mask_rows.append(np.array(self.mask, dtype=np.int32), values)
        req.hidden_states_tensor = self.hidden
        req.output_topk_p, req.output_topk_index = self.topk_p, self.topk_index
        req.output_dsa_topk_indices = self.sparse


@st.composite
def shapes(draw: st.DrawFn) -> RowShape:
    """How an engine constructs its buffers."""
    return RowShape(
        hidden_size=draw(st.sampled_from((1, 16, 48))),
        hidden_states_dtype=draw(st.sampled_from(DTYPES)),
        max_sampling_mask_tokens=draw(st.sampled_from((16, 64))),
        max_top_logprobs_num=draw(st.sampled_from((1, 20, 128))),
        output_dsa_topk_indices_dim=draw(st.sampled_from((0, 1, 24))),
        sampling_mask=draw(st.booleans()),
    )


@st.composite
def right_requests(draw: st.DrawFn, shape: RowShape) -> Made:
    """A request that a clean row of SGLang's class holds as it is: nothing too long, unpaired, of another type or
    absent though it was asked for."""
    made = Made(
        token=draw(token_ids),
        room=draw(rooms),
        cached=draw(st.tuples(counts, counts, counts, counts)),
        modality=draw(st.tuples(counts, counts, counts)),
    )
    if draw(st.booleans()):
        made.logprob = draw(logprobs)
        most = shape.max_top_logprobs_num
        made.top_num = draw(st.sampled_from((0, 1, most)) | st.integers(0, most))
        if made.top_num or draw(st.booleans()):
            made.top_val = [draw(st.lists(logprobs, min_size=made.top_num, max_size=made.top_num))]
            made.top_idx = [draw(st.lists(token_ids, min_size=made.top_num, max_size=made.top_num))]
        made.listed = draw(st.none() | st.dictionaries(token_ids, logprobs, max_size=8))
    if shape.sampling_mask and draw(st.booleans()):
        made.mask = draw(st.lists(token_ids, min_size=1, max_size=shape.max_sampling_mask_tokens))
        made.mask_mode = draw(st.sampled_from(("selected", "support")))
        size = len(made.mask) if made.mask_mode == "support" else 1
        made.mask_logprobs = draw(st.lists(logprobs, min_size=size, max_size=size))
    if draw(st.booleans()):
        size = torch.tensor([], dtype=shape.hidden_states_dtype).element_size() * shape.hidden_size
        bits = draw(st.binary(min_size=size, max_size=size))
        made.hidden = torch.frombuffer(bytearray(bits), dtype=shape.hidden_states_dtype)
        topk = draw(st.integers(1, 16))
        made.topk_p = torch.tensor(draw(st.lists(logprobs, min_size=topk, max_size=topk)), dtype=torch.float32)
        indices = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=topk, max_size=topk))
        made.topk_index = torch.tensor(indices, dtype=torch.int64)
        width = shape.output_dsa_topk_indices_dim
        if width and draw(st.booleans()):
            sparse = draw(st.lists(st.integers(-1, INT32), min_size=width, max_size=width))
            made.sparse = torch.tensor(sparse, dtype=torch.int32)
    if draw(st.booleans()):
        made.checksum = (draw(st.integers(0, 2**63 - 1)), draw(st.integers(1, 2**63 - 1)))
    return made
