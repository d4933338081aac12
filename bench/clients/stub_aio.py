"""gRPC's public asyncio stub on ready-made bytes, with many calls in flight from one event loop; to an echo."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from bench import records
from bench.clients.stub import STORE
from bench.worker import timed_tasks


class StubAio:
    """One channel."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open(address))

    async def _open(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)

    def many(self, size: str, first: int, count: int, in_flight: int) -> dict[str, Any]:
        """Puts, then Gets: so many tasks, each one call after the other."""
        rooms = range(first, first + count)
        puts = records.puts(rooms, [bytes(32)] * count, records.record(size))
        return self._loop.run_until_complete(self._many(puts, records.gets(rooms), in_flight))

    async def _many(self, puts: list[bytes], gets: list[bytes], in_flight: int) -> dict[str, Any]:
        results = {}
        for name, messages in (("Put", puts), ("Get", gets)):
            call: Any = self._channel.unary_unary(STORE + name)

            async def one(at: int, call: Any = call, messages: list[bytes] = messages) -> None:
                await call(messages[at])

            results[name.lower()] = await timed_tasks(one, len(messages), in_flight)
        return results


def connect(address: str) -> StubAio:
    """To an echo."""
    return StubAio(address)
