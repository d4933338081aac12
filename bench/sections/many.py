"""Many calls in flight from one Python process: threads, or tasks of an event loop. What they cost the client."""

from __future__ import annotations

from bench import records
from bench.scene import QUIET, Scene
from bench.workers import Worker

IN_FLIGHT = {"client-aio": 64, "stub-aio": 64, "client": 16}


def section(in_flight: int) -> str:
    """The section of so many calls in flight."""
    return f"one Python client, {in_flight} calls in flight, 1.5 KB"


def run(scene: Scene) -> None:
    """In turns between all subjects."""
    fast, echo = scene.server("store fast").address, scene.server("echo aio").address
    subjects: dict[str, tuple[str, Worker]] = {}
    for kind, how in (("client-aio", "tasks"), ("client", "threads")):
        for session, name in (("always", "Session"), ("never", "unary")):
            client = scene.worker(kind, fast, session, experiments=QUIET)
            subjects[f"client, {how}, {name}"] = kind, client
    subjects["grpc.aio stub as installed, plain grpc.aio echo"] = "stub-aio", scene.worker("stub-aio", echo)
    count = min(scene.amount.singles * 2, scene.amount.slots - 8)
    for _ in range(scene.amount.rounds):
        for subject, (kind, client) in subjects.items():
            in_flight = IN_FLIGHT[kind]
            first = scene.rooms()
            results = client.ask("many", size=records.SMALL, first=first, count=count, in_flight=in_flight)
            for call, result in results.items():
                add = scene.report.add
                add(section(in_flight), subject, f"{call} calls", "1/s", count / result["seconds"])
                add(section(in_flight), subject, f"{call} client CPU", "µs", result["cpu"] * 1e6)
