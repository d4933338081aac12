"""Puts that need not be waited for, gathered into batches of what comes at about the same time."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

from pd_handoff.errors import ClientClosed, HandoffError
from pd_handoff.model import Published
from pd_handoff.v1 import metadata_store_pb2 as pb

Outcomes: TypeAlias = "list[Published | HandoffError]"

MOST: Final = 64
"""Records of one batch: beyond that a batch gains nothing."""
WORKERS: Final = 8
"""Batches under way at a time."""
_IDLE = 1.0  # seconds after which a thread without work ends


class Soon:
    """For threads. A record leaves at once when nothing else is under way; otherwise with those that come until it has
    waited `delay` seconds, or there are MOST, or what was under way has ended."""

    def __init__(self, send: Callable[[list[pb.PutRequest]], Outcomes], delay: float) -> None:
        """`send` makes one call for all, and gives each its outcome."""
        self._send = send
        self._delay = delay
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._condition = threading.Condition()
        self._items: list[tuple[pb.PutRequest, Future[Published], float]] = []
        self._threads: set[threading.Thread] = set()
        self._idle = self._busy = 0
        self._closed = False

    def add(self, request: pb.PutRequest) -> Future[Published]:
        """The record's outcome, later."""
        self._check_process()
        future: Future[Published] = Future()
        with self._condition:
            if self._closed:
                raise ClientClosed("this client was closed")
            self._items.append((request, future, time.monotonic() + self._delay))
            if not self._idle and len(self._threads) < WORKERS:
                thread = threading.Thread(target=self._work, name="pd-handoff-soon", daemon=True)
                self._threads.add(thread)
                self._idle += 1
                thread.start()
            elif len(self._items) in (1, MOST):
                self._condition.notify()
        return future

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            self._begin()  # a child: the threads, and what they had to send, are the parent's

    def close(self, patience: float) -> None:
        """Sends what is left, and waits for its outcome, up to `patience` seconds."""
        self._check_process()
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + patience
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self) -> None:
        with self._condition:
            while batch := self._take():  # ends when there was nothing for a while
                self._idle -= 1
                self._busy += 1
                self._condition.release()
                try:
                    self._carry_out(batch)
                finally:
                    self._condition.acquire()
                    self._busy -= 1
                    self._idle += 1
            self._idle -= 1
            self._threads.discard(threading.current_thread())

    def _take(self) -> list[tuple[pb.PutRequest, Future[Published], float]]:
        until = time.monotonic() + _IDLE
        while True:  # ends when there is something to send, or nothing to wait for
            now = time.monotonic()
            if self._items:
                due = self._items[0][2]
                if not self._busy or self._closed or now >= due or len(self._items) >= MOST:
                    batch = self._items[:MOST]
                    del self._items[:MOST]
                    if self._items:
                        self._condition.notify()
                    return batch
                self._condition.wait(due - now)
            elif self._closed or now >= until:
                return []
            else:
                self._condition.wait(until - now)

    def _carry_out(self, batch: list[tuple[pb.PutRequest, Future[Published], float]]) -> None:
        wanted = [(request, future) for request, future, _ in batch if future.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            outcomes: list[Any] = self._send([request for request, _ in wanted])
        except BaseException as error:  # nobody else would tell those who wait
            outcomes = [copy.copy(error) for _ in wanted]
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class AsyncSoon:
    """For tasks, as Soon."""

    def __init__(self, send: Callable[[list[pb.PutRequest]], Awaitable[Outcomes]], delay: float) -> None:
        """`send` makes one call for all, and gives each its outcome."""
        self._send = send
        self._delay = delay
        self._items: list[tuple[pb.PutRequest, asyncio.Future[Published]]] = []
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def add(self, request: pb.PutRequest) -> asyncio.Future[Published]:
        """The record's outcome, later."""
        if self._closed:
            raise ClientClosed("this client was closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Published] = loop.create_future()
        self._items.append((request, future))
        if len(self._items) >= MOST:
            self._flush()
        elif self._timer is None:
            # After this turn of the loop, so that what is put in one turn goes in one call.
            self._timer = loop.call_later(self._delay, self._flush) if self._tasks else loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._items = self._items, []
        if batch:
            task = asyncio.get_running_loop().create_task(self._carry_out(batch))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._items and not self._tasks:
            self._flush()

    async def _carry_out(self, batch: list[tuple[pb.PutRequest, asyncio.Future[Published]]]) -> None:
        wanted = [one for one in batch if not one[1].done()]
        if not wanted:
            return
        outcomes: list[Any]
        try:
            outcomes = list(await self._send([request for request, _ in wanted]))
        except Exception as error:  # nobody else would tell those who wait
            outcomes = [copy.copy(error) for _ in wanted]
        except asyncio.CancelledError:
            outcomes = [ClientClosed("this client was closed")] * len(wanted)
        for (_, future), outcome in zip(wanted, outcomes, strict=True):
            if future.done():  # its caller gave up
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def close(self, patience: float) -> None:
        """Sends what is left, and waits for its outcome, up to `patience` seconds."""
        self._closed = True
        self._flush()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=patience)
