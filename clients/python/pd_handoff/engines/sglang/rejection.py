"""A request that prefill's tokenizer refuses has no scheduler to tell decode: the tokenizer tells it."""

from __future__ import annotations

import logging
import threading
from typing import Any

from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.admission import RequestRefused
from pd_handoff.engines.sglang.common import label_of, rid_of
from pd_handoff.engines.sglang.environment import link_from_environment
from pd_handoff.engines.sglang.failures import failure_from_sglang
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.engines.sglang.link import StoreLink
from pd_handoff.engines.sglang.texts import owner_of

log = logging.getLogger(__name__)
_LEASE = 60.0  # seconds; the reservation is aborted at once


class Rejections:
    """The tokenizer's way to the store, made when it is needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: StoreLink | None = None

    def report(self, request: Any, error: Exception) -> None:
        """Ends the hand-off of a request that `error` refused, in the background: decode answers with the same words,
        400 for a ValueError as SGLang does, else 500. A room that another request holds is left alone, and so is what
        admission refused, since decode's own refuses that, too. Never raises."""
        if isinstance(error, RequestRefused) or not runtime.prefills() or is_fake_transfer(request):
            return
        try:
            key = key_of(request)
            status = 400 if isinstance(error, ValueError) else 500
            link = self._connected()
            terms = {"owner": owner_of(link.owner, rid_of(request)), "lease": _LEASE, "expected_readers": 1}
            link.abort_own(key, failure_from_sglang(error, status), 0, None, terms)
        except Exception as unsent:
            log.warning("request %s: decode may not learn of its rejection: %s", label_of(request), unsent)

    def _connected(self) -> StoreLink:
        with self._lock:
            if self._link is None:
                self._link = link_from_environment()
            return self._link
