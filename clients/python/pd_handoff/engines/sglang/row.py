"""The record -> what SGLang's decode side reads: the 14 tensors of `MetadataBuffers.get_buf`."""

from __future__ import annotations

import importlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pd_handoff._values import exact
from pd_handoff.engines.sglang.request import selected_logprob
from pd_handoff.errors import HandoffError
from pd_handoff.tensor import DataType, Tensor
from pd_handoff.v1 import record_pb2

PAD = 16  # SGLang's short rows: 64 bytes of int32, the least that RDMA moves
_INT32_MAX = 2**31 - 1
_TORCH_NAMES: dict[int, str] = {
    DataType.FLOAT32: "float32",
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT8_E4M3: "float8_e4m3fn",
    DataType.FLOAT8_E5M2: "float8_e5m2",
}


class RowMismatch(HandoffError):  # noqa: N818  # as with the other errors of the client
    """The record does not fit this engine's configuration: hidden states of another dtype or shape, another number of
    sparse attention indices, or a part missing that the request asks for. Prefill and decode run with different
    settings."""

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message, **{"reason": "ROW_MISMATCH", "code": "INTERNAL", **details})


@dataclass(frozen=True)
class RowShape:
    """The sizes with which an engine constructs its metadata buffers; names are those of SGLang's constructor.

    Attributes:
        hidden_size: elements of a row of hidden states.
        hidden_states_dtype: their torch dtype.
        max_sampling_mask_tokens: token ids of a sampling mask.
        max_top_logprobs_num: top logprobs of a row; a record with more gets a longer row.
        output_dsa_topk_indices_dim: sparse attention indices; 0 when the model has none.
        sampling_mask: False leaves the three mask tensors None, as SGLang does by default.
    """

    hidden_size: int
    hidden_states_dtype: Any
    max_sampling_mask_tokens: int
    max_top_logprobs_num: int = 128
    output_dsa_topk_indices_dim: int = 0
    sampling_mask: bool = True

    def check(self, record: record_pb2.HandoffRecord) -> None:
        """Raises RowMismatch when the record's tensors are not of these sizes: nothing is cast or broadcast."""
        state = record.speculative
        if state.HasField("hidden_states"):
            shape = tuple(state.hidden_states.shape)
            name = _TORCH_NAMES.get(state.hidden_states.dtype, "of an unknown type")
            expected = str(self.hidden_states_dtype).rpartition(".")[2]
            if shape != (self.hidden_size,) or name != expected:
                raise RowMismatch(
                    f"hidden states are {name} of shape {list(shape)}, this engine's rows are {expected} of shape "
                    f"[{self.hidden_size}]; they are handed over as they are, never cast or broadcast"
                )
        given, rows = len(state.dsa_topk_indices), self.output_dsa_topk_indices_dim
        if given and given != rows:
            raise RowMismatch(f"{given} sparse attention indices, this engine's rows have {rows}")


def row_from_record(
    record: record_pb2.HandoffRecord, room: int, shape: RowShape, *, top_logprobs_num: int | None = None
) -> tuple[Any, ...]:
    """What `get_buf` gives for a row that was clean before this record was written to it: new torch tensors on the
    CPU, of SGLang's order, dtypes and sizes. Parts that the record leaves out are as in a clean row (zeros; -1 for
    sparse attention indices), the tail behind a list is zeros.

    Three rows differ from SGLang's, where its own would lose or invent something. More top logprobs than
    `max_top_logprobs_num`, or more candidates or mask ids than a row: the row is as long as the list. Fewer than
    `top_logprobs_num` (what the decode request will cut out of the row): the row ends with them, so that no padding
    is taken for logprobs. Counters beyond int32: the row is int64.

    Raises RowMismatch when the record's tensors are not of `shape`'s sizes.
    """
    shape.check(record)
    torch: Any = importlib.import_module("torch")
    token, cached, modality = record.tokens[0], record.cached_tokens, record.modality_tokens
    counters = [
        cached.total,
        cached.device,
        cached.host,
        cached.storage,
        modality.image,
        modality.audio,
        modality.video,
    ]
    wide = max(counters) > _INT32_MAX
    top = token.top_logprobs
    count = len(top.token_ids)
    width = shape.max_top_logprobs_num
    if top_logprobs_num is not None and count < min(top_logprobs_num, width):
        width = count
    state = record.speculative
    return (
        _ints(torch, [token.token_id], PAD),
        _longs(torch, counters, PAD) if wide else _ints(torch, counters, PAD),
        _floats(torch, exact.float32_bytes(token, "logprob"), PAD),
        _ints(torch, [token.token_id] if token.HasField("logprob") else [], PAD),
        _floats(torch, exact.float32_bytes(top, "values"), width),
        _ints(torch, top.token_ids, width),
        *(_mask(torch, record, shape.max_sampling_mask_tokens) if shape.sampling_mask else (None, None, None)),
        _floats(torch, exact.float32_bytes(state, "topk_p"), PAD),
        _longs(torch, state.topk_index, PAD),
        _hidden(torch, state, shape),
        _sparse(torch, state, shape.output_dsa_topk_indices_dim),
        torch.frombuffer(bytearray(struct.pack("<Q56x", room)), dtype=torch.uint64),
    )


def blank_row(room: int, shape: RowShape) -> tuple[Any, ...]:
    """A clean row: nothing was handed over."""
    return row_from_record(record_pb2.HandoffRecord(tokens=[record_pb2.SampledToken()]), room, shape)


def _mask(torch: Any, record: record_pb2.HandoffRecord, width: int) -> tuple[Any, Any, Any]:
    mask = record.sampling_mask
    logprobs = selected_logprob(record) or exact.float32_bytes(mask, "logprobs")
    return (
        _ints(torch, [len(mask.token_ids)], PAD),
        _ints(torch, mask.token_ids, width),
        _floats(torch, logprobs, width),
    )


def _hidden(torch: Any, state: record_pb2.SpeculativeState, shape: RowShape) -> Any:
    if state.HasField("hidden_states"):
        return Tensor.from_proto(state.hidden_states).to_torch()
    return torch.zeros(shape.hidden_size, dtype=shape.hidden_states_dtype)


def _sparse(torch: Any, state: record_pb2.SpeculativeState, width: int) -> Any:
    if not width:
        return None
    if not state.dsa_topk_indices:
        return torch.full((width,), -1, dtype=torch.int32)
    return _ints(torch, state.dsa_topk_indices, width)


def _ints(torch: Any, values: Iterable[int], width: int) -> Any:
    return _row(torch, array("i", values).tobytes(), 4, width, torch.int32)


def _longs(torch: Any, values: Sequence[int], width: int) -> Any:
    return _row(torch, array("q", values).tobytes(), 8, width, torch.int64)


def _floats(torch: Any, data: bytes, width: int) -> Any:
    return _row(torch, data, 4, width, torch.float32)


def _row(torch: Any, data: bytes, size: int, width: int, dtype: Any) -> Any:
    if not data and not width:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(data.ljust(width * size, b"\0")), dtype=dtype)
