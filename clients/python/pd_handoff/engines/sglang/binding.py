"""A decode row, the request that it is for, and the record that it waits for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pd_handoff.engines.sglang.slots import Slot
from pd_handoff.errors import HandoffAborted, HandoffError
from pd_handoff.model import Failure, Key

if TYPE_CHECKING:
    from pd_handoff.handoff import Handoff


class Binding:
    """Which record a row is for. `future` is None for a fake transfer, which has none."""

    def __init__(self, idx: int, req: Any, key: Key, attempt: int, future: Future[Handoff] | None) -> None:
        self.idx = idx
        self.req = req
        self.key = key
        self.attempt = attempt
        self.future = future
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
        try:
            return self.future.result()  # ends: the read behind it has a deadline
        except HandoffError:
            return None

    def _judge(self) -> Failure | None:
        if self.future is None:
            return None
        error = self.future.exception()
        if isinstance(error, HandoffAborted):
            return error.failure
        if isinstance(error, HandoffError):
            return Failure(error.http_status, error.reason, f"the hand-off from prefill failed: {error}")
        if error is not None:
            raise error
        record = self.future.result().proto
        missing = []
        if self.req.return_logprob and not record.tokens[0].HasField("logprob"):
            missing.append("the logprob of the first token")
        if self.req.return_sampling_mask and not record.HasField("sampling_mask"):
            missing.append("a sampling mask")
        if not missing:
            return None
        text = f"prefill did not hand over {' and '.join(missing)}, which the request asks for"
        return Failure(500, "RECORD_INCOMPLETE", text)
