"""A KV sender whose state minds the hand-off of its request, so that SGLang ends both together."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Protocol

from pd_handoff.model import Failure

log = logging.getLogger(__name__)

# Values of SGLang's KVPoll.
FAILED, BOOTSTRAPPING, WAITING_FOR_INPUT, TRANSFERRING, SUCCESS = range(5)


class Minds(Protocol):
    """Who says what a sender's state is."""

    def sender_state(self, req: Any, poll: int) -> int:
        """The state of the request's sender, given the sender's own."""


def watch(sender: Any, req: Any, side: Minds) -> None:
    """From now on `sender.poll()` asks `side`, too. Once per sender."""
    if isinstance(getattr(sender, "poll", None), _Poll):
        return
    sender.poll = _Poll(sender, req, side)


class _Poll:
    """In the place of one sender's `poll`. Holds nothing alive: SGLang freezes its garbage collector, which then never
    finds a cycle."""

    def __init__(self, sender: Any, req: Any, side: Minds) -> None:
        self._sender, self._req, self._side = weakref.ref(sender), weakref.ref(req), weakref.ref(side)

    def __call__(self) -> int:
        sender, req, side = self._sender(), self._req(), self._side()
        if sender is None:
            return FAILED
        state: int = type(sender).poll(sender)
        if req is None or side is None:
            return state
        try:
            return side.sender_state(req, state)
        except Exception:  # nobody's request but this one's, and the scheduler's loop goes on
            log.exception("the hand-off of a request could not be looked at")
            return state


def fail(req: Any, failure: Failure, *, tell_peer: bool) -> None:
    """Fails the request's KV sender: SGLang ends the request at its next look. With `tell_peer`, decode hears so by the
    connection that the KV cache would take; else the store tells it."""
    sender = getattr(req, "disagg_kv_sender", None)
    if sender is None:
        return
    if tell_peer:
        _tell_peer(sender, failure)
    try:
        sender.abort()
    except Exception:  # of a transfer backend; the hand-off has ended already, and decode with it
        log.exception("a KV sender could not be aborted")


def _tell_peer(sender: Any, failure: Failure) -> None:
    """The way of SGLang's own transfer failures, which its Mooncake, NIXL and Mori managers share. Where a backend has
    none, decode waits for its own time limit."""
    manager = getattr(sender, "kv_mgr", None)
    send = getattr(manager, "send_kv_status_message", None)
    if manager is None or send is None:
        return
    room = sender.bootstrap_room
    try:
        infos = getattr(manager, "transfer_infos", {}).get(room, {})
        targets = [(info.endpoint, info.dst_port) for info in infos.values() if not info.is_dummy]
        send(targets=targets, bootstrap_room=room, status=FAILED, failure_reason=words_of(failure))
    except Exception:  # of a transfer backend
        log.exception("room %s: decode could not be told of the failure", room)


_MARK = "pd-handoff "


def words_of(failure: Failure) -> str:
    """A failure as one line of text, as it crosses by the KV connection."""
    return f"{_MARK}{failure.http_status} {failure.reason}: {failure.message}"


def failure_in(text: str) -> Failure | None:
    """The failure in SGLang's own text about a failed transfer, if prefill put one there."""
    _, mark, rest = text.partition(_MARK)
    status, _, more = rest.partition(" ")
    reason, colon, message = more.partition(": ")
    if not (mark and colon and status.isascii() and status.isdecimal() and 400 <= int(status) <= 599):
        return None
    return Failure(int(status), reason, message)


def readers_of(sender: Any) -> int | None:
    """How many ranks of decode read the request's record: the attention TP size that decode gave when it connected.
    None before that, and with a transfer backend that does not say."""
    manager: Any = getattr(sender, "kv_mgr", None)
    try:
        infos = manager.transfer_infos.get(sender.bootstrap_room) or {}
        sizes = {int(manager.decode_kv_args_table[peer].dst_attn_tp_size) for peer in infos}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return max(sizes, default=None)
