"""Many calls in flight: calls a second, and what each costs the server. The client costs a few microseconds a call."""

from __future__ import annotations

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.results import percentile
from bench.scene import Scene
from bench.servers import Process

STORE = "/pd_handoff.v1.MetadataStore/"
SECTION = "load, 64 in flight, 1.5 KB, Unix socket"
ONE = "load, 1 in flight, 1.5 KB, Unix socket"
SUBJECTS = ("store fast", "echo fast", "store aio", "echo aio")


def run(scene: Scene) -> None:
    """All of it, in turns between all subjects."""
    for _ in range(scene.amount.rounds):
        for name in SUBJECTS:
            process = scene.server(name)
            amount = scene.amount.calls if name.endswith("fast") else scene.amount.calls // 3
            _round(scene, SECTION, name, process, records.SMALL, 64, amount)
            _round(scene, ONE, name, process, records.SMALL, 1, scene.amount.singles)
        for name in ("store fast", "echo fast", "echo aio"):
            amount = scene.amount.calls // (2 if name.endswith("fast") else 4)
            for in_flight in (16, 256):
                section = f"load, {in_flight} in flight, 1.5 KB, Unix socket"
                _round(scene, section, name, scene.server(name), records.SMALL, in_flight, amount)
            section = "load, 64 in flight, 1.5 KB, TCP"
            _round(scene, section, name, scene.server(f"{name} tcp"), records.SMALL, 64, amount)
            section = "load, 64 in flight, 15.9 KB (with hidden states), Unix socket"
            large = scene.server(name if name.startswith("store") else f"{name} large")
            _round(scene, section, name, large, records.LARGE, 64, amount // 2)
        _others(scene)


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


def _others(scene: Scene) -> None:
    """Calls that come less often."""
    section, process = "load, 64 in flight, store fast, other calls", scene.server("store fast")
    count = min(scene.amount.calls // 2, scene.amount.slots - 8)
    first = scene.rooms()
    rooms = range(first, first + count)
    messages = records.one_shot_puts(rooms, records.record(records.SMALL))
    _timed(scene, section, "one-shot Put", process, "Put", messages, 64, named=False)
    http2.drive(process.address, STORE + "Get", records.gets(rooms), in_flight=64)
    asks = [pb.CapabilitiesRequest().SerializeToString()] * count
    _timed(scene, section, "Capabilities", process, "Capabilities", asks, 64, named=False)


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
    named: bool = True,
) -> http2.Outcome:
    before = process.usage()
    outcome = http2.drive(
        process.address, STORE + method, messages, in_flight=in_flight, keep=keep, latencies=in_flight == 1
    )
    used = process.usage() - before
    if outcome.errors:
        raise RuntimeError(f"{subject}: {outcome.errors} of {outcome.calls} calls of {method} failed")
    measures = [
        ("calls", "1/s", outcome.calls / outcome.seconds),
        ("server CPU", "µs", used.cpu / outcome.calls * 1e6),
        ("switches", "a call", used.switches / outcome.calls),
    ]
    if outcome.latencies:
        measures += [(f"p{share}", "µs", percentile(outcome.latencies, share / 100) * 1e6) for share in (50, 99)]
    for name, unit, value in measures:
        scene.report.add(section, subject, f"{method} {name}" if named else name, unit, value)
    return outcome
