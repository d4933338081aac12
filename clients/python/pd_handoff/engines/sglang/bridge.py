"""Between the store and rows of SGLang's own class, while only one side of a deployment has changed over."""

from __future__ import annotations

import importlib
from typing import Any

from pd_handoff.engines.sglang.request import SELECTED_MARK
from pd_handoff.engines.sglang.row import RowMismatch, RowShape, row_from_record
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


def record_from_row(
    row: tuple[Any, ...], req: Any, *, speculative_topk: int = 0, kv_checksum: tuple[int, int] | None = None
) -> record_pb2.HandoffRecord:
    """The record of what SGLang's `get_buf` gave on the prefill side. A row knows neither lengths nor what is absent;
    the request, and the engine's `speculative_topk` (0 without speculation), say what of it counts.

    Raises InvalidRecord when the row is of another room than the request.
    """
    room = int(row[13].numpy()[0])
    if room != req.bootstrap_room:
        raise invalid_record("room", f"the row is of room {room}, the request of room {req.bootstrap_room}")
    token = Token(row[0][0])
    if req.return_logprob:
        count = req.logprob.top_logprobs_num
        token.logprob = row[2][0]
        token.top_logprobs = Logprobs(row[4][:count], row[5][:count]) if count else None
    counters = row[1].tolist()
    record = Record([token], CachedTokens(*counters[:4]), ModalityTokens(*counters[4:7]))
    if req.return_sampling_mask:
        length = int(row[6][0])
        record.sampling_mask = SamplingMask(row[7][:length])
        if req.sampling_logprobs_mode == "support" or length == 1:
            record.sampling_mask.logprobs = row[8][:length]
        else:
            record.customized_info = SELECTED_MARK + row[8][:1].numpy().tobytes()
    if speculative_topk:
        sparse = () if row[12] is None or bool((row[12] < 0).all()) else row[12]
        record.speculative = SpeculativeState(row[9][:speculative_topk], row[10][:speculative_topk], row[11], sparse)
    if kv_checksum is not None and any(kv_checksum):
        record.kv_checksum = KvChecksum(*kv_checksum)
    message: record_pb2.HandoffRecord = record.to_proto()
    return message


def shape_of(buffers: Any) -> RowShape:
    """The sizes of SGLang's own buffers."""
    mask = buffers.output_token_sampling_mask_idx
    sparse = buffers.output_dsa_topk_indices
    return RowShape(
        buffers.output_hidden_states.shape[1],
        buffers.output_hidden_states.dtype,
        0 if mask is None else mask.shape[1],
        buffers.output_top_logprobs_val.shape[1],
        0 if sparse is None else sparse.shape[1],
        mask is not None,
    )


def write_row(buffers: Any, idx: int, record: record_pb2.HandoffRecord, room: int) -> None:
    """Writes a record from the store into row `idx` of SGLang's own buffers on the decode side, all of the row, so
    that nothing of a former owner stays.

    Raises RowMismatch for what such a row cannot hold: too long a list, a counter beyond int32, or room 0, which
    SGLang takes for "not written"."""
    if room == 0:
        raise RowMismatch("SGLang's own rows cannot hold room 0")
    row = row_from_record(record, room, shape_of(buffers))
    torch: Any = importlib.import_module("torch")
    for name, value in zip(ROW, row, strict=True):
        if value is None:
            continue
        target = getattr(buffers, name)[idx]
        if target.shape != value.shape or target.dtype != value.dtype:
            raise RowMismatch(
                f"{name} of the record is {list(value.shape)} {value.dtype}, SGLang's row {list(target.shape)}"
            )
    for name, value in zip(ROW, row, strict=True):
        if value is not None:
            # uint64 has no copy on older torch; the bits are the same.
            target = getattr(buffers, name)[idx]
            unsigned = value.dtype is torch.uint64
            (target.view(torch.int64) if unsigned else target).copy_(value.view(torch.int64) if unsigned else value)
    if buffers.kv_checksum is not None:
        checksum = record.kv_checksum
        digits = torch.zeros(8, dtype=torch.int64)
        digits[0], digits[1] = _signed(checksum.digest), _signed(checksum.layout_signature)
        buffers.kv_checksum[idx].view(torch.int64).copy_(digits)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


ROW = (
    "output_ids",
    "cached_tokens",
    "output_token_logprobs_val",
    "output_token_logprobs_idx",
    "output_top_logprobs_val",
    "output_top_logprobs_idx",
    "output_token_sampling_mask_len",
    "output_token_sampling_mask_idx",
    "output_token_sampling_logprobs",
    "output_topk_p",
    "output_topk_index",
    "output_hidden_states",
    "output_dsa_topk_indices",
    "bootstrap_room",
)
