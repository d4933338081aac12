"""One thread with an event loop, for any number of waiting calls of an engine's scheduler."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from pd_handoff.aio import DecodeClient, PrefillClient
from pd_handoff.engines.vllm.settings import Settings
from pd_handoff.retries import Retries

T = TypeVar("T")
log = logging.getLogger("vllm.pd_handoff")
_CLOSE_SECONDS = 3.0
_START_SECONDS = 30.0


class Clients:
    """A client for each side, on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.prefill = PrefillClient(settings.target, **settings.connection)
        self.decode = DecodeClient(settings.target, retries=Retries(total_seconds=2.0), **settings.connection)

    async def close(self) -> None:
        """Closes both."""
        await self.prefill.close()
        await self.decode.close()


class Background:
    """Runs coroutines beside the scheduler, which never waits for them."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for settings that no client takes."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pd-handoff-vllm", daemon=True)
        self._thread.start()

        async def connect() -> Clients:
            return Clients(settings)

        try:
            self._clients = asyncio.run_coroutine_threadsafe(connect(), self._loop).result(_START_SECONDS)
        except BaseException:
            self._end()
            raise

    def start(self, work: Callable[[Clients], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begins `work`, and returns at once."""
        return asyncio.run_coroutine_threadsafe(work(self._clients), self._loop)

    def start_unheeded(self, work: Callable[[Clients], Coroutine[Any, Any, Any]], what: str) -> None:
        """Begins work whose failure is only logged."""
        self.start(work).add_done_callback(lambda done: _log_failure(done, what))

    def close(self) -> None:
        """Ends what is under way, with aborts for what was reserved, and closes the clients. May be called again."""
        if not self._thread.is_alive():
            return

        async def finish() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), _CLOSE_SECONDS)
            await self._clients.close()

        try:
            asyncio.run_coroutine_threadsafe(finish(), self._loop).result(2 * _CLOSE_SECONDS)
        except Exception as error:
            log.warning("the connection to the store was not closed in order: %r", error)
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)


def _log_failure(done: Future[Any], what: str) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.warning("%s: %r", what, error)
