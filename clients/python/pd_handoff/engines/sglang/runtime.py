"""What the SGLang process that this runs in says of itself. Nothing is imported: where SGLang is not loaded, or has not
published its settings, each question has the answer of an engine with one rank and no extras."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_CONTEXT = "sglang.srt.runtime_context"
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


def prefills() -> bool:
    """Whether this is a prefill node."""
    return _ask("get_disagg", lambda disagg: disagg.disaggregation_mode == "prefill", False)


def transfers_are_fake() -> bool:
    """Whether SGLang runs with the transfer backend "fake", whose requests need no bootstrap host."""
    return _ask("get_disagg", lambda disagg: disagg.disaggregation_transfer_backend == "fake", False)


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
