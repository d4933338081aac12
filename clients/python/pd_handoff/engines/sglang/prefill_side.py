"""Prefill's half of StoreMetadataBuffers: a place before the prefill, the record after it."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

from pd_handoff.engines.sglang import runtime, watch
from pd_handoff.engines.sglang.attempts import REMEMBERED
from pd_handoff.engines.sglang.common import Common, label_of, live_beside, own_attempt, refusal_of, rid_of
from pd_handoff.engines.sglang.courier import Claim, Publication, passes
from pd_handoff.engines.sglang.failures import failure_of, fault_of, shared
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.prompt import prompt_of
from pd_handoff.engines.sglang.request import record_from_request
from pd_handoff.engines.sglang.texts import owner_of
from pd_handoff.errors import HandoffError, HandoffExists, InvalidRequest, StaleReservation
from pd_handoff.model import Failure, Key, Reservation, Widths

log = logging.getLogger(__name__)
HOLD = 0.5
"""Seconds that a prefill waits for the store's answer to its claim. It then starts without."""
_UNREPORTED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "DRAINING")  # a store that is away tells decode nothing


class PrefillSide(Common):
    """`reserve` and `set_buf`, neither of which waits for the store. Where one rank publishes for several, only that
    one learns that the store refused a record. Its KV sender then counts as failed (see `sender_state`); SGLang's ranks
    agree on the least state at their next poll, so all of them end the request alike."""

    def watch(self, req: Any, rows: Any) -> None:
        """For a request that just got its KV sender, before its place in `rows`, SGLang's allocator of metadata rows.
        As soon as decode has connected and a row will be free, its slot of the store is claimed, and its sender counts
        as not yet connected until the store has answered (up to HOLD seconds): what cannot be handed over costs no
        compute. All ranks wait alike, because SGLang takes the least state of their senders.

        Not in a pipeline, whose stages do not compare these senders, nor with optimistic prefill, which starts before
        the connection is there; `reserve` claims there."""
        if is_fake_transfer(req) or not self.link.publishes or getattr(req, "disagg_kv_sender", None) is None:
            return
        req.handoff_rows = None if runtime.in_pipeline() or runtime.prefills_early() else rows
        watch.watch(req.disagg_kv_sender, req, self)

    def sender_state(self, req: Any, poll: int) -> int:
        """What the state of a request's KV sender is, with its hand-off in mind. SGLang's loop asks; nothing here
        waits."""
        refusal = refusal_of(req)
        if refusal is not None:
            if poll == watch.FAILED or (runtime.in_pipeline() and getattr(req, "handoff_record", None) is None):
                return poll
            watch.fail(req, refusal, tell_peer=refusal.reason in _UNREPORTED)
            return watch.FAILED
        if poll in (watch.TRANSFERRING, watch.SUCCESS) and _awaits_row(req):
            # Of another request: SGLang keys the state by the room, and would end the scheduler at this one.
            req.handoff_refused = failure_of(HandoffExists(shared(key_of(req))))
            return watch.FAILED
        if poll == watch.WAITING_FOR_INPUT and _awaits_row(req):
            return watch.BOOTSTRAPPING if self._holds(req) else poll
        record: Publication | None = getattr(req, "handoff_record", None)
        if poll == watch.SUCCESS and record is not None and not record.future.done():
            return watch.TRANSFERRING
        return poll

    def _holds(self, req: Any) -> bool:
        rows = getattr(req, "handoff_rows", None)
        if rows is None:
            return False
        claim: Claim | None = getattr(req, "handoff_claim", None)
        if claim is None:
            if rows.available_size() <= len(self._ahead):
                return False  # SGLang has no row for it either
            self._ahead.add(req)
            self.reserve(req)
            claim = getattr(req, "handoff_claim", None)
        return claim is not None and not claim.future.done() and self.clock() < claim.began + HOLD

    def reserve(self, req: Any) -> Future[bool]:
        """Before the prefill: claims a slot of the store, in the background, so that what cannot be handed over costs
        no compute. Once per prefill of a request.

        The future is True when it is held. False when the store has none just now or does not answer (`set_buf` will
        ask again), or when the request was refused: then it ends with SGLang's next look at its KV sender."""
        self._tell_the_rest()
        self._ahead.discard(req)
        if is_fake_transfer(req) or not self.link.publishes:
            return _settled(True)
        known: Claim | None = getattr(req, "handoff_claim", None)
        if known is not None and not known.future.done():
            return _held(known.future)
        key = self._take(req, early=True)
        if key is None:
            return _settled(False)
        try:
            counted = own_attempt(req) is None
            prompt = req.handoff_prompt = prompt_of(req)
            claim = Claim(
                *(key, self._begin(req, key), widths_of(req), self._terms(req), counted, self.clock()), prompt=prompt
            )
        except Exception as error:  # nobody's request but this one's
            self._fault(req, key, None, error, early=True)
            return _settled(False)
        self._watch(req)
        req.handoff_claim = claim
        claim.before = lambda held, error: self._claimed(req, claim, held, error)
        told = _held(claim.future)
        self.link.courier.send(claim)
        return told

    def placed(self, req: Any) -> None:
        """For a request that just got its row: claims its slot of the store, unless that was done before."""
        self._ahead.discard(req)
        if getattr(req, "handoff_claim", None) is None:
            self.reserve(req)

    def _claimed(self, req: Any, claim: Claim, held: Reservation | None, error: BaseException | None) -> None:
        """On the courier's thread, or on the scheduler's."""
        key = claim.key
        if held is not None:
            self._attempts.begin(key, held.attempt)
            self._reservations.pop(key, None)
            self._reservations[key] = held
            if len(self._reservations) > REMEMBERED:
                # Of requests that ended without a word; their leases end by themselves.
                self._reservations.pop(next(iter(self._reservations)), None)
        elif isinstance(error, HandoffError) and passes(error):
            log.warning("request %s: no slot before its prefill: %s", label_of(req), error)
        elif isinstance(error, HandoffError):
            self._attempts.begin(key, claim.attempt)
            self._refuse(req, key, None, failure_of(error), ours=_is_ours(error), early=True, here=False)
        elif error is not None:
            self._fault(req, key, None, error, early=True, here=False)

    def set_kv_checksum(self, req: Any, digest: int, signature: int = 0) -> None:
        """Keeps what the next set_buf of this request publishes beside the record. SGLang before 0.5.23 knows no
        signature."""
        self._checksums[int(req.metadata_buffer_index)] = (req, digest, signature)

    def set_buf(self, req: Any) -> Future[bool]:
        """After the prefill: reads the request's record and publishes it in the background. The future is True when
        decode will get it; False when it was refused: then it ends here with SGLang's next look at its KV sender, and
        decode is told the same status and text."""
        self._tell_the_rest()
        owner, *checksum = self._checksums.pop(int(req.metadata_buffer_index), (None, 0, 0))
        refusal = refusal_of(req)
        if refusal is not None:
            watch.fail(req, refusal, tell_peer=refusal.reason in _UNREPORTED)
            return _settled(False)
        if is_fake_transfer(req) or not self.link.publishes:
            return _settled(True)
        key = self._take(req, early=False)
        if key is None:
            return _settled(False)
        claim: Claim | None = getattr(req, "handoff_claim", None)
        req.handoff_claim = None
        if claim is not None and claim.key != key:
            claim = None
        held = self._reservations.pop(key, None)
        try:
            attempt = held.attempt if held else claim.attempt if claim else self._begin(req, key)
            record = record_from_request(req, kv_checksum=(checksum[0], checksum[1]) if owner is req else None)
            self.shape.check(record)
            one = Publication(
                *(key, attempt, record, self._terms(req), own_attempt(req) is None, self.link.slot_wait, claim),
                prompt=getattr(req, "handoff_prompt", None) or prompt_of(req),
            )
        except HandoffError as error:
            self._refuse(req, key, held, failure_of(error), ours=_is_ours(error), early=False)
            return _settled(False)
        except Exception as error:  # nobody's request but this one's
            self._fault(req, key, held, error, early=False)
            return _settled(False)
        self._watch(req)
        req.handoff_record = one
        one.before = lambda _, error: self._published(req, one, held, error)
        told = _held(one.future)
        self.link.courier.send(one)
        return told

    def _published(self, req: Any, one: Publication, held: Reservation | None, error: BaseException | None) -> None:
        """On the courier's thread, or on the scheduler's."""
        if error is not None and refusal_of(req) is not None:
            return
        self._attempts.begin(one.key, one.attempt)
        if error is None:
            self._attempts.end(one.key)
            req.handoff_published = one.attempt
        elif isinstance(error, HandoffError):
            self._refuse(req, one.key, held, failure_of(error), ours=_is_ours(error), early=False, here=False)
        else:
            self._fault(req, one.key, held, error, early=False, here=False)

    def settle(self, timeout: float = 30.0) -> None:
        """Waits up to `timeout` seconds until the store has answered what was sent so far, and ends what it refused.
        For tests and for a node that shuts down; a scheduler does not wait."""
        self.link.courier.settle(timeout)
        self._tell_the_rest()

    def _watch(self, req: Any) -> None:
        sender = getattr(req, "disagg_kv_sender", None)
        if sender is not None and self._own_refused is None and hasattr(type(sender), "poll"):
            watch.watch(sender, req, self)

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
        readers = self.link.expected_readers
        if readers is None:
            readers = watch.readers_of(getattr(req, "disagg_kv_sender", None)) or 1
        return {"owner": owner, "lease": self.link.lease, "expected_readers": readers}

    def _refuse(
        self,
        req: Any,
        key: Key,
        held: Reservation | None,
        failure: Failure,
        *,
        ours: bool,
        early: bool,
        here: bool = True,
    ) -> None:
        """`here`: on the scheduler's thread."""
        log.warning("request %s, room %d: %s", label_of(req), key.room, failure.message)
        attempt = self._attempts.current(key)
        self._attempts.end(key)
        if ours:
            counted = own_attempt(req) is None
            self.link.abort_own(key, failure, attempt, held, self._terms(req), counted=counted)
        self._end(req, failure, early=early, here=here)

    def _fault(
        self, req: Any, key: Key, held: Reservation | None, error: BaseException, *, early: bool, here: bool = True
    ) -> None:
        """What is no refusal of the store's: a request of unknown make, or a fault of this package."""
        log.error("request %s, room %d: not handed over", label_of(req), key.room, exc_info=error)
        self._refuse(req, key, held, fault_of(error), ours=True, early=early, here=here)

    def _end(self, req: Any, failure: Failure, *, early: bool, here: bool = True) -> None:
        """Ends a refused request so that all ranks do it at the same step of their loops: its KV sender fails, SGLang
        takes the least state of all ranks' senders, and each rank ends what has failed. `report_abort` then puts this
        failure in the place of SGLang's words.

        The stages of a pipeline do not compare the senders of requests that wait for their prefill (`early`), only of
        those behind it: there the failure waits until then."""
        if self._own_refused is not None or getattr(req, "disagg_kv_sender", None) is None:
            if here:
                self._tell(req, failure)
            else:
                req.handoff_refused = failure
                self._untold.append((req, failure))
            return
        req.handoff_refused = failure
        if here and not (early and runtime.in_pipeline()):
            watch.fail(req, failure, tell_peer=failure.reason in _UNREPORTED)


def _awaits_row(req: Any) -> bool:
    return bool(getattr(req, "pending_bootstrap", False)) and req.metadata_buffer_index < 0


def _held(future: Future[Any]) -> Future[bool]:
    """Whether the store took what `future` is of. Refers to no request, which could then not go."""
    told: Future[bool] = Future()
    future.add_done_callback(lambda done: told.set_result(done.exception() is None))
    return told


def _settled(value: bool) -> Future[bool]:
    future: Future[bool] = Future()
    future.set_result(value)
    return future


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
