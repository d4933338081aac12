"""What both sides of StoreMetadataBuffers share."""

from __future__ import annotations

import importlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from pd_handoff._values.failure_text import text_of
from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.attempts import Attempts
from pd_handoff.engines.sglang.binding import Binding
from pd_handoff.engines.sglang.link import StoreLink
from pd_handoff.engines.sglang.row import RowShape
from pd_handoff.model import Failure, Key, Reservation

log = logging.getLogger(__name__)

Refused = Callable[[Any, str, int], object]


class Common:
    """The state of one scheduler's buffers, and how a request is told that it cannot go on."""

    def __init__(self, shape: RowShape, link: StoreLink, refused: Refused | None, draft_candidates: int | None) -> None:
        self.shape = shape
        self.link = link
        self.clock = time.monotonic
        self.draft_candidates = runtime.draft_candidates() if draft_candidates is None else draft_candidates
        self._own_refused = refused
        self._ahead: weakref.WeakSet[Any] = weakref.WeakSet()  # claimed before they have a row
        self._untold: deque[tuple[Any, Failure]] = deque()
        self._attempts = Attempts()
        self._reservations: dict[Key, Reservation] = {}
        self._live: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()  # prefill's requests
        self._checksums: dict[int, tuple[Any, int, int]] = {}
        self._bindings: dict[int, Binding] = {}

    def _begin(self, req: Any, key: Key) -> int:
        return self._attempts.begin(key, own_attempt(req))

    def _tell_the_rest(self) -> None:
        """Ends, on the scheduler's thread, the requests without a KV sender that another thread found refused."""
        while self._untold:
            self._tell(*self._untold.popleft())

    def _tell(self, req: Any, failure: Failure) -> None:
        """Ends the request on this side, with a status and a text for its user."""
        req.handoff_refused = failure
        if self._own_refused is not None:
            self._own_refused(req, failure.message, failure.http_status)
            return
        utils = importlib.import_module("sglang.srt.disaggregation.utils")
        utils.prepare_abort(req, failure.message, status_code=runtime.answered_status(failure.http_status))


def own_attempt(req: Any) -> int | None:
    """The attempt that the engine names, if it does."""
    attempt: int | None = getattr(req, "handoff_attempt", None)
    return attempt


def refusal_of(req: Any) -> Failure | None:
    """Why the request was refused here; None while it was not."""
    failure: Failure | None = getattr(req, "handoff_refused", None)
    return failure


def live_beside(other: Any, req: Any) -> bool:
    """Whether `other` is another request that has not ended: a retracted one comes back itself, or after its end."""
    return other is not req and getattr(other, "finished_reason", None) is None


def rid_of(req: Any) -> str:
    """SGLang's name of a request."""
    return str(getattr(req, "rid", ""))


def label_of(req: Any) -> str:
    """The same for the log, which cannot hold all that a name can."""
    return text_of(rid_of(req))
