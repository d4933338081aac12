"""A hand-off between two client processes: from the Put to the answer of the Get that waits for it."""

from __future__ import annotations

from bench import records
from bench.results import percentile
from bench.scene import QUIET, Scene
from bench.workers import Worker

PUT_TO_GET = "Put to the answer of a waiting Get, two client processes, 1.5 KB"
WHOLE = "whole hand-off (Reserve, Put, waiting Get), two client processes, 1.5 KB"
_PAUSE = 0.003  # seconds between hand-offs, in which the reader comes to wait again


def run(scene: Scene) -> None:
    """In turns between all subjects."""
    fast, aio = scene.server("store fast").address, scene.server("store aio").address
    pairs: dict[str, tuple[Worker, Worker]] = {}
    for name, address, session in (
        ("client, Session", fast, "always"),
        ("client, unary", fast, "never"),
        ("client, Session, store aio", aio, "always"),
    ):
        pairs[name] = (
            scene.worker("client", address, session, experiments=QUIET),
            scene.worker("client", address, session, experiments=QUIET, serial=1),
        )
    found = scene.redis()
    if found is not None:
        address = found[0].address
        pairs["Redis, RPUSH and BLPOP"] = (scene.worker("redis", address), scene.worker("redis", address, serial=1))
    for _ in range(scene.amount.rounds):
        for name, (producer, reader) in pairs.items():
            _hand_over(scene, PUT_TO_GET, name, producer, reader, whole=False)
            if not name.startswith("Redis"):
                _hand_over(scene, WHOLE, name, producer, reader, whole=True)


def _hand_over(scene: Scene, section: str, subject: str, producer: Worker, reader: Worker, *, whole: bool) -> None:
    count = max(scene.amount.singles // 3, 50)
    first = scene.rooms()
    reader.begin("take", first=first, count=count)
    put = producer.ask("hand_over", size=records.SMALL, first=first, count=count, pause=_PAUSE, whole=whole)
    took = reader.result()
    latencies = [
        done - begun
        for begun, waits_since, done in zip(put["begun"], took["begun"], took["done"], strict=True)
        if waits_since < begun  # else it did not wait
    ]
    if len(latencies) < count // 4:
        scene.report.lacks(f"{section}, {subject}: the reader came too late to wait; the machine is too busy")
        return
    scene.report.add(section, subject, "p50", "µs", percentile(latencies, 0.5) * 1e6)
    scene.report.add(section, subject, "p99", "µs", percentile(latencies, 0.99) * 1e6)
