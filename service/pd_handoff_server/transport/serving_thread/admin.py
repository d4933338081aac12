"""The admin service on the fast server: let in and received on the serving thread, carried out in a pool of its own.

A page of the listing takes longer than the serving thread should be kept. A worker is taken only once the caller is let
in and its message is here: whoever opens calls and sends nothing occupies none.
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

from pd_handoff_server.handlers.call import Answer
from pd_handoff_server.handlers.status import INTERNAL
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.transport.gate import ADMIN, ADMIN_UNARY

from .context import Front
from .grpc_internals import Event, Route
from .unary import Unary, Unforeseen


class Pooled(Unary):
    """A call that waits, as parked ones do, for a worker to answer it; when its caller leaves first, none does."""

    __slots__ = ("_pool",)

    def __init__(self, front: Front, pool: futures.Executor, method: str, event: Event) -> None:
        super().__init__(front, method, event)
        self._pool = pool

    def _handle(self, data: bytes) -> Answer:
        return self._pool.submit(self._work, data)

    def _work(self, data: bytes) -> None:
        result: Any
        try:
            result = self._front.gate.admin_handler(self._method)(data, self, self._complete)
            if not isinstance(result, bytes):  # the store answers later, which completes the call
                return
        except Refusal as refused:
            result = refused
        except Exception as error:
            result = Unforeseen(error)
        self._complete(result)

    def _send(self, result: Any) -> None:
        if isinstance(result, Unforeseen):
            self._front.refused(self._method, self.approach, INTERNAL, result.error)
            self._refusal_status(INTERNAL)
        else:
            super()._send(result)


def admin_routes(front: Front, pool: futures.Executor) -> dict[bytes, Route]:
    """MetadataStoreAdmin, by full method name."""
    return {f"/{ADMIN}/{name}".encode(): _route(front, pool, name) for name in ADMIN_UNARY}


def _route(front: Front, pool: futures.Executor, name: str) -> Route:
    return lambda event: Pooled(front, pool, name, event)
