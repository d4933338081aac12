"""In the place of SGLang's `MetadataBuffers`: the same methods, with a store between the two sides instead of paired
rows."""

from __future__ import annotations

import importlib
import logging
import weakref
from concurrent.futures import Future
from typing import Any

from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.common import Refused, label_of, own_attempt, refusal_of
from pd_handoff.engines.sglang.decode_side import DecodeSide
from pd_handoff.engines.sglang.environment import draft_state_required, link_from_environment
from pd_handoff.engines.sglang.failures import failure_from_sglang, reason_of
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.link import StoreLink
from pd_handoff.engines.sglang.prefill_side import PrefillSide
from pd_handoff.engines.sglang.row import PAD, RowShape
from pd_handoff.errors import InvalidRequest
from pd_handoff.model import Failure

log = logging.getLogger(__name__)
_COMES_BACK = "pd_rebootstrap_in_progress"  # SGLang's mark of a retracted request that is to be prefilled again
_buffers: weakref.WeakSet[StoreMetadataBuffers] = weakref.WeakSet()


def report_abort(req: Any, message: Any, status_code: int | None = None) -> None:
    """For the end of SGLang's `prepare_abort`: the other side learns of the abort, with its status and text, through
    every StoreMetadataBuffers of this process. Returns at once."""
    for buffers in tuple(_buffers):
        try:
            buffers.abort(req, message, status_code)
        except Exception:  # the request ends all the same, and the scheduler goes on
            log.exception("request %s: the other side may not learn of its abort", label_of(req))


def report_finish(req: Any, finished: Any) -> None:
    """For the other places where SGLang ends a request: `update_finish_state`, which makes a pending abort final, and
    `send_abort_output`, for requests that end outside of the output stream. `finished` is SGLang's FINISH_ABORT, or the
    dictionary or None of its AbortReq; of other ends nothing is told. Returns at once."""
    reason = reason_of(finished)
    if reason is not None:
        report_abort(req, *reason)


class StoreMetadataBuffers(PrefillSide, DecodeSide):
    """SGLang's metadata buffers over a store. Prefill calls `set_buf` as before and may `reserve` before it computes;
    decode says with `bind` which request a row is for, and then reads by index as before.

    Which hand-off a request is, its `bootstrap_room` says, and two attributes that an engine may set:
    `handoff_sample` (which of n samples that share a room; else 0) and `handoff_attempt` (which prefill of the room;
    else agreed on through the store, see Attempts).

    A request whose record the store refuses is aborted, with a status and a text for its user, on both sides and on all
    ranks. Nothing here raises into the scheduler's loop for the fault of one request.

    Args:
        size: rows; kept for SGLang's signature, nothing is allocated by it but 64 bytes a row (see get_buf_infos).
        hidden_size, hidden_states_dtype, max_sampling_mask_tokens, max_top_logprobs_num, output_dsa_topk_indices_dim:
            as SGLang's constructor takes them; the rows of get_buf have these sizes.
        custom_mem_pool: as SGLang's constructor takes it; the unused rows stay in the CPU's memory with one.
        kv_checksum_enabled: as with SGLang.
        link: the store; None is the one that the environment names (see `environment`).
        sampling_mask: hand sampling masks over; both sides need the same value.
        draft_candidates: on decode, how many candidates of a draft model it goes on from, 0 for none: a record with
            fewer fails its request. None asks SGLang's settings.
        refused: told (request, text, HTTP status) when a request cannot go on; None ends it as SGLang does, by its KV
            sender on prefill and by `prepare_abort` on decode.
    """

    def __init__(
        self,
        size: int,
        hidden_size: int,
        hidden_states_dtype: Any,
        max_sampling_mask_tokens: int,
        max_top_logprobs_num: int = 128,
        custom_mem_pool: Any = None,
        output_dsa_topk_indices_dim: int = 0,
        *,
        kv_checksum_enabled: bool = False,
        link: StoreLink | None = None,
        sampling_mask: bool = True,
        draft_candidates: int | None = None,
        refused: Refused | None = None,
    ) -> None:
        self.size = size
        self.custom_mem_pool = custom_mem_pool
        self.output_dsa_topk_indices_dim = output_dsa_topk_indices_dim
        self.enable_sampling_mask = sampling_mask
        self.kv_checksum_enabled = kv_checksum_enabled
        shape = RowShape(
            hidden_size,
            hidden_states_dtype,
            max_sampling_mask_tokens,
            max_top_logprobs_num,
            output_dsa_topk_indices_dim,
            sampling_mask,
        )
        if draft_candidates is None and not draft_state_required():
            draft_candidates = 0
        super().__init__(shape, link or link_from_environment(), refused, draft_candidates)
        self._padding: Any = None
        _buffers.add(self)

    @property
    def bootstrap_room(self) -> _Rooms:
        """What SGLang's own readiness gate reads; made anew, because a cycle would keep dropped buffers, which SGLang's
        frozen garbage collector never finds."""
        return _Rooms(self)

    def abort(self, req: Any, message: Any, status_code: int | None = None) -> Future[bool] | None:
        """Ends the request's hand-off in the background, so that the other side aborts with this status and text.
        None when there is nothing to end: a fake transfer, a request without a proper room, one that was refused or
        read before, one whose key is another live request's, or a rank that leaves it to another."""
        refusal = refusal_of(req)
        if refusal is not None:
            _say(req, refusal)
            return None
        if is_fake_transfer(req) or not self.link.reports:
            return None
        bound = next((binding for binding in self._bindings.values() if binding.req is req), None)
        if bound is None and getattr(req, "handoff_read", False) and not getattr(req, _COMES_BACK, False):
            return None
        try:
            key = bound.key if bound else key_of(req)
        except InvalidRequest:
            return None
        if (bound and not bound.owns) or self._sharer(req, key):
            return None
        failure = failure_from_sglang(message, status_code)
        held, published = self._reservations.pop(key, None), getattr(req, "handoff_published", None)
        known = bound.attempt if bound else held.attempt if held else published
        named = own_attempt(req)
        attempt = known if known is not None else named if named is not None else self._attempts.upcoming(key)
        self._attempts.end(key, attempt)
        if known is None and named is None and runtime.prefills():
            # A prefill that restarted since does not know which attempt decode waits for; the store tells it.
            return self.link.abort_own(key, failure, attempt, None, self._terms(req), counted=True)
        return self.link.abort(key, failure, attempt)

    def get_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """(addresses, bytes, bytes a row) of what the transfer backend registers and copies: one row of 64 unused
        bytes, because some backends refuse to register nothing."""
        if self._padding is None:
            torch: Any = importlib.import_module("torch")
            device = runtime.row_device(self.custom_mem_pool)
            self._padding = torch.zeros((self.size, PAD), dtype=torch.int32, device=device)
        padding = self._padding
        return [padding.data_ptr()], [padding.nbytes], [padding[0].nbytes]

    def close(self) -> None:
        """Drops what is waited for and closes the link."""
        _buffers.discard(self)
        for idx in tuple(self._bindings):
            self.clear_slot(idx)
        self.link.close()


def _say(req: Any, refusal: Failure) -> None:
    """Puts the reason in the place of what SGLang says of a KV sender that failed."""
    reason: Any = getattr(req, "finished_reason", None)
    status = runtime.answered_status(refusal.http_status)
    if hasattr(reason, "status_code") and (reason.message, reason.status_code) != (refusal.message, status):
        req.finished_reason = type(reason)(refusal.message, status)


class _Rooms:
    """What SGLang's own readiness gate reads: `bootstrap_room[idx, 0].item()` is 0 until the record is here. A row
    that failed counts as here, so that the engine comes for it and get_buf aborts the request."""

    def __init__(self, buffers: StoreMetadataBuffers) -> None:
        self._buffers = buffers

    def __setitem__(self, idx: int, _: int) -> None:
        """SGLang before 0.5.23 clears a row so."""
        self._buffers.clear_slot(idx)

    def __getitem__(self, position: tuple[int, int]) -> _Room:
        binding = self._buffers._binding(position[0])
        return _Room(binding.key.room if binding.over and position[1] == 0 else 0)


class _Room:
    def __init__(self, room: int) -> None:
        self._room = room

    def item(self) -> int:
        return self._room
