"""What happens at each place of SGLang that the plugin hooks into. The names say when: before, after or around."""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from pd_handoff.engines.sglang import buffers as ours
from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.buffers import StoreMetadataBuffers, report_abort, report_finish
from pd_handoff.engines.sglang.common import refusal_of
from pd_handoff.engines.sglang.door import Door
from pd_handoff.engines.sglang.environment import admit
from pd_handoff.engines.sglang.keys import sample_room
from pd_handoff.engines.sglang.rejection import Rejections
from pd_handoff.engines.sglang.slots import SlotAllocator
from pd_handoff.engines.sglang.watch import FAILED, failure_in
from pd_handoff.errors import InvalidRequest

_FAILED_TRANSFER = "Decode transfer failed"  # how SGLang's own text begins where the store may know a reason
_door = Door()
_rejections = Rejections()


def buffers_class(check: Callable[[], None]) -> type[StoreMetadataBuffers]:
    """The class in the place of SGLang's MetadataBuffers. `check` runs when it is constructed: all hooks are applied
    by then."""
    theirs: Any = importlib.import_module("sglang.srt.disaggregation.utils").MetadataBuffers
    signed = "signature" in inspect.signature(theirs.set_kv_checksum).parameters  # from 0.5.23 on

    class MetadataBuffers(StoreMetadataBuffers):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            check()
            super().__init__(*args, **kwargs)

        def get_buf(self, idx: int) -> tuple[Any, ...]:
            row = super().get_buf(idx)
            return row if self._binding(idx).key.room else (*row[:-1], _RoomZero())

        def get_kv_checksum(self, idx: int) -> Any:
            digest, signature = super().get_kv_checksum(idx)
            return (digest, signature) if signed else digest

    return MetadataBuffers


def allocator_class() -> type[SlotAllocator]:
    """The class in the place of SGLang's ReqToMetadataIdxAllocator."""
    return SlotAllocator


def gate(polls: list[int], decode_reqs: list[Any], metadata_buffers: StoreMetadataBuffers) -> None:
    """In the place of `_apply_metadata_gate`."""
    metadata_buffers.gate(polls, decode_reqs)


def after_prepare_abort(_: Any, req: Any, error_message: Any, status_code: int | None = None) -> None:
    """The store's reason takes the place of SGLang's words; another abort is reported to the other side."""
    if refusal_of(req) is None:
        for buffers in tuple(ours._buffers):
            binding = next((one for one in buffers._bindings.values() if one.req is req), None)
            if binding is None or not (binding.over or str(error_message).startswith(_FAILED_TRANSFER)):
                continue
            if buffers.fail(SimpleNamespace(req=req, metadata_buffer_index=binding.idx)):
                return
    told = failure_in(str(error_message)) if refusal_of(req) is None else None
    if told is not None:  # by prefill, past a store that is away
        req.handoff_refused = told
    report_abort(req, error_message, status_code)


def around_send_kv_metadata(
    original: Callable[..., Any], queue: Any, decode_req: Any, *args: Any, **kwargs: Any
) -> Any:
    """Binds between the allocation of the row and `send_metadata` of the receiver: prefill may answer right after
    that."""
    allocator = queue.req_to_metadata_buffer_idx_allocator
    alloc = allocator.alloc

    def alloc_and_bind() -> Any:
        index = alloc()
        if index is not None:
            queue.metadata_buffers.bind(index, decode_req.req, decode_req)
        return index

    allocator.alloc = alloc_and_bind
    try:
        return original(queue, decode_req, *args, **kwargs)
    finally:
        del allocator.alloc


def after_create_sender(created: bool, queue: Any, req: Any, *_: Any) -> None:
    """The store is asked for a place as soon as decode has connected, and the prefill starts when it has answered."""
    if created:
        queue.scheduler.disagg_metadata_buffers.watch(req, queue.req_to_metadata_buffer_idx_allocator)


def around_ensure_row(original: Callable[..., bool], queue: Any, req: Any) -> bool:
    """Where the place in the store was not asked for before the row, it is now."""
    had = req.metadata_buffer_index >= 0
    got = original(queue, req)
    if got and not had:
        queue.scheduler.disagg_metadata_buffers.placed(req)
    return got


def around_check_status(original: Callable[..., Any], manager: Any, bootstrap_room: int) -> Any:
    """SGLang keys a transfer's state by its room, and the first request of a room that ends takes it along.

    Another request that shares the room would end the scheduler by a KeyError here. It fails alone instead.
    """
    try:
        return original(manager, bootstrap_room)
    except KeyError:
        return FAILED


def before_retire_result(_: Any, req: Any) -> None:
    """A prefill whose result is discarded never passes `prepare_abort`."""
    if req.to_finish is not None and not req.finished():
        report_finish(req, req.to_finish)


def before_retire_unadmitted(_: Any, req: Any) -> None:
    """Nor does a request that is rejected at the scheduler's door."""
    report_finish(req, req.finished_reason or req.to_finish)


def before_make_abort_req(req: Any, finished_reason: Any = None) -> None:
    """Nor does a request that ends in a queue: its user left, or its priority is not allowed."""
    report_finish(req, finished_reason)


def before_add_request(_: Any, req: Any, is_retracted: bool = False) -> None:
    """A room that another live request has is refused before a KV sender or receiver can share its state."""
    if is_retracted:
        return
    failure = _door.refusal(req)
    if failure is not None:
        req.handoff_refused = failure
        req.set_finish_with_abort(failure.message, HTTPStatus(runtime.answered_status(failure.http_status)))


def after_validate(_: Any, __: Any, obj: Any) -> None:
    """Refuses or clamps what the store could not take, before anything is scheduled."""
    admit(obj)


async def around_tokenize(original: Callable[..., Any], manager: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """What prefill's tokenizer alone rejects reaches decode."""
    try:
        return await original(manager, obj, *args, **kwargs)
    except Exception as error:
        _rejections.report(obj, error)
        raise


class Samples:
    """Which of n samples a request of SGLang's tokenizer is: the samples share one object of sampling parameters.

    A user who leaves amid the samples leaves an entry behind; the oldest goes when there are MOST."""

    MOST = 1024

    def __init__(self) -> None:
        self._seen: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # by id; holding the object keeps its id its own

    def next(self, params: Any) -> int:
        """The number of the sample, from 0."""
        _, count = self._seen.pop(id(params), (params, 0))
        if count + 1 < params.n:
            self._seen[id(params)] = (params, count + 1)
            if len(self._seen) > self.MOST:
                self._seen.popitem(last=False)
        return count


_samples = Samples()


def before_send_one_request(_: Any, tokenized: Any) -> None:
    """Gives each of n samples a room of its own. The request before them, which only fills the prefix cache
    (`max_new_tokens` 0), keeps the room."""
    params = tokenized.sampling_params
    room = getattr(tokenized, "bootstrap_room", None)
    if room is None or getattr(params, "n", 1) <= 1 or params.max_new_tokens == 0:
        return
    sample = _samples.next(params)
    try:
        tokenized.bootstrap_room = sample_room(room, sample)
    except InvalidRequest:
        return  # what is no room fails where it is used


class _RoomZero:
    """The room of a row, where the room is 0. SGLang takes 0 for "not written" before it compares, so this 0 answers
    neither comparison: it is not SGLang's 0, and it is the request's."""

    class _Zero(int):
        def __eq__(self, _: object) -> bool:
            return False

        def __ne__(self, _: object) -> bool:
            return False

        __hash__ = int.__hash__

    def __getitem__(self, _: int) -> _RoomZero:
        return self

    def item(self) -> int:
        """See the class."""
        return self._Zero()
