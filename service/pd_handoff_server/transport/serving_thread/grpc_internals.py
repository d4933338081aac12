"""All that the fast transport knows of gRPC's inside, and nothing else does (docs/adr/0003).

`grpc.server` drains its completion queue on one thread and hands each call to a pool. The loop here takes that thread's
place: calls of the routed methods are answered right where they arrive, every other event goes to gRPC's own
`_process_event_and_continue`. What is relied on is checked by `missing` at start-up, and by a real call in `probe`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import grpc
from grpc import _common, _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_NO_DEADLINE: Final = 1e9  # seconds; gRPC shows "no deadline" as a moment far beyond this

_MOST: Final = 64
"""Messages that are carried out as one group."""
_LOOKS: Final = 256
"""Events that are taken while a group waits, lest a flood of others keep it waiting."""
_SPACING: Final = 63
"""Messages at most that are carried out at once after many that were alone."""
_STRETCH: Final = 1_000_000  # nanoseconds of work after which those that are done get their answers

_now = time.monotonic_ns

Event = Any


class Served(Protocol):
    """A call that is answered on the serving thread."""

    def begin(self) -> None:
        """Start its first batch."""


Route = Callable[[Event], Served]
"""Makes a Served of the event of its arrival."""


class Tag:
    """What a batch is started with; the serving thread tells it when the batch has completed.

    Attributes:
        brings: the batch receives a message. Then not `complete` is told but the other steps are taken.
        lasts: more messages may come under this tag.
    """

    __slots__ = ()
    brings = False
    lasts = False

    def complete(self, event: Event) -> Served | None:
        """The batch has completed; returns the call when this was its last."""

    def look_ahead(self, event: Event) -> None:
        """The message of this event waits for others that are there, too: the next under this tag may be."""

    def carry_out(self, event: Event) -> None:
        """Do what the message asks for, and send nothing yet: others may be carried out before."""

    def send_off(self) -> Served | None:
        """Send what came of it, and go on; returns the call when it is over."""


class Step(Tag):
    """A tag that passes the event on."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[Event], Served | None]) -> None:
        self._then = then

    def complete(self, event: Event) -> Served | None:
        """See `Tag`."""
        return self._then(event)


class Arrival:
    """What came with a call, read from its event only when somebody asks. An `Approach`."""

    __slots__ = ("_event",)

    def __init__(self, event: Event) -> None:
        self._event = event

    @property
    def metadata(self) -> Any:
        """(key, value) pairs that the caller sent."""
        return self._event.invocation_metadata

    def method(self) -> str:
        """Full name, as /package.Service/Method."""
        return str(self._event.call_details.method.decode())

    def remaining(self) -> float | None:
        """Seconds to the caller's deadline; None without one."""
        left = float(self._event.call_details.deadline) - time.time()
        return max(left, 0.0) if left < _NO_DEADLINE else None

    def peer(self) -> str:
        """Whom the transport says the caller is."""
        return str(_common.decode(self._event.call.peer()))

    def auth_context(self) -> Mapping[str, Any]:
        """What TLS knows of the caller; empty without TLS."""
        context = cygrpc.auth_context(self._event.call) or {}
        return {_common.decode(key): value for key, value in context.items()}


# -- batches -----------------------------------------------------------------------------------------------------------


def _initial() -> Any:
    return cygrpc.SendInitialMetadataOperation(None, 0)


def _close() -> Any:
    return cygrpc.ReceiveCloseOnServerOperation(0)


def _status(code: int, details: bytes, trailing: Any) -> Any:
    return cygrpc.SendStatusFromServerOperation(trailing, code, details, 0)


def start_receive(call: Any, tag: Tag) -> None:
    """Receive a message; `received` of the completed event has it."""
    call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), tag)


def start_initial_and_receive(call: Any, tag: Tag) -> None:
    """Send initial metadata, and receive a message."""
    call.start_server_batch((_initial(), cygrpc.ReceiveMessageOperation(0)), tag)


def start_send_and_receive(call: Any, message: bytes, tag: Tag) -> None:
    """Send a message, and receive the next."""
    call.start_server_batch((cygrpc.SendMessageOperation(message, 0), cygrpc.ReceiveMessageOperation(0)), tag)


def start_send(call: Any, message: bytes, tag: Tag) -> None:
    """Send a message."""
    call.start_server_batch((cygrpc.SendMessageOperation(message, 0),), tag)


def start_watch(call: Any, tag: Tag) -> None:
    """Complete when the call is over; `cancelled` of the completed event says whether its caller left early."""
    call.start_server_batch((_close(),), tag)


def start_answer(call: Any, message: bytes, tag: Tag) -> None:
    """Send all that a successful unary call sends, and complete when it is over."""
    call.start_server_batch((_initial(), cygrpc.SendMessageOperation(message, 0), _status(0, b"", None), _close()), tag)


def start_watched_answer(call: Any, message: bytes, tag: Tag) -> None:
    """The same after `start_watch`."""
    call.start_server_batch((_initial(), cygrpc.SendMessageOperation(message, 0), _status(0, b"", None)), tag)


def start_status(call: Any, code: int, details: bytes, trailing: Any, tag: Tag, *, watched: bool, begun: bool) -> None:
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
        self._tell = failed

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
            threading.Thread(target=self._run, name="pd-handoff-serving", daemon=True).start()

    def alive(self) -> list[Any]:
        """The calls that have come and are not over, those of gRPC's own handlers among them."""
        with self._state.lock:
            return list(self._state.rpc_states)

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # no event can be taken any more
            self._failed(error)

    def _serve(self) -> None:
        """Take events, one after the other.

        Messages that are there together are carried out together, and then answered together. gRPC's code and ours are
        each too large for what a processor keeps at hand: changing from one to the other with each call costs as much
        as the work itself. A message that is alone does not wait.
        """
        state = self._state
        poll, live = state.completion_queue.poll, state.rpc_states
        request_call, nothing = _server._REQUEST_CALL_TAG, cygrpc.CompletionType.queue_timeout
        routes, others = self._routes, self._others
        group: list[tuple[Tag, Event]] = []
        looks = skip = vain = 0
        over: Served | None
        goes_on = True
        while goes_on:
            event = poll(0) if group else poll()
            tag = event.tag
            over = None
            try:
                if isinstance(tag, Tag):
                    if not tag.brings:
                        over = tag.complete(event)
                    elif group or (not skip and (tag.lasts or len(live) > 1)):
                        looks = looks if group else _LOOKS
                        group.append((tag, event))
                        tag.look_ahead(event)
                    else:
                        skip = skip and skip - 1
                        tag.carry_out(event)
                        over = tag.send_off()
                elif tag is request_call and event.success:
                    route = routes.get(event.call_details.method)
                    goes_on = others(event) if route is None else self._accept(route(event))
                elif event.completion_type == nothing:
                    looks = 0
                else:
                    goes_on = others(event)
            except Exception as error:  # one call's failure must not end the thread that serves all
                self._failed(error)
            # An event that outlives its turn would keep its call, and the next poll spinning on it.
            event = tag = None
            if over is not None:
                goes_on = self._remove(over)
                over = None
            if group:
                looks -= 1
                if looks < 0 or len(group) == _MOST:
                    vain = vain + 1 if len(group) == 1 else 0
                    skip = min(vain * vain // 16, _SPACING)
                    goes_on = self._carry_out(group)

    def _carry_out(self, group: list[tuple[Tag, Event]]) -> bool:
        goes_on, sent = True, 0
        pause = _now() + _STRETCH
        for number, (tag, event) in enumerate(group, 1):
            try:
                tag.carry_out(event)
            except Exception as error:
                self._failed(error)
            if number == len(group) or _now() > pause:
                for done, _ in group[sent:number]:
                    goes_on = self._send_off(done) and goes_on
                sent = number
                pause = _now() + _STRETCH
        group.clear()
        return goes_on

    def _send_off(self, tag: Tag) -> bool:
        try:
            over = tag.send_off()
        except Exception as error:
            self._failed(error)
            return True
        return over is None or self._remove(over)

    def _failed(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):  # nobody is left to be told, and nothing may end this thread
            self._tell(error)

    def _others(self, event: Event) -> bool:
        try:
            return bool(_server._process_event_and_continue(self._state, event))
        except Exception as error:
            self._failed(error)
            return True

    def _accept(self, served: Served) -> bool:
        state = self._state
        with state.lock:
            state.rpc_states.add(served)
            if state.stage is _server._ServerStage.STARTED:
                _server._request_call(state)
            else:
                state.due.discard(_server._REQUEST_CALL_TAG)
        served.begin()
        return True

    def _remove(self, over: Served) -> bool:
        state = self._state
        with state.lock:
            state.rpc_states.remove(over)
            return state.stage is _server._ServerStage.STARTED or not _server._stop_serving(state)


_MODULE = (
    "_process_event_and_continue",
    "_request_call",
    "_request_registered_call",
    "_stop_serving",
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
