"""W3C trace context: whose request a call serves, taken from its metadata into events.

Metadata is read only when an event is written, so calls that write none pay next to nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Protocol

from pd_handoff_server.handlers.call import Answer, Call, Handler
from pd_handoff_server.store.interface import Done

_traceparent = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]: ...


class _Current(threading.local):
    call: Call | None = None


_current = _Current()


def following(method: str, handler: Handler) -> Handler:
    """A `Wrap`: whatever happens while the handler runs belongs to its call's trace."""
    del method
    current = _current

    def handle(data: bytes, call: Call, done: Done) -> Answer:
        current.call = call
        try:
            return handler(data, call, done)
        finally:
            current.call = None

    return handle


def current_trace() -> dict[str, str]:
    """Fields of an event that is written on behalf of the call that this thread carries out."""
    call = _current.call
    return {} if call is None else trace_of(call.approach)


def trace_of(approach: _HasMetadata | None) -> dict[str, str]:
    """trace_id and parent_span_id of a call; nothing when it carries no, several, or a malformed traceparent."""
    if approach is None:
        return {}
    found = [value for key, value in approach.metadata if key == "traceparent"]
    if len(found) != 1 or not isinstance(found[0], str):
        return {}
    match = _traceparent(found[0])
    if match is None or match[1] == "ff" or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return {}
    if match[1] == "00" and len(found[0]) != 55:
        return {}
    return {"trace_id": match[2], "parent_span_id": match[3]}
