"""The public Python client, with all its checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pd_handoff import DecodeClient, PrefillClient, Reservation

from bench import records
from bench.worker import timed, timed_threads


class Ours:
    """A producer and a reader in one process."""

    def __init__(self, address: str, session: Any) -> None:
        self._prefill = PrefillClient(address, session=session, timeout=30)
        self._decode = DecodeClient(address, session=session, timeout=30, reader_id="bench")
        for client in (self._prefill, self._decode):
            for _ in range(16):  # past the calls that a client makes before it opens a stream
                client.capabilities()

    def _reserve(self, rooms: range) -> list[Reservation]:
        reserved: list[Reservation] = []
        for at in range(0, len(rooms), 128):
            reserved += self._prefill.reserve_many(list(rooms[at : at + 128]))
        return reserved

    def single(self, size: str, first: int, count: int) -> dict[str, Any]:
        """Puts, then Gets."""
        rooms = range(first, first + count)
        record = records.record(size)
        puts = [partial(self._prefill.put, reservation, record) for reservation in self._reserve(rooms)]
        return {"put": timed(_all(puts)), "get": timed([partial(self._decode.get, room) for room in rooms])}

    def reserve(self, first: int, count: int) -> dict[str, Any]:
        """Reserves."""
        self._held: list[Reservation] = []

        def one(room: int) -> None:
            self._held.append(self._prefill.reserve(room))

        return {"reserve": timed([partial(one, room) for room in range(first, first + count)])}

    def give_back(self) -> dict[str, Any]:
        """Release what `reserve` took."""
        for reservation in self._held:
            self._prefill.release(reservation)
        return {}

    def one_shot(self, size: str, first: int, count: int) -> dict[str, Any]:
        """Puts that reserve too, each read afterwards."""
        rooms = range(first, first + count)
        record = records.record(size)
        put = timed([partial(self._prefill.put_once, room, record) for room in rooms])
        for room in rooms:
            self._decode.get(room)
        return {"put": put}

    def capabilities(self, count: int) -> dict[str, Any]:
        """Capabilities."""
        return {"capabilities": timed([self._prefill.capabilities] * count)}

    def batch(self, size: str, first: int, count: int, batch: int) -> dict[str, Any]:
        """Reserves, Puts, then Gets, so many in one call."""
        rooms = range(first, first + count)
        record = records.record(size)
        reserved: list[Reservation] = []

        def reserve(part: range) -> None:
            reserved.extend(self._prefill.reserve_many(list(part)))

        reserve_result = timed([partial(reserve, rooms[at : at + batch]) for at in range(0, count, batch)])
        puts: list[Callable[[], Any]] = []
        gets: list[Callable[[], Any]] = []
        for at in range(0, count, batch):
            puts.append(partial(self._prefill.put_many, [(one, record) for one in reserved[at : at + batch]]))
            gets.append(partial(self._decode.get_many, list(rooms[at : at + batch])))
        return {"reserve": reserve_result, "put": timed(puts, _all_well), "get": timed(gets, _all_well)}

    def repeat(self, method: str, size: str, room: int, count: int) -> dict[str, Any]:
        """The same Put, or the same Get that does not consume, over and over."""
        reservation, record = self._prefill.reserve(room), records.record(size)
        put = partial(self._prefill.put, reservation, record)
        put()
        call = put if method == "put" else partial(self._decode.get, room, consume=False)
        result = timed([call] * count)
        self._decode.get(room)
        return result

    def many(self, size: str, first: int, count: int, in_flight: int) -> dict[str, Any]:
        """Puts and Gets by so many threads, each one call after the other; then Puts of other rooms by one thread and
        `put_soon`."""
        rooms, later = range(first, first + count), range(first + count, first + 2 * count)
        record = records.record(size)
        reserved = self._reserve(rooms)
        put = timed_threads(lambda at: self._prefill.put(reserved[at], record), count, in_flight)
        get = timed_threads(lambda at: self._decode.get(rooms[at]), count, in_flight)
        reserved_later = self._reserve(later)

        def soon(_: int) -> None:
            for future in [self._prefill.put_soon(reservation, record) for reservation in reserved_later]:
                future.result()

        put_soon = timed_threads(soon, 1, 1)
        put_soon["cpu"] /= count
        for room in later:
            self._decode.get(room)
        return {"put": put, "get": get, "put_soon": put_soon}

    def take(self, first: int, count: int) -> dict[str, Any]:
        """Wait for each record: when each call began, and when its answer was here."""
        begun, done = [], []
        for room in range(first, first + count):
            begun.append(time.monotonic())
            self._decode.get(room, max_wait=60)
            done.append(time.monotonic())
        return {"begun": begun, "done": done}

    def hand_over(self, size: str, first: int, count: int, pause: float, whole: bool) -> dict[str, Any]:
        """Put each record, `pause` seconds apart; with `whole` its Reserve counts too."""
        rooms = range(first, first + count)
        record = records.record(size)
        reserved = [] if whole else self._reserve(rooms)
        begun = []
        for index, room in enumerate(rooms):
            time.sleep(pause)
            begun.append(time.monotonic())
            self._prefill.put(self._prefill.reserve(room) if whole else reserved[index], record)
        return {"begun": begun}


def _all_well(results: list[Any]) -> bool:
    return not any(isinstance(result, Exception) for result in results)


def _all(calls: list[Any]) -> list[Callable[[], Any]]:
    return list(calls)


def connect(address: str, session: str) -> Ours:
    """`session` as the client takes it."""
    return Ours(address, session)
