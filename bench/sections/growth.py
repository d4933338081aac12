"""What a call costs as the store grows: more rows, more readers that wait for other rooms."""

from __future__ import annotations

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records, servers
from bench.scene import NARROW, Scene
from bench.sections.load import STORE
from bench.servers import Process

ROWS = "Put of 1.5 KB, 64 in flight, by rows of the store"
PARKED = "Put of 1.5 KB, 64 in flight, by Gets that wait for other rooms"
_LEAST = 512  # rows that a round uses, whatever the store has


def run(scene: Scene) -> None:
    """In turns between the sizes."""
    quick = scene.amount.rounds < 4
    sizes = (1024, 8192) if quick else (1024, 8192, 65536)
    narrow = {**NARROW, "max_hidden_state_bytes": 0}
    rounds = scene.amount.rounds * (1 if quick else 3)
    with servers.directory() as directory:
        stores = {}
        for size in sizes:
            where = f"unix:{directory}/{size}"
            stores[size] = scene.stack.enter_context(servers.store(where, slots=size, **narrow))
        for _ in range(rounds):
            for size, process in stores.items():
                _puts(scene, ROWS, f"{size:,} rows", process)
        parked = (0, 1000) if quick else (0, 1000, 10000)
        waiting = {0: stores[sizes[0]]}
        for count in parked[1:]:
            where = f"unix:{directory}/p{count}"
            process = scene.stack.enter_context(servers.store(where, slots=sizes[0], **narrow))
            scene.stack.callback(http2.park(process.address, STORE + "Get", _waits(count)))
            waiting[count] = process
        for _ in range(rounds):
            for count, process in waiting.items():
                _puts(scene, PARKED, f"{count:,} waiting", process)


def _waits(count: int) -> list[bytes]:
    rooms = range(1 << 50, (1 << 50) + count)
    return records.gets(rooms, wait=500)


def _puts(scene: Scene, section: str, subject: str, process: Process) -> None:
    first = scene.rooms()
    rooms = range(first, first + _LEAST)
    reserved = http2.drive(process.address, STORE + "Reserve", records.reserves(rooms), in_flight=64, keep=True)
    tokens = [pb.ReserveResponse.FromString(answer or b"").token for answer in reserved.answers]
    messages = records.puts(rooms, tokens, records.record(records.SMALL))
    before = process.usage()
    outcome = http2.drive(process.address, STORE + "Put", messages, in_flight=64)
    used = process.usage() - before
    if reserved.errors or outcome.errors:
        raise RuntimeError(f"{subject}: {reserved.errors} Reserves and {outcome.errors} Puts failed")
    scene.report.add(section, subject, "server CPU a Put", "µs", used.cpu / outcome.calls * 1e6)
    scene.report.add(section, subject, "calls", "1/s", outcome.calls / outcome.seconds)
    http2.drive(process.address, STORE + "Get", records.gets(rooms), in_flight=64)
