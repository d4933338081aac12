"""All that the fast transport knows of gRPC's inside, and nothing else does (docs/adr/0003).

`grpc.server` drains its completion queue on one thread and hands each call to a pool. The loop here takes that thread's
place: calls of the routed methods are answered right where they arrive, every other event goes to gRPC's own
`_process_event_and_continue`. What is relied on is checked by `missing` at start-up, and by a real call in `probe`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import grpc
from grpc import _common, _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_POLL: Final = 1.0  # seconds; bounds nothing but how long an idle serving thread sleeps at a time
_NO_DEADLINE: Final = 1e9  # seconds; gRPC shows "no deadline" as a moment far beyond this

Event = Any
Tagged = tuple[Any, tuple[()]]
"""What a completed batch's tag returns: what to take off the server's live calls, or None."""

ON: Final[Tagged] = (None, ())


class Served(Protocol):
    """A call that is answered on the serving thread."""

    def begin(self) -> None:
        """Start its first batch."""


Route = Callable[["Arrival"], Served]


class Arrival:
    """A call as it arrives, before its message does.

    Attributes:
        method: full name, as /package.Service/Method.
        call: what batches are started on.
    """

    __slots__ = ("_deadline", "call", "metadata", "method")

    def __init__(self, event: Event) -> None:
        details = event.call_details
        self.method: bytes = details.method
        self._deadline: float = details.deadline
        self.call = event.call
        self.metadata: Any = event.invocation_metadata

    def remaining(self) -> float | None:
        """Seconds to the caller's deadline; None without one."""
        left = self._deadline - time.time()
        return max(left, 0.0) if left < _NO_DEADLINE else None

    def peer(self) -> str:
        """Whom the transport says the caller is."""
        return str(_common.decode(self.call.peer()))

    def auth_context(self) -> Mapping[str, Any]:
        """What TLS knows of the caller; empty without TLS."""
        context = cygrpc.auth_context(self.call) or {}
        return {_common.decode(key): value for key, value in context.items()}


# -- batches -----------------------------------------------------------------------------------------------------------


def _initial() -> Any:
    return cygrpc.SendInitialMetadataOperation(None, 0)


def _close() -> Any:
    return cygrpc.ReceiveCloseOnServerOperation(0)


def _status(code: int, details: bytes, trailing: Any) -> Any:
    return cygrpc.SendStatusFromServerOperation(trailing, code, details, 0)


def start_receive(call: Any, tag: Any) -> None:
    """Receive a message; `received` of the completed event has it."""
    call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), tag)


def start_initial_and_receive(call: Any, tag: Any) -> None:
    """Send initial metadata, and receive a message."""
    call.start_server_batch((_initial(), cygrpc.ReceiveMessageOperation(0)), tag)


def start_send_and_receive(call: Any, message: bytes, tag: Any) -> None:
    """Send a message, and receive the next."""
    call.start_server_batch((cygrpc.SendMessageOperation(message, 0), cygrpc.ReceiveMessageOperation(0)), tag)


def start_send(call: Any, message: bytes, tag: Any) -> None:
    """Send a message."""
    call.start_server_batch((cygrpc.SendMessageOperation(message, 0),), tag)


def start_watch(call: Any, tag: Any) -> None:
    """Complete when the call is over; `cancelled` of the completed event says whether its caller left early."""
    call.start_server_batch((_close(),), tag)


def start_answer(call: Any, message: bytes, tag: Any, *, watched: bool) -> None:
    """Send everything that a successful unary call sends; `watched` when `start_watch` has been called."""
    initial, send, status = _initial(), cygrpc.SendMessageOperation(message, 0), _status(0, b"", None)
    if watched:
        call.start_server_batch((initial, send, status), tag)
    else:
        call.start_server_batch((initial, send, status, _close()), tag)


def start_status(call: Any, code: int, details: bytes, trailing: Any, tag: Any, *, watched: bool, begun: bool) -> None:
    """End a call with a status; `begun` when initial metadata has been sent."""
    operations = [_status(code, details, trailing)]
    if not begun:
        operations.insert(0, _initial())
    if not watched:
        operations.append(_close())
    call.start_server_batch(operations, tag)


def received(event: Event) -> bytes | None:
    """The message of a completed batch that received one as its last operation; None when none came."""
    message: bytes | None = event.batch_operations[-1].message()
    return message


def cancelled(event: Event) -> bool:
    """Whether the watched call was given up by its caller, by its deadline, or by the server's stop."""
    return bool(event.batch_operations[0].cancelled())


# -- the serving thread ------------------------------------------------------------------------------------------------


class Loop:
    """The serving thread of one server."""

    def __init__(
        self, server: grpc.Server, routes: Mapping[bytes, Route], failed: Callable[[BaseException], None]
    ) -> None:
        """`failed` is told of errors in a route; they end nothing but their call."""
        self._state: Any = server._state  # type: ignore[attr-defined]
        self._routes = dict(routes)
        self._failed = failed

    def start(self) -> None:
        """As the server's own `start`, but for the thread."""
        state = self._state
        with state.lock:
            if state.stage is not _server._ServerStage.STOPPED:
                raise ValueError("the server has been started before")
            state.server.start()
            state.stage = _server._ServerStage.STARTED
            for method in state.registered_method_handlers:
                _server._request_registered_call(state, method)
            _server._request_call(state)
            threading.Thread(target=self._serve, name="pd-handoff-serving", daemon=True).start()

    def _serve(self) -> None:
        poll, request_call = self._state.completion_queue.poll, _server._REQUEST_CALL_TAG
        timeout, routes, now = cygrpc.CompletionType.queue_timeout, self._routes, time.time
        goes_on = True
        while goes_on:
            event = poll(now() + _POLL)
            if event.completion_type == timeout:
                continue
            tag = event.tag
            if tag is request_call:
                route = routes.get(event.call_details.method) if event.success else None
                goes_on = self._others(event) if route is None else self._accept(event, route)
            else:
                goes_on = self._others(event)
            # An event that outlives its turn would keep its call, and the next poll spinning on it.
            event = tag = None

    def _others(self, event: Event) -> bool:
        try:
            return bool(_server._process_event_and_continue(self._state, event))
        except Exception as error:  # one call's failure must not end the thread that serves all
            self._failed(error)
            return True

    def _accept(self, event: Event, route: Route) -> bool:
        state = self._state
        served = route(Arrival(event))
        with state.lock:
            state.rpc_states.add(served)
            if state.stage is _server._ServerStage.STARTED:
                _server._request_call(state)
            else:
                state.due.discard(_server._REQUEST_CALL_TAG)
        served.begin()
        return True


_MODULE = (
    "_process_event_and_continue",
    "_request_call",
    "_request_registered_call",
    "_ServerStage",
    "_REQUEST_CALL_TAG",
)
_STATE = (
    "lock",
    "completion_queue",
    "server",
    "stage",
    "rpc_states",
    "due",
    "registered_method_handlers",
)
_OPERATIONS = (
    "ReceiveMessageOperation",
    "ReceiveCloseOnServerOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "CompletionType",
    "auth_context",
)


def missing(server: grpc.Server) -> list[str]:
    """Names that this module needs and this gRPC does not have."""
    state = getattr(server, "_state", None)
    lacks = [f"_server.{name}" for name in _MODULE if not hasattr(_server, name)]
    lacks += [f"_server._ServerState.{name}" for name in _STATE if not hasattr(state, name)]
    lacks += [f"cygrpc.{name}" for name in _OPERATIONS if not hasattr(cygrpc, name)]
    return lacks
