"""Mooncake's store over TCP: a client without memory of its own, so that each record crosses to the process that has.

`python -m bench.clients.mooncake_peer MASTER` is that process.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]  # in .venv-peers alone

from bench import payload
from bench.worker import timed

_MEMORY = 256 << 20
_BUFFER = 64 << 20


def _setup(master: str, memory: int) -> Any:
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", memory, _BUFFER, "tcp", "", master) != 0:
        raise RuntimeError("no connection to the master")
    return store


class Mooncake:
    """One client."""

    def __init__(self, master: str) -> None:
        self._store = _setup(master, 0)

    def single(self, size: str, first: int, count: int) -> dict[str, Any]:
        """put, then get."""
        value = payload.of(size)
        keys = [f"k{room}" for room in range(first, first + count)]
        put = timed([partial(self._checked_put, key, value) for key in keys])
        get = timed([partial(self._store.get, key) for key in keys], lambda found: bytes(found) == value)
        return {"put": put, "get": get}

    def _checked_put(self, key: str, value: bytes) -> None:
        if self._store.put(key, value) != 0:
            raise RuntimeError("put failed")


def connect(master: str) -> Mooncake:
    """To a running master."""
    return Mooncake(master)


if __name__ == "__main__":
    owner = _setup(sys.argv[1], _MEMORY)
    print("serving", flush=True)
    while True:
        time.sleep(3600)
