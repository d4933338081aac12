"""Health on the serving thread: checks answered at once, watches told of each change.

gRPC's own synchronous health service will not do: it sends to watchers under a lock that the serving thread takes when
a watcher leaves, while the send waits for the serving thread. And a check whose message never comes would keep a
worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from grpc_health.v1 import health_pb2

from pd_handoff_server import refusal
from pd_handoff_server.handlers.call import Answer, StatedCall
from pd_handoff_server.transport.builtin_services import health_listing, read_health

from . import grpc_internals
from .context import Front
from .grpc_internals import Event
from .stream import Stream
from .unary import Unary

Status = int  # of health_pb2.HealthCheckResponse.ServingStatus
Send = Callable[[bytes], None]
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def _encoded(status: Status) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())


class Health:
    """The status of each service, and who wants to be told of changes."""

    def __init__(self) -> None:
        self._told: dict[str, Status] = {}
        self._watchers: dict[str, dict[Send, None]] = {}
        self._lock = threading.Lock()

    def set(self, service: str, status: Status) -> None:
        """Change a status, and tell those who watch it."""
        with self._lock:
            self._told[service] = status
            for send in self._watchers.get(service, ()):
                send(_encoded(status))

    def check(self, request: bytes) -> bytes:
        """The answer to a HealthCheckRequest. Raises Refusal NOT_FOUND."""
        status = self._told.get(read_health(request).service)
        if status is None:
            raise refusal.unknown_service()
        return _encoded(status)

    def listing(self) -> bytes:
        """A HealthListResponse."""
        with self._lock:
            return health_listing(self._told).SerializeToString()

    def watch(self, service: str, send: Send) -> None:
        """Tell the status now and whenever it changes."""
        with self._lock:
            self._watchers.setdefault(service, {})[send] = None
            send(_encoded(self._told.get(service, _UNKNOWN)))

    def forget(self, service: str, send: Send) -> None:
        """Tell no more."""
        with self._lock:
            watchers = self._watchers.get(service, {})
            watchers.pop(send, None)


class Check(Unary):
    """A health check, whoever asks."""

    __slots__ = ("_health",)
    method = "Check"

    def __init__(self, front: Front, health: Health, event: Event) -> None:
        super().__init__(front, self.method, event)
        self._health = health

    def begin(self) -> None:
        """Receive its message."""
        self.brings = True
        grpc_internals.start_receive(self._call, self)

    def _handle(self, data: bytes) -> Answer:
        return self._health.check(data)


class Listing(Check):
    """The health of every service, whoever asks."""

    __slots__ = ()
    method = "List"

    def _handle(self, data: bytes) -> Answer:
        del data
        return self._health.listing()


class _Watching:
    """In the place of a Session: takes the one request of a watch."""

    def __init__(self, health: Health, send: Send) -> None:
        self._health = health
        self._send = send
        self._service: str | None = None

    def receive(self, data: bytes) -> None:
        """Begin to watch; anything after the first request is none of a watch's."""
        if self._service is None:
            self._service = read_health(data).service
            self._health.watch(self._service, self._send)

    def fail(self, data: bytes) -> None:
        """Nothing here fails."""

    def close(self) -> None:
        """The caller left."""
        if self._service is not None:
            self._health.forget(self._service, self._send)


class Watch(Stream):
    """A watch, whoever asks. Its caller has said all when it has sent its request; it ends when the caller leaves."""

    __slots__ = ("_health",)

    def __init__(self, front: Front, health: Health, event: Event) -> None:
        super().__init__(front, event)
        self._health = health

    def _enter(self) -> Any:
        self._front.refuse_stopping()
        self.holder = StatedCall(None, self._arrival.peer())
        return _Watching(self._health, self._send)

    def _finish(self) -> None:
        """It goes on with what changes."""
