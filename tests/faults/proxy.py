"""A TCP proxy on loopback that delays, stalls, cuts, abandons, and loses answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: close sends RST


class _Link:
    """One connection through the proxy: a task for each direction."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.tasks: list[asyncio.Task[None]] = []

    def close(self, *writers: asyncio.StreamWriter) -> None:
        for task in self.tasks:
            task.cancel()
        for writer in writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """In a thread of its own, from a free loopback port to `upstream` (host:port). All methods may be called from any
    thread.

    Attributes:
        target: where it listens.
        swallowed: bytes of the store's answers that were lost on purpose.
        connections: accepted so far.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._links: set[_Link] = set()
        self._abandoned: list[_Link] = []
        self._delay = 0.0
        self._swallow = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.swallowed = 0
        self.connections = 0
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # -- faults --------------------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Hold each piece back for so long, in both directions."""
        self._delay = seconds

    def stall(self) -> None:
        """Pass nothing on, and lose nothing, until `resume`."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        """Pass everything on again."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def lose_answers(self, lost: bool) -> None:
        """Drop what the store sends. The connections are worth nothing afterwards: `cut` them."""
        self._swallow = lost

    def cut(self) -> int:
        """Reset every connection, on both sides; returns how many there were."""
        number: int = self._run(self._cut())
        return number

    def abandon(self) -> int:
        """Leave the store with connections behind which nobody is: no FIN, no RST, no acknowledgement of a ping."""
        number: int = self._run(self._abandon())
        return number

    # -- its thread ----------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, far_writer)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._carry(reader, far_writer, answers=False)),
            asyncio.ensure_future(self._carry(far_reader, writer, answers=True)),
        ]
        await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
        if link in self._links:
            self._links.discard(link)
            link.close(writer, far_writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                if answers and self._swallow:
                    self.swallowed += len(data)
                    continue
                writer.write(data)
                await writer.drain()

    async def _cut(self) -> int:
        links, self._links = self._links, set()
        for link in links:
            link.close(link.near, link.far)
        return len(links)

    async def _abandon(self) -> int:
        links, self._links = self._links, set()
        for link in links:
            link.far.transport.pause_reading()  # type: ignore[attr-defined]
            link.close(link.near)
        self._abandoned.extend(links)
        return len(links)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        for link in self._abandoned:
            link.close(link.far)
        await asyncio.sleep(0)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
