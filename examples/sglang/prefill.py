"""The prefill process: SGLang's order of calls around its metadata buffers, alloc -> set_buf -> send.

python -m examples.sglang.prefill STORE ours|sglang
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from pd_handoff.engines.sglang import (
    SlotAllocator,
    StoreLink,
    StoreMetadataBuffers,
    key_of,
    record_from_row,
)

from examples.sglang.engine import load, sampling_masks
from examples.sglang.requests import HIDDEN_DTYPE, HIDDEN_SIZE, MASK_TOKENS, SPARSE, TOPK, Order, compute, request_of
from examples.sglang.samples import sample_rooms
from examples.sglang.wire import serve

ROWS = 4


class Prefill:
    """One prefill scheduler, with the adapter's buffers or with SGLang's own."""

    def __init__(self, store: str, side: str) -> None:
        self.utils, self.queues = load("srt.disaggregation.utils"), load("srt.disaggregation.prefill")
        self.store = store
        self.ours = side == "ours"
        self.computed = 0
        self.start()

    def start(self) -> None:
        """All that a process has in memory is new."""
        self.link = StoreLink(self.store)
        sizes = (ROWS, HIDDEN_SIZE, HIDDEN_DTYPE, MASK_TOKENS, 128, None, SPARSE)
        self.buffers: Any
        if self.ours:
            self.allocator: Any = SlotAllocator(ROWS)
            self.buffers = StoreMetadataBuffers(*sizes, kv_checksum_enabled=True, link=self.link)
        else:
            self.allocator = self.utils.ReqToMetadataIdxAllocator(ROWS)
            with sampling_masks():
                self.buffers = self.utils.MetadataBuffers(*sizes, kv_checksum_enabled=True)
        self.queue = SimpleNamespace(req_to_metadata_buffer_idx_allocator=self.allocator, metadata_buffers=self.buffers)

    def restart(self) -> None:
        """As if the process had ended and come back."""
        self.close()
        self.start()

    def prefill(self, order: dict[str, Any]) -> dict[str, Any]:
        """One request, from the bootstrap queue to the end of its transfer."""
        made = Order(**order)
        req = request_of(made)
        if not self.queues.PrefillBootstrapQueue.ensure_metadata_buffer(self.queue, req):
            raise RuntimeError("no row is free")
        self._settle()
        compute(req, made)
        self.computed += 1
        if self.utils.is_aborted(req):  # SGLang retires it here, with its row
            self.queues.maybe_release_metadata_buffer(req, self.allocator)
            return self._end(req)
        self.buffers.set_kv_checksum(req, made.seed + 1, 77)  # send_kv_chunk's order: checksum, then set_buf, then send
        self.buffers.set_buf(req)
        self._settle()
        if not self.ours:
            self._send(req, made)
        self.queues.maybe_release_metadata_buffer(req, self.allocator)
        return self._end(req)

    def _settle(self) -> None:
        """SGLang's loop goes on with other requests and meets the store's answer at its next poll. This one waits."""
        if self.ours:
            self.buffers.settle()

    def _end(self, req: Any) -> dict[str, Any]:
        reason = req.finished_reason
        return {"free": self.allocator.available_size(), "aborted": None if reason is None else reason.message}

    def abort(self, order: dict[str, Any], message: str, status: int) -> None:
        """What the bootstrap queue does to a request whose input is too long: it never gets a row."""
        self.utils.prepare_abort(request_of(Order(**order)), message, status_code=status)

    def reject(self, order: dict[str, Any], message: str) -> None:
        """What the scheduler does to a request that it rejects at its door, for its grammar, say: SGLang's
        `prepare_abort` is not called."""
        req = request_of(Order(**order))
        with load("srt.runtime_context").get_parallel().override(tp_rank=0):
            req.set_finish_with_abort(message)
        req.update_finish_state()

    def state(self) -> dict[str, int]:
        """How many prefills were paid for, and which rows are free."""
        return {"computed": self.computed, "free": self.allocator.available_size()}

    def close(self) -> None:
        """The link."""
        if self.ours:
            self.buffers.close()
        self.link.close()

    def _send(self, req: Any, made: Order) -> None:
        """In the place of RDMA, for rows of SGLang's own class: the row of this request goes to the store."""
        idx = req.metadata_buffer_index
        record = record_from_row(
            self.buffers.get_buf(idx),
            req,
            speculative_topk=TOPK if made.eagle else 0,
            kv_checksum=self.buffers.get_kv_checksum(idx),
        )
        self.link.prefill.put_once(key_of(req), record)


def main() -> None:
    """Serves the parent."""
    prefill = Prefill(*sys.argv[1:])
    try:
        serve(
            {
                "prefill": prefill.prefill,
                "abort": prefill.abort,
                "reject": prefill.reject,
                "restart": prefill.restart,
                "sample_rooms": sample_rooms,
                "state": prefill.state,
            }
        )
    finally:
        prefill.close()


if __name__ == "__main__":
    main()
