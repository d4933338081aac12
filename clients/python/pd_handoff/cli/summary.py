"""A record for people: one line a part, values where they are few, counts where they are many."""

from __future__ import annotations

from typing import Any

from pd_handoff.v1 import record_pb2 as pb


def record_lines(record: pb.HandoffRecord) -> list[tuple[str, Any]]:
    """(name, text) pairs of the parts that are present."""
    rows: list[tuple[str, Any]] = [(f"tokens[{index}]", _token(token)) for index, token in enumerate(record.tokens)]
    for name in ("cached_tokens", "modality_tokens"):
        if record.HasField(name):
            known = [f"{field.name} {value}" for field, value in getattr(record, name).ListFields()]
            rows.append((name, ", ".join(known) or "present, nothing known"))
    if record.HasField("sampling_mask"):
        cut = ", truncated" if record.sampling_mask.truncated else ""
        rows.append(("sampling_mask", f"{len(record.sampling_mask.token_ids)} tokens{cut}"))
    if record.HasField("speculative"):
        state = record.speculative
        parts = [f"{len(state.topk_index)} candidates"]
        if state.HasField("hidden_states"):
            dtype = pb.DataType.Name(state.hidden_states.dtype).removeprefix("DATA_TYPE_")
            parts.append(f"hidden states {dtype} {list(state.hidden_states.shape)}")
        if state.dsa_topk_indices:
            parts.append(f"{len(state.dsa_topk_indices)} sparse attention indices")
        rows.append(("speculative", ", ".join(parts)))
    if record.HasField("kv_checksum"):
        sums = record.kv_checksum
        rows.append(("kv_checksum", f"digest {sums.digest:016x}, layout {sums.layout_signature:016x}"))
    if record.HasField("finish_reason"):
        rows.append(("finish_reason", pb.FinishReason.Name(record.finish_reason).removeprefix("FINISH_REASON_")))
    if record.HasField("reasoning_tokens"):
        rows.append(("reasoning_tokens", record.reasoning_tokens))
    if record.HasField("customized_info"):
        rows.append(("customized_info", f"{len(record.customized_info)} bytes"))
    return rows


def _token(token: pb.SampledToken) -> str:
    parts = [f"id {token.token_id}"]
    if token.HasField("logprob"):
        parts.append(f"logprob {token.logprob:.6g}")
    if token.HasField("top_logprobs"):
        parts.append(f"{len(token.top_logprobs.values)} top logprobs")
    if token.HasField("token_ids_logprobs"):
        parts.append(f"{len(token.token_ids_logprobs.values)} listed logprobs")
    return ", ".join(parts)
