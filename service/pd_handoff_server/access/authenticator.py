"""Who may call: one hook, the same on every transport, asked before anything of a call is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc

from .roles import Principal


class Approach(Protocol):
    """A call that asks to be let in."""

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """(key, value) pairs that the caller sent."""

    def peer(self) -> str:
        """Whom the transport says the caller is."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """What TLS knows of the caller; empty without TLS."""


class Denied(Exception):  # noqa: N818 - an answer, as a Refusal is
    """The caller is not let in; it is told the code and the message, and nothing else.

    Attributes:
        code: UNAUTHENTICATED or PERMISSION_DENIED.
        message: for the caller.
        caller: its name, where it is known; for events, never sent.
    """

    def __init__(self, code: grpc.StatusCode, message: str, caller: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.caller = caller


Guard = Callable[[str, Approach], Principal]
"""Takes the full method name (/package.Service/Method) and the call; returns what its caller may do, for its `Call`;
raises Denied. Runs on the serving thread: it must not block."""


class ContextApproach:
    """An Approach from a servicer's context, synchronous or not."""

    __slots__ = ("_context", "auth_context", "peer")

    def __init__(self, context: Any) -> None:
        self._context = context
        self.peer: Callable[[], str] = context.peer
        self.auth_context: Callable[[], Mapping[str, Sequence[bytes]]] = context.auth_context

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """See `Approach`."""
        return self._context.invocation_metadata() or ()

    def when_over(self, then: Callable[[], object]) -> None:
        """Call this once the call is over: its answer is out, or its caller gone."""
        context = self._context
        if hasattr(context, "add_done_callback"):  # of grpc.aio
            context.add_done_callback(lambda _: then())
        elif not context.add_callback(then):  # it is over already
            then()
