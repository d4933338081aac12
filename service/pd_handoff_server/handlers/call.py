"""One call: what its handler knows of it, and what a handler is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from pd_handoff_server import refusal
from pd_handoff_server.access.authenticator import Approach
from pd_handoff_server.access.roles import Principal
from pd_handoff_server.lifecycle.model import Key
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Done, Parked

from .send_budget import Account, Unread
from .status import INTERNAL

Answer = bytes | Parked
Handler = Callable[[bytes, "Call", Done], Answer]
Wrap = Callable[[str, Handler], Handler]
"""Puts something around the handler of a method: authorisation, metrics, traces."""
Report = Callable[[str, Approach | None, Refusal, BaseException | None], None]
"""(method, whose call it was, what the caller is told, the unforeseen error behind it)."""
NoteItem = Callable[[str, str], None]
"""(method, reason or OK) of an item of a batch that has its answer."""
M = TypeVar("M", bound=Message)

_MARGIN = 0.1  # seconds before the caller's deadline at which it gets the reason instead


class Call:
    """What a handler knows of the call around it.

    Attributes:
        remaining: seconds to the caller's deadline, None without one.
        peer: whom the transport says the caller is.
        principal: what the caller may do; None where nobody is asked for credentials.
        approach: the call as it came in, for its metadata; None when the transport keeps none.
        key, owner: of the hand-off, once the request is read; for events.
        weight: bytes of the request, set by handlers that may have to wait.
        unread: bytes kept for it that its caller has not read; booked of them on this account. See `Unread`.
    """

    remaining: float | None
    peer: str
    approach: Approach | None

    __slots__ = ("account", "booked", "key", "owner", "principal", "unread", "weight")

    def __init__(self, principal: Principal | None = None) -> None:
        """For every transport. A subclass says where `remaining`, `peer` and `approach` come from."""
        self.principal = principal
        self.key: Key | None = None
        self.owner = ""
        self.weight = 0
        self.unread = self.booked = 0
        self.account: Account | None = None

    @property
    def sharer(self) -> str:
        """See `Origin`: the caller's name, or its host, so that many connections make no more callers."""
        if self.principal is not None:
            return self.principal.name
        peer = self.peer
        return peer.rpartition(":")[0] if peer.startswith("ip") else peer

    def take_weight(self) -> int:
        """See `Origin`."""
        weight, self.weight = self.weight, 0
        return weight

    def permit(self, method: str, namespace: str) -> None:
        """Raises Refusal PERMISSION_DENIED unless the caller may call the method for this namespace."""
        if self.principal is not None and not self.principal.permits(method, namespace):
            raise refusal.permission_denied(self.principal.name)

    def patience(self, max_wait: int) -> int:
        """How long to wait, in nanoseconds: a little less than the caller does, so that it learns the reason."""
        if not max_wait or self.remaining is None:
            return max_wait
        spare = self.remaining - min(_MARGIN, self.remaining * 0.2) - _rounding(self.remaining)
        return min(max_wait, max(int(spare * 1e9), 0))


class StatedCall(Call):
    """A call whose deadline, peer and metadata were asked for when it came in."""

    __slots__ = ("approach", "peer", "remaining")

    def __init__(
        self,
        remaining: float | None = None,
        peer: str = "",
        principal: Principal | None = None,
        approach: Approach | None = None,
    ) -> None:
        super().__init__(principal)
        self.remaining = remaining
        self.peer = peer
        self.approach = approach


def _rounding(remaining: float) -> float:
    """By how much, in seconds, the caller's deadline may come sooner: gRPC sends it rounded up to three digits."""
    if remaining < 1:
        return 0.0
    for least, unit in ((10, 0.01), (100, 0.1), (1000, 1.0)):
        if remaining < least:
            return unit
    return remaining * 0.01


def parse(message: type[M], data: bytes) -> M:
    """Read a request. Raises Refusal INVALID_REQUEST for bytes that are none."""
    try:
        return message.FromString(data)
    except DecodeError:
        raise refusal.invalid("INVALID_REQUEST", [("request", f"is not a {message.DESCRIPTOR.name}")]) from None


def finish(encode: Callable[[Any], bytes | Refusal], done: Done, result: Any) -> None:
    """Encode the result of a call that the store answered later, and pass it on; a Refusal passes as it is."""
    if not isinstance(result, Refusal):
        try:
            result = encode(result)
        except Exception:  # the caller must get an answer whatever happens
            result = INTERNAL
    done(result)


def _naming(handler: Handler, unread: Unread | None) -> Handler:
    """Refusals say what they are about, for events. A caller that does not read is refused."""
    counted = Unread() if unread is None else unread
    least, admit = counted.least, counted.admit

    def named(data: bytes, call: Call, done: Done) -> Answer:
        try:
            if counted.direct + counted.elsewhere >= least:
                admit(call)
            return handler(data, call, done)
        except Refusal as refused:
            refused.key, refused.owner = call.key, call.owner
            raise

    return named


def wrapped(handlers: Mapping[str, Handler], wraps: Sequence[Wrap], unread: Unread | None = None) -> dict[str, Handler]:
    """The handlers with these around them, the first one innermost; `unread` bounds what callers do not read."""
    result = {method: _naming(handler, unread) for method, handler in handlers.items()}
    for wrap in wraps:
        result = {method: wrap(method, handler) for method, handler in result.items()}
    return result
