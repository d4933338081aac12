"""The ways in which a patched SGLang ends a request of prefill's, other than by its `prepare_abort`, one room each.

python -m tests.sglang.rejecting STORE
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

from pd_handoff.engines.sglang import StoreLink, StoreMetadataBuffers

from examples.sglang.engine import load
from examples.sglang.requests import HIDDEN_DTYPE, HIDDEN_SIZE, MASK_TOKENS, Order, compute, request_of
from tests.sglang.sides import Settled

DOOR, PRIORITY, QUEUED, RESULT, RUNNING = range(9101, 9106)
PRIORITY_TEXT = "Using priority is disabled for this server. Please send a new request without a priority."


def _request(room: int) -> Any:
    req = request_of(Order(f"request-{room}", room))
    req.metadata_buffer_index = -1
    return req


def _scheduler() -> Any:
    """SGLang's Scheduler, without what it is made of."""
    module = load("srt.managers.scheduler")
    scheduler = module.Scheduler.__new__(module.Scheduler)
    nothing = lambda *_, **__: None  # noqa: E731
    scheduler.__dict__.update(
        tree_cache=SimpleNamespace(finish=nothing),
        beam_coordinator=SimpleNamespace(retire_group=nothing),
        output_streamer=SimpleNamespace(stream_output=nothing),
        ipc_channels=SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=nothing)),
        rust_server=None,
        disagg_prefill_pending_chunk_rids=set(),
        req_to_metadata_buffer_idx_allocator=SimpleNamespace(free=nothing),
        enable_priority_scheduling=False,
        abort_on_priority_when_disabled=True,
    )
    return scheduler


def at_the_door(scheduler: Any) -> None:
    """Too long an input, a grammar that does not compile and the like: `set_finish_with_abort`, and then the queue."""
    req = _request(DOOR)
    req.set_finish_with_abort("Input length (9000) exceeds the maximum allowed length (8192)")
    queue = SimpleNamespace(scheduler=scheduler)
    load("srt.disaggregation.prefill").PrefillBootstrapQueue.add(queue, req, 1)


def by_priority(scheduler: Any) -> None:
    """Rejected with an AbortReq to the tokenizer; the request itself says nothing of it."""
    req = _request(PRIORITY)
    req.priority = 3
    module = load("srt.managers.scheduler")
    make, module._make_abort_req = (
        module._make_abort_req,
        lambda _, finished_reason=None: SimpleNamespace(finished_reason=finished_reason),
    )
    scheduler._add_request_to_queue(req)
    module._make_abort_req = make


def in_the_waiting_queue(scheduler: Any) -> None:
    """The user left."""
    scheduler.send_abort_output(SimpleNamespace(finished_reason=None), _request(QUEUED))


def with_its_result(scheduler: Any, buffers: StoreMetadataBuffers) -> None:
    """The prefill was computed, and is discarded."""
    req = _request(RESULT)
    req.metadata_buffer_index = 0
    buffers.reserve(req)
    abort = load("srt.managers.schedule_batch").FINISH_ABORT
    req.to_finish = abort("the sampling mask is too long", 400, "BadRequestError")
    req.disagg_kv_sender = SimpleNamespace(abort=lambda: None)
    scheduler._retire_aborted_prefill_result(req)


def after_it_was_read(buffers: StoreMetadataBuffers) -> None:
    """Decode has the record and runs the request; its user leaves. Nothing is left to be told, and the room is free."""
    source, req = _request(RUNNING), _request(RUNNING)
    compute(source, Order("running", RUNNING))
    source.metadata_buffer_index = 0
    buffers.bind(0, req)
    buffers.set_buf(source)
    buffers.get_buf(0)
    buffers.clear_slot(0)
    req.to_finish = load("srt.managers.schedule_batch").FINISH_ABORT("the user left")
    req.update_finish_state()


def main() -> None:
    """All of them."""
    buffers = Settled(4, HIDDEN_SIZE, HIDDEN_DTYPE, MASK_TOKENS, link=StoreLink(sys.argv[1]))
    scheduler = _scheduler()
    with load("srt.runtime_context").get_parallel().override(tp_rank=0):
        at_the_door(scheduler)
        by_priority(scheduler)
        in_the_waiting_queue(scheduler)
        with_its_result(scheduler, buffers)
        after_it_was_read(buffers)
    buffers.link.settle()
    buffers.close()
    os._exit(0)  # SGLang's modules leave threads


if __name__ == "__main__":
    main()
