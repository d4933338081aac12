"""In the place of SGLang's `MetadataBuffers`: the same methods, with a store between the two sides instead of paired
rows."""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

from pd_handoff.engines.sglang.attempts import REMEMBERED, Attempts
from pd_handoff.engines.sglang.binding import Binding, refused, shared
from pd_handoff.engines.sglang.environment import link_from_environment
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.link import StoreLink
from pd_handoff.engines.sglang.request import record_from_request
from pd_handoff.engines.sglang.row import PAD, RowShape, blank_row, row_from_record
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffError,
    HandoffExists,
    StaleReservation,
    StoreUnavailable,
    TooManyWaiters,
)
from pd_handoff.model import Failure, Key, Reservation, Widths
from pd_handoff.v1 import record_pb2

log = logging.getLogger(__name__)

# Values of SGLang's KVPoll.
POLL_FAILED, POLL_TRANSFERRING, POLL_SUCCESS = 0, 3, 4

Refused = Callable[[Any, str, int], object]
_PASSING = (ArenaFull, TooManyWaiters, StoreUnavailable, Draining, DeadlineExceeded)
_buffers: weakref.WeakSet[StoreMetadataBuffers] = weakref.WeakSet()


def report_abort(req: Any, message: str, status_code: int | None = None) -> None:
    """For the end of SGLang's `prepare_abort`: the other side learns of the abort, with its status and text, through
    every StoreMetadataBuffers of this process. Returns at once."""
    for buffers in tuple(_buffers):
        buffers.abort(req, message, status_code)


class StoreMetadataBuffers:
    """SGLang's metadata buffers over a store. Prefill calls `set_buf` as before and may `reserve` before it computes;
    decode says with `bind` which request a row is for, and then reads by index as before.

    Which hand-off a request is, its `bootstrap_room` says, and two attributes that an engine may set:
    `handoff_sample` (which of n samples that share a room; else 0) and `handoff_attempt` (which prefill of the room;
    else counted, see Attempts).

    A request whose record the store refuses is aborted, with a status and a text for its user, on both sides. Nothing
    here raises into the scheduler's loop for the fault of one request.

    Args:
        size: rows; kept for SGLang's signature, nothing is allocated by it but 64 bytes a row (see get_buf_infos).
        hidden_size, hidden_states_dtype, max_sampling_mask_tokens, max_top_logprobs_num, output_dsa_topk_indices_dim:
            as SGLang's constructor takes them; the rows of get_buf have these sizes.
        custom_mem_pool: not used; nothing is registered with it.
        kv_checksum_enabled: as with SGLang.
        link: the store; None is the one that the environment names (see `environment`).
        sampling_mask: hand sampling masks over; both sides need the same value.
        refused: told (request, text, HTTP status) when a request cannot go on; None is SGLang's `prepare_abort`.
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
        refused: Refused | None = None,
    ) -> None:
        self.size = size
        self.custom_mem_pool = custom_mem_pool
        self.output_dsa_topk_indices_dim = output_dsa_topk_indices_dim
        self.enable_sampling_mask = sampling_mask
        self.kv_checksum_enabled = kv_checksum_enabled
        self.link = link or link_from_environment()
        self.shape = RowShape(
            hidden_size,
            hidden_states_dtype,
            max_sampling_mask_tokens,
            max_top_logprobs_num,
            output_dsa_topk_indices_dim,
            sampling_mask,
        )
        self.bootstrap_room = _Rooms(self)
        self._refused = refused or _prepare_abort
        self._attempts = Attempts()
        self._reservations: dict[Key, Reservation] = {}
        self._live: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()  # prefill's requests
        self._checksums: dict[int, tuple[Any, int, int]] = {}
        self._bindings: dict[int, Binding] = {}
        self._padding: Any = None
        _buffers.add(self)

    # Prefill.

    def reserve(self, req: Any) -> bool:
        """Before the prefill: claims a slot of the store, so that what cannot be handed over costs no compute.

        True when it is held. False when the store has none just now or does not answer (`set_buf` will ask again), or
        when the request was refused: then it has been aborted."""
        if is_fake_transfer(req) or not self.link.publishes:
            return True
        try:
            key = key_of(req)
        except HandoffError as error:
            self._tell(req, error.http_status, str(error))
            return False
        if self._share(req, key):
            return False
        attempt = self._begin(req, key)
        try:
            held = self.link.prefill.reserve(key, widths=widths_of(req), **self._terms(req), attempt=attempt)
        except _PASSING as error:
            log.warning("request %s: no slot before its prefill: %s", _rid(req), error)
            return False
        except HandoffError as error:
            self._refuse(req, key, attempt, None, error)
            return False
        self._reservations.pop(key, None)
        self._reservations[key] = held
        if (
            len(self._reservations) > REMEMBERED
        ):  # of requests that ended without a word; their leases end by themselves
            self._reservations.pop(next(iter(self._reservations)))
        return True

    def set_kv_checksum(self, req: Any, digest: int, signature: int) -> None:
        """Keeps what the next set_buf of this request publishes beside the record."""
        self._checksums[int(req.metadata_buffer_index)] = (req, digest, signature)

    def set_buf(self, req: Any) -> bool:
        """After the prefill: publishes the request's record. True when decode will get it; False when it was refused:
        then the request has been aborted here, and decode will be told the same status and text."""
        owner, *checksum = self._checksums.pop(int(req.metadata_buffer_index), (None, 0, 0))
        if getattr(req, "handoff_refused", False):
            return False
        if is_fake_transfer(req) or not self.link.publishes:
            return True
        try:
            key = key_of(req)
        except HandoffError as error:
            self._tell(req, error.http_status, str(error))
            return False
        if self._share(req, key):
            return False
        held = self._reservations.pop(key, None)
        attempt = held.attempt if held else self._begin(req, key)
        try:
            record = record_from_request(req, kv_checksum=(checksum[0], checksum[1]) if owner is req else None)
            self.shape.check(record)
            self._publish(req, key, attempt, held, record)
        except HandoffError as error:
            self._refuse(req, key, attempt, held, error)
            return False
        self._attempts.end(key)
        return True

    # Decode.

    def bind(self, idx: int, req: Any) -> None:
        """Row `idx` is for this request: its record is waited for from now on, in the background.

        A second request of a key whose first is still bound and live fails with 409, and the first goes on. Raises
        InvalidRequest for a request without a room.
        """
        self.clear_slot(idx)
        if is_fake_transfer(req):
            self._bindings[int(idx)] = Binding(idx, req, Key(0), 0, None, self.shape)
            return
        key = key_of(req)
        for other in tuple(self._bindings.values()):
            if other.key != key or other.future is None or not other.owns:
                continue
            if _live(other.req, req):
                log.warning("request %s: %s", _rid(req), shared(key))
                self._bindings[int(idx)] = Binding(idx, req, key, 0, refused(key), self.shape, owns=False)
                return
            self.clear_slot(other.idx)
        attempt = self._begin(req, key)
        self._bindings[int(idx)] = Binding(idx, req, key, attempt, self.link.read(key, attempt), self.shape)

    def ready(self, idx: int) -> bool:
        """True once the row's record is here, whatever its room; also for fake transfers, which have none."""
        binding = self._binding(idx)
        return binding.over and binding.failure is None

    def failure(self, idx: int) -> Failure | None:
        """Why the row's record will not come: prefill aborted, the store lost it, time ran out, or it lacks what the
        request asks for. None while it may still come, or has."""
        return self._binding(idx).failure

    def gate(self, polls: MutableSequence[int], decode_reqs: Sequence[Any]) -> None:
        """For SGLang's `_apply_metadata_gate`: changes `polls` in place, so that a transfer is a success only once
        its record is here, and a failure as soon as prefill has aborted, whether or not the KV cache ever comes."""
        for position, decode_req in enumerate(decode_reqs):
            binding = self._binding(decode_req.metadata_buffer_index)
            if not binding.over:
                if polls[position] == POLL_SUCCESS:
                    polls[position] = POLL_TRANSFERRING
            elif binding.failure is not None:
                polls[position] = POLL_FAILED

    def fail(self, decode_req: Any) -> bool:
        """For the branch of a failed transfer, after SGLang's own `prepare_abort`: puts the status and text of the
        other side in the place of "Decode transfer failed". False when the store knows no reason."""
        binding = self._binding(decode_req.metadata_buffer_index)
        if not binding.over or binding.failure is None:
            return False
        self._tell(decode_req.req, binding.failure.http_status, binding.failure.message)
        return True

    def get_buf(self, idx: int) -> tuple[Any, ...]:
        """The row's record as SGLang's 14 tensors (see row_from_record). Waits for it when it is not here; after
        `ready` it is.

        When it failed, the row's request is aborted with the reason, and the row is a clean one.
        """
        binding = self._binding(idx)
        handoff = binding.wait()
        if handoff is None or binding.failure is not None:
            if binding.failure is not None:
                self._tell(binding.req, binding.failure.http_status, binding.failure.message)
            return blank_row(binding.key.room, self.shape)
        wanted = binding.req.logprob.top_logprobs_num if binding.req.return_logprob else None
        return row_from_record(handoff.proto, binding.key.room, self.shape, top_logprobs_num=wanted)

    def get_kv_checksum(self, idx: int) -> tuple[int, int]:
        """(digest, layout signature); (0, 0) when prefill computed none."""
        handoff = self._binding(idx).wait()
        if handoff is None:
            return 0, 0
        checksum = handoff.proto.kv_checksum
        return checksum.digest, checksum.layout_signature

    def clear_slot(self, idx: int) -> None:
        """The row's request is done with it. A record still waited for is no longer; prefill, if it comes, learns
        that."""
        binding = self._bindings.pop(int(idx), None)
        if binding is None or binding.future is None or not binding.owns:
            return
        self._attempts.end(binding.key)
        if not binding.future.done():
            binding.future.cancel()
            gone = Failure(500, "READER_GONE", "decode dropped the request before it had read its record")
            self.link.abort(binding.key, gone, binding.attempt)

    # Both.

    def abort(self, req: Any, message: str, status_code: int | None = None) -> Future[bool] | None:
        """Ends the request's hand-off in the background, so that the other side aborts with this status and text.
        None when there is nothing to end: a fake transfer, a request without a room, one that was refused before, or
        one whose key is another live request's."""
        if getattr(req, "handoff_refused", False) or is_fake_transfer(req) or req.bootstrap_room is None:
            return None
        bound = next((binding for binding in self._bindings.values() if binding.req is req), None)
        key = bound.key if bound else key_of(req)
        if (bound and not bound.owns) or self._sharer(req, key):
            return None
        attempt = bound.attempt if bound else self._attempts.current(key)
        self._reservations.pop(key, None)
        self._attempts.end(key)
        return self.link.abort(key, _failure(message, status_code), attempt)

    def get_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """(addresses, bytes, bytes a row) of what the transfer backend registers and copies: one row of 64 unused
        bytes, because some backends refuse to register nothing."""
        if self._padding is None:
            torch: Any = importlib.import_module("torch")
            self._padding = torch.zeros((self.size, PAD), dtype=torch.int32)
        padding = self._padding
        return [padding.data_ptr()], [padding.nbytes], [padding[0].nbytes]

    def close(self) -> None:
        """Drops what is waited for and closes the link."""
        _buffers.discard(self)
        for idx in tuple(self._bindings):
            self.clear_slot(idx)
        self.link.close()

    def _binding(self, idx: int) -> Binding:
        binding = self._bindings.get(int(idx))
        if binding is None or not binding.owned_by(idx):
            raise LookupError(f"row {idx} is bound to no request, or to another one by now: call bind after alloc")
        return binding

    def _begin(self, req: Any, key: Key) -> int:
        return self._attempts.begin(key, getattr(req, "handoff_attempt", None))

    def _sharer(self, req: Any, key: Key) -> bool:
        """Whether the key is that of another request, under way on prefill."""
        other = self._live.get(key)
        return other is not None and _rid(other) != _rid(req) and _live(other, req)

    def _share(self, req: Any, key: Key) -> bool:
        """Takes the key for this request, or fails the request, and says True, when another live one has it."""
        if self._sharer(req, key):
            log.warning("request %s: %s", _rid(req), shared(key))
            self._tell(req, HandoffExists().http_status, shared(key))
            return True
        self._live[key] = req
        return False

    def _terms(self, req: Any) -> dict[str, Any]:
        # Compared within one room: two requests that were given the same room are told apart, a retry is recognised.
        owner = f"{self.link.owner}/{_rid(req)}"[:128]
        return {"owner": owner, "lease": self.link.lease, "expected_readers": self.link.expected_readers}

    def _publish(
        self, req: Any, key: Key, attempt: int, held: Reservation | None, record: record_pb2.HandoffRecord
    ) -> None:
        if held:
            try:
                self.link.prefill.put(held, record)
                return
            except StaleReservation as error:
                # A store that came back empty takes the record all the same; what was overtaken it refuses again.
                log.warning("request %s, room %d: %s; publishing anew", _rid(req), key.room, error)
        self.link.prefill.put_once(key, record, **self._terms(req), attempt=attempt, max_wait=self.link.slot_wait)

    def _refuse(self, req: Any, key: Key, attempt: int, held: Reservation | None, error: HandoffError) -> None:
        log.warning("request %s, room %d: %s", _rid(req), key.room, error)
        self._attempts.end(key)
        # Whoever owns the hand-off by now keeps it: what is refused for that reason has nothing of its own to end.
        if not isinstance(error, (HandoffExists, StaleReservation)):
            failure = Failure(error.http_status, error.reason, str(error))
            self.link.abort_own(key, failure, attempt, held, self._terms(req))
        self._tell(req, error.http_status, str(error))

    def _tell(self, req: Any, status: int, message: str) -> None:
        req.handoff_refused = True
        self._refused(req, message, status)


class _Rooms:
    """What SGLang's own readiness gate reads: `bootstrap_room[idx, 0].item()` is 0 until the record is here. A row
    that failed counts as here, so that the engine comes for it and get_buf aborts the request."""

    def __init__(self, buffers: StoreMetadataBuffers) -> None:
        self._buffers = buffers

    def __getitem__(self, position: tuple[int, int]) -> _Room:
        binding = self._buffers._binding(position[0])
        return _Room(binding.key.room if binding.over and position[1] == 0 else 0)


class _Room:
    def __init__(self, room: int) -> None:
        self._room = room

    def item(self) -> int:
        return self._room


def widths_of(req: Any) -> Widths:
    """What a request's record will need, as far as it is known before the prefill."""
    widths = {"tokens": 1}
    if req.return_logprob:
        widths["top_logprobs"] = max(0, int(req.logprob.top_logprobs_num or 0))
        widths["token_ids_logprobs"] = len(req.logprob.token_ids_logprob or ())
    return Widths(**widths)


def _failure(message: str, status_code: int | None) -> Failure:
    """SGLang's abort as the store keeps it. An abort without a status is one that somebody asked for."""
    status = int(status_code or 0)
    if not 100 <= status <= 599:
        return Failure(500, "ABORTED", message)
    try:
        return Failure(status, HTTPStatus(status).name, message)
    except ValueError:
        return Failure(status, "ABORTED", message)


def _live(other: Any, req: Any) -> bool:
    """Whether `other` is another request that has not ended: a retracted one comes back itself, or after its end."""
    return other is not req and getattr(other, "finished_reason", None) is None


def _rid(req: Any) -> str:
    return str(getattr(req, "rid", ""))


def _prepare_abort(req: Any, message: str, status: int) -> None:
    importlib.import_module("sglang.srt.disaggregation.utils").prepare_abort(req, message, status_code=status)
