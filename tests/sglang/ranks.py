"""One of two ranks of a prefill or decode scheduler, with SGLang's own queues and its own agreement between ranks (gloo
over loopback), patched. Prints how each request ended here, as JSON.

python -m tests.sglang.ranks prefill|decode RANK MEETING STORE
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch.distributed as dist
from pd_handoff.engines.sglang import SlotAllocator, StoreLink, StoreMetadataBuffers
from pd_handoff.retries import NO_RETRIES

from examples.sglang.decode import Decode
from examples.sglang.engine import load
from examples.sglang.requests import HIDDEN_DTYPE, HIDDEN_SIZE, MASK_TOKENS, SPARSE, Order, compute, request_of

RANKS = 2
TURNS = 1_000_000  # of a scheduler's loop; each has an agreement in it
ROOMS = {"first": 9001, "malformed": 9002, "too-wide": 9003, "last": 9004}
AWAY = {"away-1": 9011, "away-2": 9012}
READ = {"whole": 9021, "aborted": 9022}
BOOTSTRAP_ROW = -1


class Manager:
    """SGLang's CommonKVManager, as far as a sender's state goes; what is sent has arrived."""

    is_dummy_cp_rank = enable_all_cp_ranks_for_transfer = defer_decode_allocation = reports_transfer_latency = False
    deferred_bootstrap = sender_trace_module = _staging_ctx = _dcp_pack_max_tokens = None
    kv_shard_size = 1
    kv_item_lens_sum = state_item_lens_sum = 0

    def __init__(self) -> None:
        theirs = load("srt.disaggregation.common.conn").CommonKVManager
        self.update_status = theirs.update_status.__get__(self)
        self.record_failure = theirs.record_failure.__get__(self)
        self.check_status = theirs.check_status.__get__(self)
        self.request_status: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}
        self.failure_lock = threading.Lock()
        self.req_to_decode_prefix_len: dict[int, int] = {}
        self.transfer_infos: dict[int, Any] = {}
        self._staging_outstanding: dict[int, int] = {}
        self._deferred_ack_targets: dict[int, Any] = {}
        self._deferred_ack_poisoned_rooms: set[int] = set()

    def get_kv_replica_factor(self) -> int:
        """Of one rank."""
        return 1

    def prepare_send_state_indices(self, indices: Any) -> Any:
        """None are sent."""
        return indices

    def add_transfer_request(self, room: int, *_: Any, **__: Any) -> None:
        """The KV cache arrives at once."""
        self.update_status(room, 4)

    def _maybe_ack_drained_abort(self, room: int) -> None:
        pass


class Prefill:
    """A prefill scheduler of one rank: bootstrap queue, waiting queue, in-flight queue, in SGLang's order."""

    def __init__(self, rank: int, store: str, *, patience: float) -> None:
        module = load("srt.disaggregation.prefill")
        self.manager = Manager()
        self.prefilled: list[str] = []
        link = StoreLink(store, publishes=rank == 0, retries=NO_RETRIES, timeout=patience)
        self.buffers = StoreMetadataBuffers(4, HIDDEN_SIZE, HIDDEN_DTYPE, MASK_TOKENS, 128, None, SPARSE, link=link)
        nothing = lambda *_, **__: None  # noqa: E731
        solo = [dist.new_group([other]) for other in range(RANKS)][rank]
        self.streamed: list[Any] = []

        class Scheduler(module.SchedulerDisaggregationPrefillMixin):  # type: ignore[misc, name-defined]
            def send_kv_chunk(scheduler, req: Any, **_: Any) -> None:  # noqa: N805
                self.buffers.set_buf(req)
                req.disagg_kv_sender.send(np.zeros(1, dtype=np.int32), None)

        self.scheduler = scheduler = Scheduler()
        scheduler.__dict__.update(
            attn_cp_cpu_group=solo,
            attn_tp_cpu_group=dist.group.WORLD,
            waiting_queue=[],
            disagg_prefill_inflight_queue=[],
            disagg_prefill_pending_chunk_rids=set(),
            req_to_metadata_buffer_idx_allocator=SlotAllocator(4),
            scheduler_stage_metrics=None,
            processed_tokens_counter=0,
            tree_cache=SimpleNamespace(finish=nothing),
            output_streamer=SimpleNamespace(stream_output=lambda reqs, *_: self.streamed.extend(reqs)),
            metrics_reporter=SimpleNamespace(enable_metrics=False),
            token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
            _release_aborted_request=nothing,
        )
        queue = module.PrefillBootstrapQueue.__new__(module.PrefillBootstrapQueue)
        queue.__dict__.update(
            queue=[],
            pp_size=1,
            scheduler=scheduler,
            scheduler_stage_metrics=None,
            metadata_buffers=self.buffers,
            req_to_metadata_buffer_idx_allocator=scheduler.req_to_metadata_buffer_idx_allocator,
            kv_manager=self.manager,
            transfer_backend=None,
            bootstrap_port=1,
            max_input_len=4096,
            can_prefill_before_bootstrap=lambda _: False,  # it is not optimistic
        )
        module.get_kv_class = lambda *_: load("srt.disaggregation.common.conn").CommonKVSender
        scheduler.disagg_prefill_bootstrap_queue = queue
        module.release_kv_cache = nothing  # there is none

    def add(self, order: Order, malformed: bool) -> None:
        """A request has come, and decode's half of the handshake with it."""
        req = request_of(order)
        req.metadata_buffer_index = BOOTSTRAP_ROW
        req.malformed, req.order = malformed, order
        self.scheduler.disagg_prefill_bootstrap_queue.add(req, 1)
        self.manager.update_status(order.room, 2)

    def turn(self) -> None:
        """One of the scheduler's loop."""
        scheduler = self.scheduler
        scheduler.waiting_queue.extend(scheduler.disagg_prefill_bootstrap_queue.pop_bootstrapped())
        scheduler.resolve_waiting_queue_bootstrap()
        batch, scheduler.waiting_queue = scheduler.waiting_queue, []
        for req in batch:
            compute(req, req.order)
            self.prefilled.append(req.rid)
            if req.malformed:
                req.logprob.output_top_logprobs_val[0].pop()
            scheduler.disagg_prefill_inflight_queue.append(req)
            scheduler.send_kv_chunk(req, last_chunk=True)
        scheduler.process_disagg_prefill_inflight_queue()

    def ended(self) -> dict[str, Any]:
        """Whatever has left the queues."""
        return {req.rid: _ending(req) for req in self.streamed}


def prefill(rank: int, store: str, rooms: dict[str, int], patience: float) -> dict[str, Any]:
    """All requests, until each has ended."""
    side = Prefill(rank, store, patience=patience)
    for rid, room in rooms.items():
        top = 129 if rid == "too-wide" else 3
        side.add(Order(rid, room, logprobs=True, top_logprobs=top, seed=room), rid == "malformed")
    for _ in range(TURNS):
        if len(side.streamed) == len(rooms):
            break
        side.turn()
    side.buffers.link.settle()
    free = side.scheduler.req_to_metadata_buffer_idx_allocator.available_size()
    side.buffers.close()
    return {"ended": side.ended(), "prefilled": side.prefilled, "free": free}


def decode(store: str) -> dict[str, Any]:
    """Both requests, until each has ended; tells when it waits for their records."""
    side = Decode(store, "ours")
    reqs = {}
    for rid, room in READ.items():
        order = Order(rid, room, logprobs=True, top_logprobs=3, seed=room)
        side.expect(vars(order))
        reqs[rid] = side.entries[rid].req
        side.kv_arrived(rid)
    dist.barrier()
    print(json.dumps({"waiting": True}), flush=True)
    turns = 0
    while side.transfers.queue and turns < TURNS:
        side.transfers.pop_transferred()
        turns += 1
    ended = {rid: _ending(req) for rid, req in reqs.items()}
    free = side.allocator.available_size()
    side.close()
    return {"ended": ended, "free": free}


def _ending(req: Any) -> list[Any]:
    reason = req.finished_reason
    if hasattr(reason, "status_code"):
        return [int(reason.status_code), reason.message]
    return [200, list(req.output_ids)]


def main() -> None:
    """Joins the other rank, and reports."""
    role, rank, meeting, store = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=patience)
    with ExitStack() as stack:
        context = load("srt.runtime_context")
        ranks = {"tp_rank": rank, "attn_tp_rank": rank, "attn_cp_rank": 0, "pp_rank": 0, "pp_size": 1}
        stack.enter_context(context.get_parallel().override(**ranks, num_dp_ranks=1))
        if role == "decode":
            found = decode(store)
        else:
            rooms, seconds = (AWAY, 0.5) if role == "away" else (ROOMS, 10.0)
            found = prefill(rank, store, rooms, seconds)
        print(json.dumps(found), flush=True)
        dist.barrier()
    os._exit(0)  # SGLang's modules leave threads


if __name__ == "__main__":
    main()
