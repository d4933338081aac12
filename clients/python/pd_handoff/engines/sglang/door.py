"""A room that two live requests share is refused where requests come in."""

from __future__ import annotations

import weakref
from typing import Any

from pd_handoff.engines.sglang import runtime
from pd_handoff.engines.sglang.common import live_beside, rid_of
from pd_handoff.engines.sglang.failures import failure_of, shared
from pd_handoff.engines.sglang.keys import is_fake_transfer, key_of
from pd_handoff.errors import HandoffExists, InvalidRequest
from pd_handoff.model import Failure, Key


class Door:
    """Remembers which live request has which room. SGLang keys the state of a KV transfer by the room alone: a second
    sender or receiver of a room shares it, and the end of the one ends the process of the other."""

    def __init__(self) -> None:
        self._live: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()

    def refusal(self, req: Any) -> Failure | None:
        """Why the request may not come in; None, and it has its room from now on, when it may.

        The room of a request that SGLang has refused already stays with its owner. What is no room is refused here on
        both sides: otherwise the side that refuses it first fails the other by their connection, without a reason."""
        if is_fake_transfer(req) or req.to_finish is not None:
            return None
        try:
            key = key_of(req)
        except InvalidRequest as error:
            return failure_of(error) if runtime.is_a_side() else None
        other = self._live.get(key)
        if other is not None and rid_of(other) != rid_of(req) and live_beside(other, req):
            return failure_of(HandoffExists(shared(key)))
        self._live[key] = req
        return None
