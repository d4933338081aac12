"""Where the calls come in, whatever transport carries them: shut until the store is ready, guarded if it is to be."""

from __future__ import annotations

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import Approach, Guard
from pd_handoff_server.access.roles import Principal
from pd_handoff_server.handlers.admin import Admin
from pd_handoff_server.handlers.call import Handler
from pd_handoff_server.handlers.send_budget import Unread
from pd_handoff_server.handlers.store import Calls

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

    def handler(self, method: str) -> Handler:
        """Of a unary call of the store. Raises Refusal DRAINING while the store is not ready."""
        return self.ready_calls().handlers[method]

    def admin_handler(self, method: str) -> Handler:
        """Of a call of the admin service. Raises Refusal DRAINING while the store is not ready."""
        if self.admin is None:
            raise refusal.draining()
        return self.admin.handlers[method]
