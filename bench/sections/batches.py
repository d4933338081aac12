"""Batches from one Python client, one in flight: records a second; beside them the same records by unary calls."""

from __future__ import annotations

from collections.abc import Callable

from bench import records
from bench.scene import QUIET, Scene
from bench.workers import Worker

SIZES = (1, 8, 32, 128)
PLAIN = "stub and store on plain grpc.aio, both as installed"
UNARY = "client, store fast, a unary call a record"
"""Beside batches of `BESIDE`."""
BESIDE = 32
LARGE = ("client, store fast", "stub, store fast", PLAIN, "Redis pipeline")
"""Also with hidden states."""


def section(size: int) -> str:
    """The section of a batch size."""
    return f"batches of {size}, one Python client, 1.5 KB"


def run(scene: Scene) -> None:
    """Batches of each size by each subject, in turns."""
    fast, aio = scene.server("store fast"), scene.server("store aio plain")
    subjects: dict[str, Callable[[], Worker]] = {
        "client, store fast": lambda: scene.worker("client", fast.address, "never", experiments=QUIET),
        "client of asyncio, store fast": lambda: scene.worker("client-aio", fast.address, "never", experiments=QUIET),
        "client over a Session, store fast": lambda: scene.worker("client", fast.address, "always", experiments=QUIET),
        "stub, store fast": lambda: scene.worker("stub", fast.address, "store", experiments=QUIET),
        PLAIN: lambda: scene.worker("stub", aio.address, "store"),
    }
    found = scene.redis()
    if found is not None:
        address = found[0].address
        subjects["Redis pipeline"] = lambda: scene.worker("redis", address)
    for _ in range(scene.amount.rounds):
        for size in SIZES:
            count = _count(scene, size)
            for subject, connect in subjects.items():
                result = connect().ask("batch", size=records.SMALL, first=scene.rooms(), count=count, batch=size)
                _note(scene, section(size), subject, result, count, size)
            if size == BESIDE:
                client = subjects["client, store fast"]()
                result = client.ask("single", size=records.SMALL, first=scene.rooms(), count=count)
                _note(scene, section(size), UNARY, result, count, 1)
        count = _count(scene, 32) // 4
        for subject in LARGE:
            if subject in subjects:
                result = subjects[subject]().ask(
                    "batch", size=records.LARGE, first=scene.rooms(), count=count, batch=32
                )
                _note(scene, "batches of 32, one Python client, 15.9 KB", subject, result, count, 32)


def _count(scene: Scene, size: int) -> int:
    wanted = min(scene.amount.singles * (4 if size > 1 else 1), scene.amount.slots - 8)
    return max(wanted // size, 2) * size


def _note(scene: Scene, where: str, subject: str, result: dict[str, dict[str, float]], count: int, size: int) -> None:
    add = scene.report.add
    if "reserve" in result:
        add(where, subject, "reserve", "records/s", count / result["reserve"]["seconds"])
    put, get = result["put"]["seconds"], result["get"]["seconds"]
    add(where, subject, "put", "records/s", count / put)
    add(where, subject, "get", "records/s", count / get)
    add(where, subject, "put and get", "records/s", count / (put + get))
    add(where, subject, "client CPU a put", "µs a record", result["put"]["cpu"] / size * 1e6)
