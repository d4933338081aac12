"""What the SGLang process that this runs in says of itself. Nothing is imported: where SGLang is not loaded, or has not
published its settings, each question has the answer of an engine with one rank and no extras."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_CONTEXT = "sglang.srt.runtime_context"
_UTILS = "sglang.srt.disaggregation.utils"
_SPECULATION = "sglang.srt.speculative.spec_info"


def speaks_for_its_group() -> bool:
    """Whether this rank is the first of its attention group, in whichever stage of a pipeline: of what all ranks of a
    group do alike, it alone tells the store. True outside of a scheduler."""
    return _ask("get_parallel", lambda parallel: parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0, True)


def speaks_for_its_ranks() -> bool:
    """Whether this scheduler's rank is the one that publishes: the first of its attention group, in the last stage of a
    pipeline. True outside of a scheduler."""
    last = _ask("get_parallel", lambda parallel: parallel.pp_rank == parallel.pp_size - 1, True)
    return speaks_for_its_group() and last


def in_pipeline() -> bool:
    """Whether the model is spread over several pipeline stages."""
    return _ask("get_parallel", lambda parallel: parallel.pp_size > 1, False)


def is_a_side() -> bool:
    """Whether this is a prefill node or a decode node, and not an engine that does both."""
    return _ask("get_disagg", lambda disagg: disagg.disaggregation_mode in ("prefill", "decode"), False)


def prefills() -> bool:
    """Whether this is a prefill node."""
    return _ask("get_disagg", lambda disagg: disagg.disaggregation_mode == "prefill", False)


def prefills_early() -> bool:
    """Whether prefill may start before decode has connected."""
    return _ask(
        "get_disagg",
        lambda disagg: (
            disagg.optimistic_prefill_attempts > 0
            or getattr(disagg, "disaggregation_decode_allocation_policy", "early") == "prefill_complete"
        ),
        False,
    )


_ANSWERED = (400, 500, 503)


def answered_status(status: int) -> int:
    """The HTTP status with which this SGLang answers a request that ends with `status`. Before 0.5.23 its
    tokenizer knows 400, 500 and 503, and answers others by 200 with an empty text: it is given the nearest of those."""
    if status in _ANSWERED or not _answers_few():
        return status
    if status in (429, 504):
        return 503
    return 400 if status < 500 else 500


@functools.cache
def _answers_few() -> bool:
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return False
    return version.partition("+")[0] in ("0.5.21", "0.5.22")


def transfers_are_fake() -> bool:
    """Whether SGLang runs with the transfer backend "fake", whose requests need no bootstrap host."""
    return _ask("get_disagg", lambda disagg: disagg.disaggregation_transfer_backend == "fake", False)


def row_device(mem_pool: Any) -> str:
    """Where SGLang's own class would put its rows, which is where the transport reaches them: on an NPU, on the GPU for
    NVLink within a node, else in the CPU's memory."""
    utils = sys.modules.get(_UTILS)
    if utils is None:
        return "cpu"
    if utils.is_npu():
        return "npu"
    nvlink = not mem_pool and utils.envs.SGLANG_MOONCAKE_CUSTOM_MEM_POOL.get() == "INTRA_NODE_NVLINK"
    return "cuda" if nvlink else "cpu"


def draft_candidates() -> int:
    """How many candidates of the draft model this engine goes on from; 0 where its speculation needs none handed
    over."""
    return _ask("get_spec", _candidates, 0)


def _candidates(spec: Any) -> int:
    algorithms = sys.modules.get(_SPECULATION)
    if algorithms is None or spec.speculative_algorithm is None:
        return 0
    algorithm = algorithms.SpeculativeAlgorithm.from_string(spec.speculative_algorithm)
    if not algorithm.is_eagle():
        return 0
    steps = spec.speculative_num_steps if spec.enable_multi_layer_eagle else 1
    return int(spec.speculative_eagle_topk * steps)


def _ask(settings: str, question: Callable[[Any], T], otherwise: T) -> T:
    context = sys.modules.get(_CONTEXT)
    if context is None:
        return otherwise
    try:
        return question(getattr(context, settings)())
    except (ValueError, RuntimeError):  # SGLang's answer where nothing was set up
        return otherwise


def has_siblings() -> bool:
    """Whether other ranks agree with this one on how each request ends."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)
