"""Redis by redis-py and hiredis, on the same bytes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import redis  # type: ignore[import-not-found]  # in .venv-peers alone

from bench import payload
from bench.worker import timed


class Redis:
    """One connection."""

    def __init__(self, address: str) -> None:
        if address.startswith("unix:"):
            self._redis = redis.Redis(unix_socket_path=address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self._redis = redis.Redis(host=host, port=int(port))
        self._redis.ping()

    def single(self, size: str, first: int, count: int) -> dict[str, Any]:
        """SET, then GET."""
        value = payload.of(size)
        keys = [b"k%d" % room for room in range(first, first + count)]
        put = timed([partial(self._redis.set, key, value) for key in keys], bool)
        get = timed([partial(self._redis.get, key) for key in keys], value.__eq__)
        self._redis.delete(*keys)
        return {"put": put, "get": get}

    def repeat(self, method: str, size: str, room: int, count: int) -> dict[str, Any]:
        """The same SET, or the same GET, over and over."""
        value, key = payload.of(size), b"k%d" % room
        self._redis.set(key, value)
        if method == "put":
            result = timed([partial(self._redis.set, key, value)] * count, bool)
        else:
            result = timed([partial(self._redis.get, key)] * count, value.__eq__)
        self._redis.delete(key)
        return result

    def batch(self, size: str, first: int, count: int, batch: int) -> dict[str, Any]:
        """SET, then GET, in pipelines of so many."""
        value = payload.of(size)
        keys = [b"k%d" % room for room in range(first, first + count)]
        parts = [keys[at : at + batch] for at in range(0, count, batch)]
        put = timed([partial(self._sets, part, value) for part in parts], all)
        get = timed([partial(self._gets, part) for part in parts], lambda found: all(one == value for one in found))
        self._redis.delete(*keys)
        return {"put": put, "get": get}

    def _sets(self, keys: list[bytes], value: bytes) -> Any:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, value)
        return pipeline.execute()

    def _gets(self, keys: list[bytes]) -> Any:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)
        return pipeline.execute()

    def take(self, first: int, count: int) -> dict[str, Any]:
        """BLPOP each."""
        begun, done = [], []
        for room in range(first, first + count):
            begun.append(time.monotonic())
            if self._redis.blpop([b"k%d" % room], timeout=60) is None:
                raise RuntimeError("BLPOP came to nothing")
            done.append(time.monotonic())
        return {"begun": begun, "done": done}

    def hand_over(self, size: str, first: int, count: int, pause: float, whole: bool) -> dict[str, Any]:
        """RPUSH each, `pause` seconds apart."""
        del whole
        value = payload.of(size)
        begun = []
        for room in range(first, first + count):
            time.sleep(pause)
            begun.append(time.monotonic())
            self._redis.rpush(b"k%d" % room, value)
        return {"begun": begun}


def connect(address: str) -> Redis:
    """To a running server."""
    return Redis(address)
