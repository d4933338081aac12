"""The public asyncio client, with many calls in flight from one event loop, as an engine with a loop has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pd_handoff import Reservation
from pd_handoff.aio import DecodeClient, PrefillClient

from bench import records
from bench.worker import timed_tasks

_RESERVES = 128  # in one call


class OursAio:
    """A producer and a reader on one event loop."""

    def __init__(self, address: str, session: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open(address, session))

    async def _open(self, address: str, session: Any) -> None:
        self._prefill = PrefillClient(address, session=session, timeout=30)
        self._decode = DecodeClient(address, session=session, timeout=30, reader_id="bench")
        for client in (self._prefill, self._decode):
            for _ in range(16):  # past the calls that a client makes before it opens a stream
                await client.capabilities()

    async def _reserve(self, rooms: range) -> list[Reservation]:
        reserved: list[Reservation] = []
        for at in range(0, len(rooms), _RESERVES):
            reserved += await self._prefill.reserve_many(list(rooms[at : at + _RESERVES]))
        return reserved

    def many(self, size: str, first: int, count: int, in_flight: int) -> dict[str, Any]:
        """Puts, Gets, and Puts of other rooms by `put_soon`: so many tasks, each one call after the other."""
        return self._loop.run_until_complete(self._many(size, range(first, first + count), in_flight))

    async def _many(self, size: str, rooms: range, in_flight: int) -> dict[str, Any]:
        record = records.record(size)
        reserved = await self._reserve(rooms)
        put = await timed_tasks(lambda at: self._prefill.put(reserved[at], record), len(rooms), in_flight)
        get = await timed_tasks(lambda at: self._decode.get(rooms[at]), len(rooms), in_flight)
        later = range(rooms.stop, rooms.stop + len(rooms))
        reserved = await self._reserve(later)

        async def soon(at: int) -> None:
            await self._prefill.put_soon(reserved[at], record)

        put_soon = await timed_tasks(soon, len(rooms), in_flight)
        await timed_tasks(lambda at: self._decode.get(later[at]), len(rooms), in_flight)
        return {"put": put, "get": get, "put_soon": put_soon}

    def batch(self, size: str, first: int, count: int, batch: int) -> dict[str, Any]:
        """Reserves, Puts, then Gets, so many in one call."""
        return self._loop.run_until_complete(self._batch(size, range(first, first + count), batch))

    async def _batch(self, size: str, rooms: range, batch: int) -> dict[str, Any]:
        record = records.record(size)
        reserved: list[Reservation] = []

        async def reserve(at: int) -> None:
            reserved.extend(await self._prefill.reserve_many(list(rooms[at * batch : (at + 1) * batch])))

        async def put(at: int) -> None:
            part = reserved[at * batch : (at + 1) * batch]
            _all_well(await self._prefill.put_many([(reservation, record) for reservation in part]))

        async def get(at: int) -> None:
            _all_well(await self._decode.get_many(list(rooms[at * batch : (at + 1) * batch])))

        calls = len(rooms) // batch
        return {
            "reserve": await timed_tasks(reserve, calls, 1),
            "put": await timed_tasks(put, calls, 1),
            "get": await timed_tasks(get, calls, 1),
        }


def _all_well(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, Exception):
            raise result


def connect(address: str, session: str) -> OursAio:
    """`session` as the client takes it."""
    return OursAio(address, session)
