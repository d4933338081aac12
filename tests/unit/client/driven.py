"""One way to drive both faces of the client, so that each test runs on both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


class Driven:
    """A client of either face whose methods are all coroutines here."""

    def __init__(self, client: Any) -> None:
        self.raw = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.raw, name)

        async def call(*args: Any, **options: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **options)
            return await asyncio.to_thread(method, *args, **options)

        return call

    async def enter(self, manager: Any) -> Any:
        if hasattr(manager, "__aenter__"):
            return Driven(await manager.__aenter__())
        return Driven(await asyncio.to_thread(manager.__enter__))

    async def leave(self, manager: Any, error: BaseException | None = None) -> None:
        kind = None if error is None else type(error)
        if hasattr(manager, "__aexit__"):
            await manager.__aexit__(kind, error, None)
        else:
            await asyncio.to_thread(manager.__exit__, kind, error, None)
