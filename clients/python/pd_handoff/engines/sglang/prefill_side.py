"""Prefill's half of StoreMetadataBuffers: a place before the prefill, the record after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.attempts import CATCH_UP, REMEMBERED, STEP, is_behind
from pd_handoff.engines.sglang.common import Common, label_of, live_beside, own_attempt, refusal_of, rid_of
from pd_handoff.engines.sglang.failures import failure_of, fault_of, shared
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.request import record_from_request
from pd_handoff.engines.sglang.texts import owner_of
from pd_handoff.errors import (
    ArenaFull,
    DeadlineExceeded,
    Draining,
    HandoffAborted,
    HandoffError,
    HandoffExists,
    InvalidRequest,
    StaleReservation,
    StoreUnavailable,
    TooManyWaiters,
)
from pd_handoff.model import Failure, Key, Reservation, Widths
from pd_handoff.v1 import record_pb2

T = TypeVar("T")
log = logging.getLogger(__name__)
_PASSING = (ArenaFull, TooManyWaiters, StoreUnavailable, Draining, DeadlineExceeded)


class PrefillSide(Common):
    """`reserve` and `set_buf`. Where one rank publishes for several, only that one learns that the store refused a
    record; it then aborts the request's KV sender, whose state SGLang's ranks agree on at their next poll, so that all
    of them end the request alike."""

    def reserve(self, req: Any) -> bool:
        """Before the prefill: claims a slot of the store, so that what cannot be handed over costs no compute.

        True when it is held. False when the store has none just now or does not answer (`set_buf` will ask again), or
        when the request was refused: then it ends with SGLang's next look at its KV sender."""
        if is_fake_transfer(req) or not self.link.publishes:
            return True
        key = self._take(req, early=True)
        if key is None:
            return False
        try:
            return self._reserve(req, key)
        except Exception as error:  # nobody's request but this one's
            self._fault(req, key, None, error, early=True)
            return False

    def _reserve(self, req: Any, key: Key) -> bool:
        attempt = self._begin(req, key)
        terms, widths = self._terms(req), widths_of(req)
        try:
            held = self._catch_up(
                req,
                key,
                attempt,
                lambda number: self.link.call(
                    lambda client: client.reserve(key, widths=widths, **terms, attempt=number)
                ),
            )
        except _PASSING as error:
            log.warning("request %s: no slot before its prefill: %s", label_of(req), error)
            return False
        except HandoffError as error:
            self._refuse(req, key, None, failure_of(error), ours=_is_ours(error), early=True)
            return False
        self._reservations.pop(key, None)
        self._reservations[key] = held
        if len(self._reservations) > REMEMBERED:
            # Of requests that ended without a word; their leases end by themselves.
            self._reservations.pop(next(iter(self._reservations)))
        return True

    def set_kv_checksum(self, req: Any, digest: int, signature: int) -> None:
        """Keeps what the next set_buf of this request publishes beside the record."""
        self._checksums[int(req.metadata_buffer_index)] = (req, digest, signature)

    def set_buf(self, req: Any) -> bool:
        """After the prefill: publishes the request's record. True when decode will get it; False when it was refused:
        then it ends here with SGLang's next look at its KV sender, and decode is told the same status and text."""
        owner, *checksum = self._checksums.pop(int(req.metadata_buffer_index), (None, 0, 0))
        if refusal_of(req) is not None:
            _fail_sender(req)
            return False
        if is_fake_transfer(req) or not self.link.publishes:
            return True
        key = self._take(req, early=False)
        if key is None:
            return False
        held = self._reservations.pop(key, None)
        attempt = held.attempt if held else self._begin(req, key)
        try:
            record = record_from_request(req, kv_checksum=(checksum[0], checksum[1]) if owner is req else None)
            self.shape.check(record)
            self._publish(req, key, attempt, held, record)
        except HandoffError as error:
            self._refuse(req, key, held, failure_of(error), ours=_is_ours(error), early=False)
            return False
        except Exception as error:  # nobody's request but this one's
            self._fault(req, key, held, error, early=False)
            return False
        req.handoff_published = self._attempts.current(key)
        self._attempts.end(key)
        return True

    def _take(self, req: Any, *, early: bool) -> Key | None:
        """The key, held for this request; None, and it was refused, when it has none or another live one has it."""
        try:
            key = key_of(req)
        except InvalidRequest as error:
            log.warning("request %s: %s", label_of(req), error)
            self._end(req, failure_of(error), early=early)
            return None
        if self._sharer(req, key):
            log.warning("request %s: %s", label_of(req), shared(key))
            self._end(req, failure_of(HandoffExists(shared(key))), early=early)
            return None
        self._live[key] = req
        return key

    def _sharer(self, req: Any, key: Key) -> bool:
        """Whether the key is that of another request, under way on prefill."""
        other = self._live.get(key)
        return other is not None and rid_of(other) != rid_of(req) and live_beside(other, req)

    def _terms(self, req: Any) -> dict[str, Any]:
        # Compared within one room: two requests that were given the same room are told apart, a retry is recognised.
        owner = owner_of(self.link.owner, rid_of(req))
        return {"owner": owner, "lease": self.link.lease, "expected_readers": self.link.expected_readers}

    def _catch_up(self, req: Any, key: Key, attempt: int, work: Callable[[int], T]) -> T:
        """Does `work` with the attempt, or with a later one where the store says that decode waits for that."""
        for _ in range(CATCH_UP if own_attempt(req) is None else 0):
            try:
                return work(attempt)
            except (HandoffAborted, StaleReservation) as error:
                if not is_behind(error):
                    raise
                attempt = self._attempts.begin(key, attempt + STEP)
                log.info("request %s, room %d: on to attempt %d: %s", label_of(req), key.room, attempt, error)
        return work(attempt)

    def _publish(
        self, req: Any, key: Key, attempt: int, held: Reservation | None, record: record_pb2.HandoffRecord
    ) -> None:
        if held:
            try:
                self.link.call(lambda client: client.put(held, record))
                return
            except StaleReservation as error:
                # A store that came back empty takes the record all the same; what was overtaken it refuses again.
                log.warning("request %s, room %d: %s; publishing anew", label_of(req), key.room, error)
            except HandoffAborted as error:
                if not is_behind(error):
                    raise
        terms = {**self._terms(req), "max_wait": self.link.slot_wait}
        self._catch_up(
            req,
            key,
            attempt,
            lambda number: self.link.call(lambda client: client.put_once(key, record, **terms, attempt=number)),
        )

    def _refuse(
        self, req: Any, key: Key, held: Reservation | None, failure: Failure, *, ours: bool, early: bool
    ) -> None:
        log.warning("request %s, room %d: %s", label_of(req), key.room, failure.message)
        attempt = self._attempts.current(key)
        self._attempts.end(key)
        if ours:
            counted = own_attempt(req) is None
            self.link.abort_own(key, failure, attempt, held, self._terms(req), counted=counted)
        self._end(req, failure, early=early)

    def _fault(self, req: Any, key: Key, held: Reservation | None, error: Exception, *, early: bool) -> None:
        """What is no refusal of the store's: a request of unknown make, or a fault of this package."""
        log.error("request %s, room %d: not handed over", label_of(req), key.room, exc_info=error)
        self._refuse(req, key, held, fault_of(error), ours=True, early=early)

    def _end(self, req: Any, failure: Failure, *, early: bool) -> None:
        """Ends a refused request so that all ranks do it at the same step of their loops: its KV sender fails, SGLang
        takes the least state of all ranks' senders, and each rank ends what has failed. `report_abort` then puts this
        failure in the place of SGLang's words.

        The stages of a pipeline do not compare the senders of requests that wait for their prefill (`early`), only of
        those behind it: there the failure waits until then."""
        if self._own_refused is not None or getattr(req, "disagg_kv_sender", None) is None:
            self._tell(req, failure)
            return
        req.handoff_refused = failure
        if not (early and runtime.in_pipeline()):
            _fail_sender(req)


def _fail_sender(req: Any) -> None:
    sender = getattr(req, "disagg_kv_sender", None)
    if sender is None:
        return
    try:
        sender.abort()
    except Exception:  # of a transfer backend; the hand-off has ended already, and decode with it
        log.exception("request %s: its KV sender could not be aborted", label_of(req))


def _is_ours(error: HandoffError) -> bool:
    """Whoever owns the hand-off by now keeps it: what is refused for that reason has nothing of its own to end."""
    return not isinstance(error, (HandoffExists, StaleReservation))


def widths_of(req: Any) -> Widths:
    """What a request's record will need, as far as it is known before the prefill."""
    widths = {"tokens": 1}
    if req.return_logprob:
        widths["top_logprobs"] = max(0, int(req.logprob.top_logprobs_num or 0))
        widths["token_ids_logprobs"] = len(req.logprob.token_ids_logprob or ())
    return Widths(**widths)
