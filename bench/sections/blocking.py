"""One blocking Python client, one call in flight: what a caller waits, and what it costs both sides."""

from __future__ import annotations

from contextlib import ExitStack

from bench import peers, records
from bench.results import percentile
from bench.scene import QUIET, Scene
from bench.servers import Process
from bench.workers import Worker, WorkerError

SECTION = "one blocking Python client, one call in flight, 1.5 KB"
SECTION_LARGE = "one blocking Python client, one call in flight, 15.9 KB (with hidden states)"
LARGE = ("client, Session", "client, unary", "stub, store fast", "Redis", "etcd", "mooncake")
"""Subjects of both; the echoes answer as to a small record."""


def run(scene: Scene) -> None:
    """In turns between all subjects."""
    fast, aio = scene.server("store fast"), scene.server("echo aio")
    subjects: dict[str, tuple[Worker, Process | None]] = {
        "client, Session": (scene.worker("client", fast.address, "always", experiments=QUIET), fast),
        "client, unary": (scene.worker("client", fast.address, "never", experiments=QUIET), fast),
        "client as installed, Session": (scene.worker("client", fast.address, "always"), fast),
        "stub, store fast": (scene.worker("stub", fast.address, "store", experiments=QUIET), fast),
        "stub as installed, store fast": (scene.worker("stub", fast.address, "store"), fast),
        "stub as installed, plain grpc.aio echo": (scene.worker("stub", aio.address, "echo"), aio),
    }
    cpp = scene.grpc_cpp()
    if cpp is not None:
        subjects["stub, gRPC C++"] = (scene.worker("stub", cpp.address, "echo", experiments=QUIET), cpp)
        subjects["stub as installed, gRPC C++"] = (scene.worker("stub", cpp.address, "echo"), cpp)
    tcp = scene.server("store fast tcp")
    subjects["client, Session, TCP"] = (scene.worker("client", tcp.address, "always", experiments=QUIET), tcp)
    subjects["client, unary, TCP"] = (scene.worker("client", tcp.address, "never", experiments=QUIET), tcp)
    with ExitStack() as stack:
        found = scene.redis()
        if found is not None:
            subjects["Redis"] = (scene.worker("redis", found[0].address), found[0])
            subjects["Redis, TCP"] = (scene.worker("redis", found[1]), found[0])
        _add_others(scene, stack, subjects)
        for _ in range(scene.amount.rounds):
            for subject, (client, process) in list(subjects.items()):
                try:
                    _single(scene, subject, client, process, records.SMALL, SECTION)
                    if subject in LARGE:
                        _single(scene, subject, client, process, records.LARGE, SECTION_LARGE)
                except WorkerError as error:
                    scene.report.lacks(f"{subject} ({error})")
                    del subjects[subject]
            _others_of_ours(scene, subjects["client, Session"][0])


def _add_others(scene: Scene, stack: ExitStack, subjects: dict[str, tuple[Worker, Process | None]]) -> None:
    try:
        process = stack.enter_context(peers.etcd(scene.directory))
        subjects["etcd"] = (scene.worker("etcd", process.address), process)
    except (peers.MissingError, WorkerError) as error:
        scene.report.lacks(str(error))
    try:
        process = stack.enter_context(peers.mooncake())
        subjects["mooncake"] = (scene.worker("mooncake", process.address), None)
    except (peers.MissingError, WorkerError) as error:
        scene.report.lacks(str(error))


def _single(scene: Scene, subject: str, client: Worker, process: Process | None, size: str, section: str) -> None:
    count = min(scene.amount.singles, scene.amount.slots - 8)
    if size == records.LARGE:
        count //= 2
    before = process.usage() if process else None
    result = client.ask("single", size=size, first=scene.rooms(), count=count)
    add = scene.report.add
    for method in ("put", "get"):
        latencies = result[method]["latencies"]
        add(section, subject, f"{method} p50", "µs", percentile(latencies, 0.5) * 1e6)
        add(section, subject, f"{method} p99", "µs", percentile(latencies, 0.99) * 1e6)
        add(section, subject, f"{method} client CPU", "µs", result[method]["cpu"] * 1e6)
    if process and before:
        used = process.usage() - before
        add(section, subject, "server CPU a put and get", "µs", used.cpu / count * 1e6)


def _others_of_ours(scene: Scene, client: Worker) -> None:
    """The other calls, by the client over a Session."""
    section = "other calls, client over a Session, one in flight"
    count = min(scene.amount.singles, scene.amount.slots - 8)
    results = {
        **client.ask("capabilities", count=count),
        "one-shot put": client.ask("one_shot", size=records.SMALL, first=scene.rooms(), count=count)["put"],
    }
    results.update(client.ask("reserve", first=scene.rooms(), count=count))
    client.ask("give_back")
    for name, result in results.items():
        scene.report.add(section, name, "p50", "µs", percentile(result["latencies"], 0.5) * 1e6)
        scene.report.add(section, name, "client CPU", "µs", result["cpu"] * 1e6)
