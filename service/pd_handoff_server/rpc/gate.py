"""Where the calls come in, whatever transport carries them: shut until the store is ready, guarded if it is to be."""

from __future__ import annotations

from functools import partial

from pd_handoff_server import refusal

from .admin import Admin
from .call import Call
from .calls import Calls
from .guard import Approach, ContextApproach, Guard
from .principal import Principal
from .unread import Unread

STORE = "pd_handoff.v1.MetadataStore"
ADMIN = "pd_handoff.v1.MetadataStoreAdmin"

UNARY = (
    "Capabilities",
    "Reserve",
    "Put",
    "Get",
    "Release",
    "Abort",
    "BatchReserve",
    "BatchPut",
    "BatchGet",
)

ADMIN_UNARY = ("ListHandoffs", "GetHandoff")


class Gate:
    """One for all transports of a store.

    Attributes:
        calls, admin: None while the store is not ready.
        guard: asked before each call of both services, None to let everybody in.
        unread: bounds what is kept for callers that do not read.
    """

    def __init__(self, guard: Guard | None = None, unread: Unread | None = None) -> None:
        self.calls: Calls | None = None
        self.admin: Admin | None = None
        self.guard = guard
        self.unread = Unread() if unread is None else unread

    def admit(self, method: str, approach: Approach) -> Principal | None:
        """Ask the guard, if there is one, about a call of this full method name. Raises Denied."""
        return None if self.guard is None else self.guard(method, approach)

    def open(self, calls: Calls, admin: Admin) -> None:
        """The store is ready."""
        self.admin = admin
        self.calls = calls

    def ready_calls(self) -> Calls:
        """Raises Refusal DRAINING while the store is not ready."""
        if self.calls is None:
            raise refusal.draining()
        return self.calls

    def admin_answer(self, method: str, request: bytes, call: Call) -> bytes:
        """The answer to a call of the admin service, which never waits. Raises Refusal."""
        if self.admin is None:
            raise refusal.draining()
        answer = self.admin.handlers[method](request, call, _never)
        if not isinstance(answer, bytes):
            raise TypeError(f"{method} must answer at once")
        if isinstance(call.approach, ContextApproach):
            self.unread.begin(call)
            self.unread.hold(call, len(answer))
            call.approach.when_over(partial(self.unread.end, call))
        return answer


def _never(result: object) -> None:
    raise TypeError("a call that answers at once has completed later")
