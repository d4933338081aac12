"""The largest number of top logprobs that may be asked for, without asking the store for each request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from pd_handoff.aio import DecodeClient
from pd_handoff.errors import HandoffError

log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0  # seconds until a store that did not answer is asked again


class Limits:
    """The limits of one or several stores, refreshed in the background.

    Args:
        clients: a client per store, by the store's target.
        refresh: seconds between two looks.
        known: limits known from before, by target; kept up to date.
    """

    def __init__(
        self, clients: Mapping[str, DecodeClient], refresh: float, known: dict[str, int] | None = None
    ) -> None:
        self._clients = clients
        self._refresh = refresh
        self.known: dict[str, int] = {} if known is None else known
        """What each store said last, by target; a store that never answered is not in it."""
        self._failing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._heard: dict[str, asyncio.Event] = {}

    @classmethod
    def connect(cls, target: str, *, refresh: float = 30.0, **connection: Any) -> Limits:
        """Of one store, or of several with commas between them; `connection` are further arguments of the clients. To
        be called in the event loop that uses it; it begins to ask at once. Raises ValueError for a bad target."""
        targets = [part.strip() for part in target.split(",")]
        limits = cls({each: DecodeClient(each, **connection) for each in targets}, refresh)
        limits.start()
        return limits

    @property
    def top_logprobs(self) -> int | None:
        """The smallest limit of all stores that ever answered; None while none has."""
        return min(self.known.values(), default=None)

    def start(self) -> None:
        """Begins to ask, in the running event loop."""
        if not self._tasks:
            self._heard = {target: asyncio.Event() for target in self._clients}
            self._tasks = [
                asyncio.create_task(self._keep(target, client), name=f"pd-handoff limits of {target}")
                for target, client in self._clients.items()
            ]

    async def wait(self, seconds: float) -> None:
        """Returns when each store has answered or failed once, at the latest after so many seconds."""
        waiting = [asyncio.ensure_future(event.wait()) for event in self._heard.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for task in late:
                task.cancel()

    async def stop(self) -> None:
        """Ends the background work."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, target: str, client: DecodeClient) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                capabilities = await client.capabilities()
            except HandoffError as error:
                self._failed(target, error)
                await self._rest(target, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            self._answered(target, capabilities.limits.top_logprobs)
            pause = _FIRST_PAUSE
            await self._rest(target, self._refresh)

    async def _rest(self, target: str, seconds: float) -> None:
        self._heard[target].set()
        await asyncio.sleep(seconds)

    def _answered(self, target: str, limit: int) -> None:
        before = self.known.get(target)
        self.known[target] = limit
        if target in self._failing or before != limit:
            self._failing.discard(target)
            log.info("the store at %s takes %d top logprobs", target, limit)

    def _failed(self, target: str, error: HandoffError) -> None:
        if target not in self._failing:  # once per outage, not once per attempt
            self._failing.add(target)
            kept = self.known.get(target)
            served = (
                "nothing is known of it yet" if kept is None else f"{kept} top logprobs, known from before, are served"
            )
            log.warning("the limits of the store at %s cannot be read; %s: %s", target, served, error)
