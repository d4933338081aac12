"""Many calls in flight: calls a second, and what each costs the server. The client costs a few microseconds a call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.results import percentile
from bench.scene import Scene
from bench.servers import Process

STORE = "/pd_handoff.v1.MetadataStore/"
SECTION = "load, 64 in flight, 1.5 KB, Unix socket"
ONE = "load, 1 in flight, 1.5 KB, Unix socket"
H2LOAD = "h2load -c1 -m64, Get of one record, 1.5 KB, Unix socket"
SUBJECTS = ("store fast", "echo fast", "store aio", "echo aio")


def run(scene: Scene) -> None:
    """All of it."""
    for _ in range(scene.amount.rounds):
        for name in SUBJECTS:
            process = scene.server(name)
            amount = scene.amount.calls if name.endswith("fast") else scene.amount.calls // 3
            _round(scene, SECTION, name, process, records.SMALL, 64, amount)
            _round(scene, ONE, name, process, records.SMALL, 1, scene.amount.singles)
        for in_flight in (16, 256):
            section = "load, more and fewer in flight, store fast, 1.5 KB"
            _round(scene, section, str(in_flight), scene.server("store fast"), records.SMALL, in_flight, _some(scene))
        section = "load, 64 in flight, store fast, other ways"
        _round(scene, section, "TCP, 1.5 KB", scene.server("store fast tcp"), records.SMALL, 64, _some(scene))
        _round(scene, section, "Unix socket, 15.9 KB", scene.server("store fast"), records.LARGE, 64, _some(scene) // 2)
        _one_shot(scene)
        _h2load(scene)


def _some(scene: Scene) -> int:
    return scene.amount.calls // 2


def _round(scene: Scene, section: str, subject: str, process: Process, size: str, in_flight: int, count: int) -> None:
    """Reserve, Put and Get of fresh rooms."""
    count = min(count, scene.amount.slots - 8)
    first = scene.rooms()
    rooms = range(first, first + count)
    real = process.told != {}
    tokens = [bytes(32)] * count
    if real:
        outcome = _timed(scene, section, subject, process, "Reserve", records.reserves(rooms), in_flight, keep=True)
        tokens = [pb.ReserveResponse.FromString(answer or b"").token for answer in outcome.answers]
    _timed(scene, section, subject, process, "Put", records.puts(rooms, tokens, records.record(size)), in_flight)
    _timed(scene, section, subject, process, "Get", records.gets(rooms), in_flight)


def _one_shot(scene: Scene) -> None:
    section, process = "load, 64 in flight, store fast, one-shot Put", scene.server("store fast")
    count = min(_some(scene), scene.amount.slots - 8)
    first = scene.rooms()
    rooms = range(first, first + count)
    messages = records.one_shot_puts(rooms, records.record(records.SMALL))
    _timed(scene, section, "one-shot", process, "Put", messages, 64)
    http2.drive(process.address, STORE + "Get", records.gets(rooms), in_flight=64)


def _timed(
    scene: Scene,
    section: str,
    subject: str,
    process: Process,
    method: str,
    messages: list[bytes],
    in_flight: int,
    *,
    keep: bool = False,
) -> http2.Outcome:
    before = process.usage()
    outcome = http2.drive(
        process.address, STORE + method, messages, in_flight=in_flight, keep=keep, latencies=in_flight == 1
    )
    used = process.usage() - before
    if outcome.errors:
        raise RuntimeError(f"{subject}: {outcome.errors} of {outcome.calls} calls of {method} failed")
    add = scene.report.add
    add(section, subject, f"{method} calls", "1/s", outcome.calls / outcome.seconds)
    add(section, subject, f"{method} server CPU", "µs", used.cpu / outcome.calls * 1e6)
    add(section, subject, f"{method} switches", "a call", used.switches / outcome.calls)
    if outcome.latencies:
        add(section, subject, f"{method} p50", "µs", percentile(outcome.latencies, 0.5) * 1e6)
        add(section, subject, f"{method} p99", "µs", percentile(outcome.latencies, 0.99) * 1e6)
    return outcome


def _h2load(scene: Scene) -> None:
    """The same Get over and over, by a load generator that everybody knows."""
    if shutil.which("h2load") is None:
        scene.report.lacks("h2load (apt nghttp2-client; run tools/bench-peers.sh)")
        return
    count = scene.amount.calls
    room = scene.rooms()
    message = records.gets([room], consume=False)[0]
    body = scene.directory / "h2load-body"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    for name in SUBJECTS:
        process = scene.server(name)
        if name.startswith("store"):
            put = records.one_shot_puts([room], records.record(records.SMALL))
            http2.drive(process.address, STORE + "Put", put, in_flight=1)
        before = process.usage()
        rate = _h2load_rate(process.address, body, count)
        used = process.usage() - before
        scene.report.add(H2LOAD, name, "calls", "1/s", rate)
        scene.report.add(H2LOAD, name, "server CPU", "µs", used.cpu / count * 1e6)


def _h2load_rate(address: str, body: Path, count: int) -> float:
    command = ["h2load", "-n", str(count), "-c", "1", "-m", "64", "-t", "1", "-d", str(body)]
    command += [
        "-B",
        address,
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
        f"http://localhost{STORE}Get",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for line in done.stdout.splitlines():
        if line.startswith("finished in"):
            return float(line.split(",")[1].split()[0])
    raise RuntimeError(f"h2load said: {done.stdout}")
