"""A decode row, the request that it is for, and the record that it waits for."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pd_handoff.engines.sglang.row import RowMismatch, RowShape
from pd_handoff.engines.sglang.slots import Slot
from pd_handoff.errors import HandoffAborted, HandoffError, HandoffExists
from pd_handoff.model import Failure, Key

if TYPE_CHECKING:
    from pd_handoff.handoff import Handoff
    from pd_handoff.v1 import record_pb2

log = logging.getLogger(__name__)


class Binding:
    """Which record a row is for. `future` is None for a fake transfer, which has none; `owns` is
    False for one that was refused because its key was another live request's, whose it stays."""

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
    ) -> None:
        self.idx = idx
        self.req = req
        self.key = key
        self.attempt = attempt
        self.future = future
        self.shape = shape
        self.owns = owns
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
        if isinstance(error, HandoffAborted):
            return error.failure
        if isinstance(error, HandoffError):
            return Failure(error.http_status, error.reason, f"the hand-off from prefill failed: {error}")
        if error is not None:  # of a setting, say; the scheduler's other requests go on
            log.error("room %d: the read failed", self.key.room, exc_info=error)
            return Failure(500, "UNREADABLE", f"the hand-off from prefill could not be read: {error}")
        record = self.future.result().proto
        missing = []
        if self.req.return_logprob and not record.tokens[0].HasField("logprob"):
            missing.append("the logprob of the first token")
        if self.req.return_sampling_mask and not record.HasField("sampling_mask"):
            missing.append("a sampling mask")
        if not missing:
            return self._misfit(record)
        text = f"prefill did not hand over {' and '.join(missing)}, which the request asks for"
        return Failure(500, "RECORD_INCOMPLETE", text)

    def _misfit(self, record: record_pb2.HandoffRecord) -> Failure | None:
        try:
            self.shape.check(record)
        except RowMismatch as error:
            return Failure(error.http_status, error.reason, f"prefill's record does not fit decode: {error}")
        return None


def refused(key: Key) -> Future[Handoff]:
    """In the place of the read of a request whose key is another live request's."""
    future: Future[Handoff] = Future()
    future.set_exception(HandoffExists(shared(key)))
    return future


def shared(key: Key) -> str:
    """What a request is told that came second."""
    return (
        f"room {key.room}, sample {key.sample} belongs to another request that is still live here; each needs a room "
        "or a handoff_sample of its own"
    )
