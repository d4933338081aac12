"""A decode row, the request that it is for, and the record that it waits for."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pd_handoff.engines.sglang.failures import failure_of
from pd_handoff.engines.sglang.request import mask_logprobs
from pd_handoff.engines.sglang.row import RowMismatch, RowShape
from pd_handoff.engines.sglang.slots import Slot
from pd_handoff.errors import HandoffError
from pd_handoff.model import Failure, Key

if TYPE_CHECKING:
    from pd_handoff.handoff import Handoff
    from pd_handoff.v1 import record_pb2

log = logging.getLogger(__name__)


class Binding:
    """Which record a row is for. `future` is None for a fake transfer, which has none; `owns` is
    False for one that was refused because its key was none, or another live request's, whose it stays; `draft` is how
    many candidates of a draft model decode goes on from."""

    def __init__(
        self,
        idx: int,
        req: Any,
        key: Key,
        attempt: int,
        future: Future[Handoff] | None,
        shape: RowShape,
        *,
        owns: bool = True,
        draft: int = 0,
    ) -> None:
        self.idx = idx
        self.req = req
        self.key = key
        self.attempt = attempt
        self.future = future
        self.shape = shape
        self.owns = owns
        self.draft = draft
        self.failed_at: float | None = None  # when its KV transfer was first seen to have failed
        self._failure: Failure | None = None
        self._judged = False

    def owned_by(self, idx: int) -> bool:
        """False for the slot of a former owner of the row."""
        return not (isinstance(idx, Slot) and isinstance(self.idx, Slot)) or idx.generation == self.idx.generation

    @property
    def over(self) -> bool:
        """True once the record is here or will not come."""
        return self.future is None or self.future.done()

    @property
    def failure(self) -> Failure | None:
        """Why the record will not come, or cannot be used; None while it may come."""
        if self.over and not self._judged:
            self._judged = True
            self._failure = self._judge()
        return self._failure

    def wait(self) -> Handoff | None:
        """The record, waited for; None when it failed, or for a fake transfer."""
        if self.future is None:
            return None
        error = self.future.exception()  # ends: the read behind it has a deadline
        return self.future.result() if error is None else None

    def _judge(self) -> Failure | None:
        if self.future is None:
            return None
        error = self.future.exception()
        if isinstance(error, HandoffError):
            return failure_of(error, "" if not self.owns else "the hand-off from prefill failed: ")
        if error is not None:  # of a setting, say; the scheduler's other requests go on
            log.error("room %d: the read failed", self.key.room, exc_info=error)
            return Failure(500, "UNREADABLE", f"the hand-off from prefill could not be read: {error}")
        record = self.future.result().proto
        missing = []
        replays = _replays(self.req)
        if self.req.return_logprob and not replays and not record.tokens[0].HasField("logprob"):
            missing.append("the logprob of the first token")
        if self.req.return_sampling_mask and not replays and not record.HasField("sampling_mask"):
            missing.append("a sampling mask")
        if self.draft and not record.HasField("speculative"):
            missing.append("the state of a draft model")
        if missing:
            wanted = "decode goes on from" if missing == ["the state of a draft model"] else "the request asks for"
            text = f"prefill did not hand over {' and '.join(missing)}, which {wanted}"
            return Failure(500, "RECORD_INCOMPLETE", text)
        try:
            self._compare(record)
        except RowMismatch as mismatch:
            text = f"prefill's record does not fit decode: {mismatch}"
            return Failure(mismatch.http_status, mismatch.reason, text)
        return None

    def _compare(self, record: record_pb2.HandoffRecord) -> None:
        """Raises RowMismatch where the settings of the two sides differ."""
        self.shape.check(record)
        candidates = len(record.speculative.topk_index)
        if candidates < self.draft:
            raise RowMismatch(
                f"it has {candidates} candidates of the draft model, decode goes on from {self.draft}: give both sides "
                "the same --speculative settings"
            )
        if not self.req.return_sampling_mask or _replays(self.req):
            return
        if not self.shape.sampling_mask:
            raise RowMismatch("this engine was constructed without rows for sampling masks")
        ids, given = len(record.sampling_mask.token_ids), len(mask_logprobs(record))
        mode = self.req.sampling_logprobs_mode
        # An empty mask has no token whose logprob could be selected.
        if given != (ids if mode == "support" else 1) and (given or ids):
            raise RowMismatch(f"its sampling mask has {given} logprobs for {ids} token ids; decode reads mode {mode!r}")


def _replays(req: Any) -> bool:
    """Whether decode goes on from a token that its user has had: SGLang then asks prefill for no logprobs or mask, and
    commits none."""
    comes_back = getattr(req, "pd_rebootstrap_in_progress", False)
    return bool(comes_back) and getattr(req, "pd_rebootstrap_forced_output_id", None) is not None


def refused(error: HandoffError) -> Future[Handoff]:
    """In the place of the read of a request that has no proper key, or one that is another live request's."""
    future: Future[Handoff] = Future()
    future.set_exception(error)
    return future
