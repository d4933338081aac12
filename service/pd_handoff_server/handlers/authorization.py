"""Authorisation of each call, also of those inside a Session or a batch, which no guard sees."""

from __future__ import annotations

from pd_handoff_server.access.authorizer import Authorizer
from pd_handoff_server.store.interface import Done

from .call import Answer, Call, Handler, Wrap


def authorized(authorizer: Authorizer) -> Wrap:
    """A wrap that judges each call by its caller's role before the handler sees it."""

    def wrap(method: str, handler: Handler) -> Handler:
        def handle(data: bytes, call: Call, done: Done) -> Answer:
            call.principal = authorizer.judge(method, call.principal, call.approach)
            return handler(data, call, done)

        return handle

    return wrap
