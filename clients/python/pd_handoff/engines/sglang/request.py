"""A request, as SGLang's prefill holds it -> the record.

Reads what `MetadataBuffers.set_buf` of 0.5.23 reads, and the logprobs of listed token ids, which that class leaves
behind."""

from __future__ import annotations

import struct
from typing import Any

from pd_handoff.errors import invalid_record
from pd_handoff.record import (
    CachedTokens,
    KvChecksum,
    Logprobs,
    ModalityTokens,
    Record,
    SamplingMask,
    SpeculativeState,
    Token,
)
from pd_handoff.v1 import record_pb2

# customized_info of a record whose sampling mask came with one logprob, that of the token taken (SGLang's mode
# "selected"): a record's mask has none, or one an id. The bytes are this mark and a little-endian float32.
SELECTED_MARK = b"sgl\x01"
SELECTED_BYTES = len(SELECTED_MARK) + 4


def record_from_request(req: Any, *, kv_checksum: tuple[int, int] | None = None) -> record_pb2.HandoffRecord:
    """The record of a request that has been prefilled. `kv_checksum` is (digest, layout signature).

    Raises InvalidRecord, naming the field, where SGLang's class would pad, cut, broadcast or overwrite: lists of
    unequal lengths, numbers that the record cannot hold."""
    if len(req.output_ids) == 0:
        raise invalid_record("tokens", "the request has no output token")
    token = Token(token_id=req.output_ids[0])
    if req.return_logprob:
        _read_logprobs(token, req.logprob, req.output_ids[0])
    image, audio, video = _modality_tokens(req)
    record = Record(
        tokens=[token],
        cached_tokens=CachedTokens(
            req.cached_tokens, req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage
        ),
        modality_tokens=ModalityTokens(image, audio, video),
    )
    if req.return_sampling_mask:
        if req.sampling_mask_rows is None:
            raise invalid_record("sampling_mask", "the request asks for one, and no rows of it are queued")
        _read_sampling_mask(record, req.sampling_mask_rows.view())
    if req.hidden_states_tensor is not None:
        record.speculative = _speculative(req)
    if kv_checksum is not None:
        record.kv_checksum = KvChecksum(*kv_checksum)
    message: record_pb2.HandoffRecord = record.to_proto()
    return message


def _modality_tokens(req: Any) -> tuple[int, int, int]:
    """(image, audio, video) tokens of the prompt."""
    counts: tuple[int, int, int]
    if hasattr(req, "get_mm_token_counts"):
        counts = req.get_mm_token_counts()
    else:  # before 0.5.23
        inputs = req.multimodal_inputs
        counts = inputs.compute_mm_token_counts() if inputs else (0, 0, 0)
    return counts


def _read_logprobs(token: Token, logprob: Any, token_id: int) -> None:
    token.logprob = _last(logprob.output_token_logprobs_val)
    named = _last(logprob.output_token_logprobs_idx)
    if named is not None and named != token_id:
        raise invalid_record("tokens[0].logprob", f"belongs to token {named}, the request's token is {token_id}")
    token.top_logprobs = _pairs("top_logprobs", logprob.output_top_logprobs_val, logprob.output_top_logprobs_idx)
    token.token_ids_logprobs = _pairs(
        "token_ids_logprobs",
        getattr(logprob, "output_token_ids_logprobs_val", None),
        getattr(logprob, "output_token_ids_logprobs_idx", None),
    )


def _pairs(name: str, values: Any, token_ids: Any) -> Logprobs | None:
    value_row, id_row = _last(values), _last(token_ids)
    if value_row is None and id_row is None:
        return None
    count, ids = (0 if row is None else len(row) for row in (value_row, id_row))
    if count != ids:
        raise invalid_record(f"tokens[0].{name}", f"{count} values for {ids} token ids")
    return Logprobs(value_row, id_row)


def _last(rows: Any) -> Any:
    """The row of the hand-off token; None where SGLang has no list, or an empty one. An optimistic prefill that is done
    again leaves the rows of its former rounds in front."""
    return None if rows is None or len(rows) == 0 else rows[-1]


def _read_sampling_mask(record: Record, chunk: Any) -> None:
    rows, every = len(chunk.lengths), len(chunk.token_ids)
    if rows == 0:
        raise invalid_record("sampling_mask", "the request asks for one, and no rows of it are queued")
    # The last row: an optimistic prefill that is done again leaves those of its former rounds in front.
    ids = int(chunk.lengths[-1])
    if len(chunk.logprobs) == every:
        logprobs = ids
    elif len(chunk.logprobs) in (0, rows):
        logprobs = len(chunk.logprobs) // rows
    else:
        raise invalid_record("sampling_mask", f"{len(chunk.logprobs)} logprobs for {every} token ids of {rows} rows")
    taken = chunk.logprobs[len(chunk.logprobs) - logprobs :]
    # Whoever reads the rows later appends to the very buffers that these are views of; the record copies them at once.
    record.sampling_mask = SamplingMask(chunk.token_ids[every - ids :])
    if logprobs == ids:
        record.sampling_mask.logprobs = taken
    elif logprobs == 1:
        record.customized_info = SELECTED_MARK + taken.astype("<f4", copy=False).tobytes()


def _speculative(req: Any) -> SpeculativeState:
    state = SpeculativeState(hidden_states=req.hidden_states_tensor)
    if (req.output_topk_p is None) != (req.output_topk_index is None):
        absent = "topk_p" if req.output_topk_p is None else "topk_index"
        raise invalid_record(f"speculative.{absent}", "absent, while its counterpart is there")
    if req.output_topk_p is not None:
        state.topk_p, state.topk_index = req.output_topk_p, req.output_topk_index
        values, indices = req.output_topk_p.numel(), req.output_topk_index.numel()
        if values != indices:
            raise invalid_record("speculative.topk_p", f"{values} probabilities for {indices} indices")
    if req.output_dsa_topk_indices is not None:
        state.dsa_topk_indices = req.output_dsa_topk_indices
    return state


def selected_logprob(record: record_pb2.HandoffRecord) -> bytes | None:
    """Little-endian float32 of the one logprob that a mask of mode "selected" came with; None when there is none."""
    info = record.customized_info
    if len(info) == SELECTED_BYTES and info.startswith(SELECTED_MARK):
        return info[len(SELECTED_MARK) :]
    return None


def mask_logprobs(record: record_pb2.HandoffRecord) -> list[float]:
    """The logprobs of the record's sampling mask as SGLang has them: one an id, the selected token's alone, or none."""
    selected = selected_logprob(record)
    return list(struct.unpack("<f", selected)) if selected else list(record.sampling_mask.logprobs)
