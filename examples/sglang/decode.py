"""The decode process: SGLang's own transfer queue, get_buf -> commit -> clear_slot -> free.

python -m examples.sglang.decode STORE ours|sglang
"""

from __future__ import annotations

import sys
import tempfile
import time
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed
from pd_handoff import DecodeClient
from pd_handoff.engines.sglang import (
    SlotAllocator,
    StoreLink,
    StoreMetadataBuffers,
    key_of,
    write_row,
)

from examples.sglang.engine import load, sampling_masks
from examples.sglang.requests import HIDDEN_DTYPE, HIDDEN_SIZE, MASK_TOKENS, SPARSE, Order, request_of, shown
from examples.sglang.samples import sample_rooms
from examples.sglang.wire import serve

ROWS = 4
PATIENCE = 30.0  # seconds; what is waited for takes milliseconds


class Receiver:
    """The KV cache's way: says that it has come when the parent says so."""

    def __init__(self) -> None:
        self.poll_value = 3  # Transferring

    def poll(self) -> int:
        """SGLang's KVPoll."""
        return self.poll_value

    def send_metadata(self, *_: Any, **__: Any) -> None:
        """Nobody to tell where the KV cache goes."""

    def failure_exception(self) -> None:
        """SGLang asks here why a transfer failed; the KV cache's did not."""

    def clear(self) -> None:
        """Nothing is held."""


class Decode:
    """One decode scheduler, with the adapter's buffers or with SGLang's own."""

    def __init__(self, store: str, side: str) -> None:
        self.utils, self.queues = load("srt.disaggregation.utils"), load("srt.disaggregation.decode")
        self.ours = side == "ours"
        self.store = DecodeClient(store)
        self.entries: dict[str, Any] = {}
        self.streamed: list[Any] = []
        self.transfers = _queue(self.queues)
        self.prealloc = SimpleNamespace(
            transfer_queue=self.transfers,
            metadata_buffers=None,
            _transfer_page_indices=lambda *_: None,
            _num_published_destinations=0,
            req_to_metadata_buffer_idx_allocator=None,
        )
        sizes = (ROWS, HIDDEN_SIZE, HIDDEN_DTYPE, MASK_TOKENS, 128, None, SPARSE)
        self.buffers: Any
        if self.ours:
            self.allocator: Any = SlotAllocator(ROWS)
            self.buffers = StoreMetadataBuffers(*sizes, kv_checksum_enabled=True, link=StoreLink(store, wait=PATIENCE))
        else:
            self.allocator = self.utils.ReqToMetadataIdxAllocator(ROWS)
            with sampling_masks():
                self.buffers = self.utils.MetadataBuffers(*sizes, kv_checksum_enabled=True)
        for holder in (self.transfers, self.prealloc):
            holder.metadata_buffers = self.buffers
            holder.req_to_metadata_buffer_idx_allocator = self.allocator
        self.transfers.scheduler = self._scheduler()

    def expect(self, order: dict[str, Any], retracted_after: int | None = None) -> None:
        """A request has come: it gets its row, and waits for its transfer. `retracted_after` is the last token that a
        retracted request has given its user already."""
        req = request_of(Order(**order))
        if retracted_after is not None:
            req.pd_rebootstrap_in_progress, req.pd_rebootstrap_forced_output_id = True, retracted_after
        entry = self.queues.DecodeRequest(req=req, kv_receiver=Receiver())
        self.queues.DecodePreallocQueue._send_kv_metadata(
            self.prealloc, entry, None, 1, destination=self.queues.KVTransferDestination.HOST
        )
        if retracted_after is not None:  # SGLang would now ask the prefill to compute again; here the parent does
            entry.is_rebootstrap = True
        self.entries[req.rid] = entry
        self.transfers.add(entry)

    def kv_arrived(self, rid: str) -> None:
        """The request's KV cache is here. The row of SGLang's own class arrives with it, from the store."""
        entry = self.entries[rid]
        if not self.ours:
            key = key_of(entry.req)
            record = self.store.get(key, max_wait=PATIENCE).proto
            write_row(self.buffers, entry.metadata_buffer_index, record, key.room)
        entry.kv_receiver.poll_value = 4  # Success

    def poll(self, rid: str) -> str:
        """One turn of the scheduler's loop: where the request is now."""
        self.transfers.pop_transferred()
        return "waiting" if self.entries[rid] in self.transfers.queue else "done"

    def finish(self, rid: str) -> dict[str, Any]:
        """Turns of the loop until the request has left the queue, and what it then has."""
        deadline = time.monotonic() + PATIENCE
        while self.poll(rid) == "waiting":
            if time.monotonic() > deadline:
                raise TimeoutError(f"request {rid} is still waiting")
        req = self.entries.pop(rid).req
        return {**shown(req), "checksum": req.expected_kv_checksum, "streamed": req in self.streamed}

    def drop(self, rid: str) -> None:
        """The user left: the request is aborted while it waits."""
        entry = self.entries.pop(rid)
        self.utils.prepare_abort(entry.req, "the user left", status_code=HTTPStatus.SERVICE_UNAVAILABLE)
        entry.kv_receiver.poll_value = 0  # SGLang's receiver, told to abort
        self.transfers.pop_transferred()
        if self.ours:
            self.buffers.link.settle()

    def state(self) -> dict[str, int]:
        """Which rows are free."""
        return {"free": self.allocator.available_size()}

    def close(self) -> None:
        """The links."""
        if self.ours:
            self.buffers.close()
        self.store.close()

    def _scheduler(self) -> Any:
        nothing = lambda *_, **__: None  # noqa: E731
        return SimpleNamespace(
            enable_decode_hicache=False,
            kv_checksum_computer=True,
            disagg_decode_prealloc_queue=SimpleNamespace(kv_checksum_signature=77),
            batch_result_processor=SimpleNamespace(_maybe_update_reasoning_tokens=nothing),
            output_streamer=SimpleNamespace(stream_output=lambda reqs, *_: self.streamed.extend(reqs)),
            metrics_reporter=SimpleNamespace(enable_metrics=False),
        )


def _queue(queues: Any) -> Any:
    """SGLang's DecodeTransferQueue, without the model's pools: there is no KV cache to release."""

    class Queue(queues.DecodeTransferQueue):  # type: ignore[misc]
        def __init__(self) -> None:
            self.queue: list[Any] = []
            self.gloo_group = torch.distributed.group.WORLD
            self.tp_rank = 0
            self.spec_algorithm = SimpleNamespace(is_none=lambda: False)
            self.enable_staging = self.enable_deferred_kv_release = self.enable_host_receive = False
            self._deferred_releases: list[Any] = []
            self._skipped_checksum_signatures: set[int] = set()

        def _release_request(self, decode_req: Any) -> None:
            pass

        def _clean_hicache_prefetch_resources(self, decode_req: Any) -> None:
            pass

        def _commit_hicache_local_restore_to_req(self, decode_req: Any) -> None:
            pass

    return Queue()


def main() -> None:
    """Serves the parent."""
    with tempfile.TemporaryDirectory(prefix="pd-handoff-") as folder:
        meeting = Path(folder, "meeting").as_uri()
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        decode = Decode(*sys.argv[1:])
        try:
            serve(
                {
                    "expect": decode.expect,
                    "kv_arrived": decode.kv_arrived,
                    "poll": decode.poll,
                    "finish": decode.finish,
                    "drop": decode.drop,
                    "sample_rooms": sample_rooms,
                    "state": decode.state,
                }
            )
        finally:
            decode.close()
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
