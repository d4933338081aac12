"""Decode's half of StoreMetadataBuffers: which request a row is for, its record, and why there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import MutableSequence, Sequence
from typing import Any

from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.binding import Binding, refused
from pd_handoff.engines.sglang.common import Common, label_of, live_beside, own_attempt
from pd_handoff.engines.sglang.failures import Unworkable, fault_of, shared
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.prompt import prompt_of
from pd_handoff.engines.sglang.row import blank_row, row_from_record
from pd_handoff.errors import HandoffError, HandoffExists, InvalidRequest
from pd_handoff.model import Failure, Key

log = logging.getLogger(__name__)

# Values of SGLang's KVPoll.
POLL_FAILED, POLL_TRANSFERRING, POLL_SUCCESS = 0, 3, 4
_SIBLING = 0.1  # seconds that a failed transfer counts as going on, for the store's word on it; it takes a millisecond
_HEARD = 0.05  # seconds for the other ranks to have the answer, too


class DecodeSide(Common):
    """`bind`, and what SGLang reads by index after it."""

    def bind(self, idx: int, req: Any, decode_req: Any = None) -> None:
        """Row `idx` is for this request: its record is waited for from now on, in the background. `decode_req` is what
        SGLang's queue holds of it; in a pipeline, whose stages agree by their KV receivers alone, that gets a receiver
        which minds the record, too.

        A request without a proper room fails with 400. A second request of a key whose first is still bound and live
        fails with 409, and the first goes on.
        """
        self.clear_slot(idx)
        try:
            self._bind(idx, req)
        except Exception as error:  # nobody's request but this one's
            log.exception("request %s: its record cannot be waited for", label_of(req))
            failure = fault_of(error)
            self._bindings[int(idx)] = Binding(
                idx, req, Key(0), 0, refused(Unworkable(failure.message)), self.shape, owns=False
            )
        if decode_req is not None and runtime.in_pipeline():
            decode_req.kv_receiver = MindfulReceiver(decode_req.kv_receiver, self._bindings[int(idx)])

    def _bind(self, idx: int, req: Any) -> None:
        if is_fake_transfer(req):
            self._bindings[int(idx)] = Binding(idx, req, Key(0), 0, None, self.shape)
            return
        try:
            key = key_of(req)
        except InvalidRequest as error:
            self._refuse_row(idx, req, Key(0), error)
            return
        for other in tuple(self._bindings.values()):
            if other.key != key or other.future is None or not other.owns:
                continue
            if live_beside(other.req, req):
                self._refuse_row(idx, req, key, HandoffExists(shared(key)))
                return
            self.clear_slot(other.idx)
        attempt = self._begin(req, key)
        if attempt > 0 and own_attempt(req) is None:
            self.link.fence(key, attempt)
        future = self.link.read(key, attempt, prompt_of(req))
        self._bindings[int(idx)] = Binding(idx, req, key, attempt, future, self.shape, draft=self.draft_candidates)

    def _refuse_row(self, idx: int, req: Any, key: Key, error: HandoffError) -> None:
        log.warning("request %s: %s", label_of(req), error)
        self._bindings[int(idx)] = Binding(idx, req, key, 0, refused(error), self.shape, owns=False)

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
        its record is here, and a failure as soon as prefill has aborted, whether or not the KV cache ever comes.
        SGLang then takes the least of all ranks' polls."""
        for position, decode_req in enumerate(decode_reqs):
            try:
                binding = self._binding(decode_req.metadata_buffer_index)
                polls[position] = gated(polls[position], binding, self.clock())
            except Exception:  # nobody's request but this one's: it fails, and the scheduler's loop goes on
                log.exception("request %s: its record cannot be looked at", label_of(decode_req.req))
                polls[position] = POLL_FAILED

    def fail(self, decode_req: Any) -> bool:
        """For the branch of a failed transfer, after SGLang's own `prepare_abort`: puts the status and text of the
        other side in the place of "Decode transfer failed". False when the store knows no reason, or has not said it
        yet (see `gated`)."""
        try:
            binding = self._binding(decode_req.metadata_buffer_index)
        except LookupError:
            return False
        if not binding.over or binding.failure is None:
            return False
        self._tell(decode_req.req, binding.failure)
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
                self._tell(binding.req, binding.failure)
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
        if not binding.future.done():
            self._attempts.end(binding.key)
            binding.future.cancel()
            gone = Failure(500, "READER_GONE", "decode dropped the request before it had read its record")
            self.link.abort(binding.key, gone, binding.attempt)
            return
        handoff = binding.wait()
        self._attempts.end(binding.key, None if handoff is None else handoff.attempt)
        binding.req.handoff_read = handoff is not None

    def _binding(self, idx: int) -> Binding:
        binding = self._bindings.get(int(idx))
        if binding is None or not binding.owned_by(idx):
            raise LookupError(f"row {idx} is bound to no request, or to another one by now: call bind after alloc")
        return binding


class MindfulReceiver:
    """SGLang's KV receiver of a request, whose transfer is a success only once the record is here, too, and a failure
    as soon as that will not come. All else is the receiver's own."""

    def __init__(self, receiver: Any, binding: Binding) -> None:
        self._receiver = receiver
        self._binding = binding

    def poll(self) -> int:
        """SGLang's KVPoll."""
        return gated(int(self._receiver.poll()), self._binding, time.monotonic())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receiver, name)


def gated(poll: int, binding: Binding, now: float) -> int:
    """What a transfer's state is, with its record in mind. One that failed goes on for a moment while the store may
    still say why: another rank may have had its answer, or prefill's failure came by the KV transfer first."""
    over = binding.over  # looked at once: the answer may come meanwhile
    if over and binding.failure is None:
        return poll
    if not over and poll != POLL_FAILED:
        return POLL_TRANSFERRING if poll == POLL_SUCCESS else poll
    if binding.failed_at is None:
        binding.failed_at = now
    # The first rank to fail ends the request on all of them, each with the reason that it has heard by then.
    heard = _HEARD if runtime.has_siblings() else 0.0
    patience = heard if over else _SIBLING
    return POLL_TRANSFERRING if now < binding.failed_at + patience else POLL_FAILED
