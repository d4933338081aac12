"""Both sides of a deployment in one process, with the real class, or with the adapter and a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from pd_handoff.engines.sglang import RowShape, SlotAllocator, StoreLink, StoreMetadataBuffers

from examples.sglang.engine import load, sampling_masks

SHAPE = RowShape(16, torch.bfloat16, 64, output_dsa_topk_indices_dim=8)


def real_buffers(shape: RowShape = SHAPE, size: int = 1) -> Any:
    """SGLang's own class."""
    with sampling_masks(shape.sampling_mask):
        return load("srt.disaggregation.utils").MetadataBuffers(size, *_sizes(shape), kv_checksum_enabled=True)


def _sizes(shape: RowShape) -> tuple[Any, ...]:
    return (
        shape.hidden_size,
        shape.hidden_states_dtype,
        shape.max_sampling_mask_tokens,
        shape.max_top_logprobs_num,
        None,
        shape.output_dsa_topk_indices_dim,
    )


def bits(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    """What is compared of a tensor: dtype, shape, and every bit."""
    if tensor is None:
        return None
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()


def commit(buffers: Any, req: Any, idx: int = 0, *, speculative: bool = False) -> Any:
    """SGLang's own commit of row `idx` to a decode request."""
    queue = load("srt.disaggregation.decode").DecodeTransferQueue
    nothing = lambda *_: None  # noqa: E731
    scheduler = SimpleNamespace(
        kv_checksum_computer=None, batch_result_processor=SimpleNamespace(_maybe_update_reasoning_tokens=nothing)
    )
    itself = SimpleNamespace(
        scheduler=scheduler,
        metadata_buffers=buffers,
        spec_algorithm=SimpleNamespace(is_none=lambda: not speculative),
        _commit_hicache_local_restore_to_req=nothing,
    )
    entry = decode_entry(req, idx)
    queue._commit_transfer_to_req(itself, entry)
    return req


def decode_entry(req: Any, idx: int = 0) -> Any:
    """What SGLang's queues hold of a request that waits for its transfer."""
    receiver = SimpleNamespace(clear=lambda: None)
    return SimpleNamespace(req=req, metadata_buffer_index=idx, is_rebootstrap=False, kv_receiver=receiver)


class Settled(StoreMetadataBuffers):
    """Buffers whose calls are waited for, as no scheduler does: what the store said is known when they return."""

    def reserve(self, req: Any) -> Any:  # a bool where a future is expected
        """Whether the slot is held."""
        held = super().reserve(req)
        self.settle()
        return held.result(30.0)

    def set_buf(self, req: Any) -> Any:
        """Whether decode will get the record."""
        published = super().set_buf(req)
        self.settle()
        return published.result(30.0)


class Row:
    """A row that was read, for SGLang's commit to read again."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    def get_buf(self, idx: int) -> tuple[Any, ...]:
        """The row."""
        return self._row


class Sides:
    """Prefill and decode with the adapter, as two processes would have them."""

    def __init__(self, target: str, shape: RowShape = SHAPE) -> None:
        self.shape = shape
        self.prefill = Settled(4, *_sizes(shape), kv_checksum_enabled=True, link=StoreLink(target))
        self.decode = StoreMetadataBuffers(
            4, *_sizes(shape), kv_checksum_enabled=True, link=StoreLink(target, wait=20.0)
        )
        self.prefill_slots, self.decode_slots = SlotAllocator(4), SlotAllocator(4)

    def hand_over(self, source: Any, req: Any, *, checksum: tuple[int, int] | None = None) -> tuple[Any, ...]:
        """The way of one request: alloc, set_buf; alloc, bind, get_buf; and both rows freed again."""
        self.publish(source, checksum=checksum)
        idx = self.decode_slots.alloc()
        assert idx is not None
        self.decode.bind(idx, req)
        row = self.decode.get_buf(idx)
        if checksum is not None:
            assert self.decode.get_kv_checksum(idx) == checksum
        self.decode.clear_slot(idx)
        assert self.decode_slots.free(idx)
        return row

    def publish(self, source: Any, *, checksum: tuple[int, int] | None = None) -> bool:
        """Prefill's half."""
        source.metadata_buffer_index = idx = self.prefill_slots.alloc()
        assert idx is not None
        if checksum is not None:
            self.prefill.set_kv_checksum(source, *checksum)
        done: bool = self.prefill.set_buf(source)
        assert self.prefill_slots.free(idx)
        return done

    def close(self) -> None:
        """Both links."""
        self.prefill.close()
        self.decode.close()
