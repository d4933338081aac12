"""The clients of one StoreLink, made when they are needed and closed together."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError, wait
from functools import partial
from typing import Any, TypeVar

from pd_handoff import aio
from pd_handoff.client import DecodeClient, PrefillClient

T = TypeVar("T")


class Connections:
    """Knows nothing of its StoreLink, so that it can outlive one that was dropped without a word, and end what that
    had begun."""

    def __init__(self, target: str, prefill: dict[str, Any], background: dict[str, Any], probe: dict[str, Any]) -> None:
        self._target = target
        self._settings = (prefill, background, probe)
        self._lock = threading.Lock()
        self._prefill: PrefillClient | None = None
        self._background: _Background | None = None
        self._prober: DecodeClient | None = None
        self._closed = False

    def prefill(self) -> PrefillClient:
        """The blocking client of the producer's side. Raises RuntimeError once closed, ValueError for a setting that
        no client takes."""
        with self._lock:
            self._require_open()
            if self._prefill is None:
                self._prefill = PrefillClient(self._target, **self._settings[0])
            return self._prefill

    def probe(self) -> None:
        """Returns when the store answers."""
        with self._lock:
            self._require_open()
            if self._prober is None:
                self._prober = DecodeClient(self._target, **self._settings[2])
            prober = self._prober
        prober.capabilities()

    def start(self, work: Callable[[aio.DecodeClient], Coroutine[Any, Any, T]], to_settle: bool) -> Future[T]:
        """Runs `work` on the background thread. Raises as `prefill` does."""
        with self._lock:
            self._require_open()
            if self._background is None:
                self._background = _Background(self._target, self._settings[1])
            return self._background.start(work, to_settle)

    def settle(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for what was begun `to_settle`."""
        background = self._background
        if background is not None:
            background.settle(timeout)

    def close(self) -> None:
        """Ends waits, sends what aborts are still to be sent, and closes the clients. May be called again."""
        with self._lock:
            self._closed = True
            clients = (self._prefill, self._prober)
            self._prefill = self._prober = None
            background, self._background = self._background, None
        if background is not None:
            background.close()
        for client in clients:
            if client is not None:
                client.close()

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("this StoreLink is closed")


Work = Callable[[aio.DecodeClient], Coroutine[Any, Any, Any]]


class _Background:
    """A thread with an event loop and one asyncio client, and one that brings it work. To wake an event loop, a thread
    writes to a socket and lets go of the interpreter for that. It would get it back after whoever took it, milliseconds
    later: so a scheduler puts its work into a queue, for which it lets go of nothing."""

    def __init__(self, target: str, settings: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._pending: set[Future[Any]] = set()
        self._inbox: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pd-handoff-sglang", daemon=True)
        self._thread.start()

        async def connect() -> aio.DecodeClient:
            return aio.DecodeClient(target, **settings)

        try:
            self.client = asyncio.run_coroutine_threadsafe(connect(), self._loop).result(10.0)
        except BaseException:
            self._end()
            raise
        self._bringer = threading.Thread(target=self._bring, name="pd-handoff-bringer", daemon=True)
        self._bringer.start()

    def start(self, work: Callable[[aio.DecodeClient], Coroutine[Any, Any, T]], to_settle: bool) -> Future[T]:
        future: Future[T] = Future()
        if to_settle:
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
        self._inbox.put((work, future))
        return future

    def _bring(self) -> None:
        while (brought := self._inbox.get()) is not None:
            work, future = brought
            if future.cancelled():
                continue
            try:
                inner = asyncio.run_coroutine_threadsafe(work(self.client), self._loop)
            except Exception as error:  # of one call; the others go on
                _settle_as(future, None, error)
                continue
            future.add_done_callback(
                partial(_cancel_with, weakref.ref(inner))
            )  # no cycle: SGLang freezes its collector
            inner.add_done_callback(partial(_follow, future))
            del brought, work, future, inner  # what they hold is not kept until the next one comes

    def settle(self, timeout: float) -> None:
        wait(tuple(self._pending), timeout)

    def close(self) -> None:
        self.settle(2.0)
        self._inbox.put(None)
        self._bringer.join(5.0)

        async def finish() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.client.close()

        asyncio.run_coroutine_threadsafe(finish(), self._loop).result(5.0)
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()


def _cancel_with(running: weakref.ref[Future[Any]], outer: Future[Any]) -> None:
    inner = running()
    if outer.cancelled() and inner is not None:
        inner.cancel()


def _follow(outer: Future[Any], inner: Future[Any]) -> None:
    if inner.cancelled():
        outer.cancel()
    else:
        error = inner.exception()
        _settle_as(outer, None if error else inner.result(), error)


def _settle_as(outer: Future[Any], value: Any, error: BaseException | None) -> None:
    with contextlib.suppress(InvalidStateError):  # whoever waited has cancelled it meanwhile
        if error is None:
            outer.set_result(value)
        else:
            outer.set_exception(error)
