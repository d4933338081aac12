"""What a call costs as the store grows: more rows, more readers that wait for other rooms."""

from __future__ import annotations

from contextlib import ExitStack

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records, servers
from bench.scene import NARROW, Scene
from bench.sections.load import STORE
from bench.servers import Process

ROWS = "Put of 1.5 KB, 64 in flight, by rows of the store"
PARKED = "Put of 1.5 KB, 64 in flight, by Gets that wait for other rooms"
BURSTS = "Puts of 1.5 KB, 64 at once and then a pause, by rows of the store"
_PUTS = 1024  # a round
_TOGETHER = 512  # rows in use at a time, that every store has but the smallest
_SMALLEST = 64  # rows; they take a burst each


def run(scene: Scene) -> None:
    """In turns between the sizes."""
    quick = scene.amount.rounds < 4
    sizes = (_SMALLEST, 1024, 8192) if quick else (_SMALLEST, 1024, 8192, 65536)
    narrow = {**NARROW, "max_hidden_state_bytes": 0}
    rounds = scene.amount.rounds * (1 if quick else 3)
    with servers.directory() as directory, ExitStack() as stack:

        def start(name: str, slots: int) -> Puts:
            process = stack.enter_context(servers.store(f"unix:{directory}/{name}", slots=slots, **narrow))
            return Puts(process, stack)

        stores = {size: start(str(size), size) for size in sizes}
        for _ in range(rounds):
            for size, puts in stores.items():
                if size > _SMALLEST:
                    puts.round(scene, ROWS, f"{size:,} rows", _TOGETHER)
            for size, puts in stores.items():
                puts.round(scene, BURSTS, f"{size:,} rows", _SMALLEST)
        waiting = {0: stores[1024]}
        for count in (1000,) if quick else (1000, 10000):
            waiting[count] = start(f"p{count}", 1024)
            stack.callback(http2.park(waiting[count].process.address, STORE + "Get", _waits(count)))
        for _ in range(rounds):
            for count, puts in waiting.items():
                puts.round(scene, PARKED, f"{count:,} waiting", _TOGETHER)


def _waits(count: int) -> list[bytes]:
    rooms = range(1 << 50, (1 << 50) + count)
    return records.gets(rooms, wait=500)


class Puts:
    """Connections to a store that stay open, so that the cost of Puts alone is counted."""

    def __init__(self, process: Process, stack: ExitStack) -> None:
        self.process = process
        self._open = {}
        for method in ("Reserve", "Put", "Get"):
            self._open[method] = http2.Connection(process.address, STORE + method)
            stack.callback(self._open[method].close)

    def round(self, scene: Scene, section: str, subject: str, together: int) -> None:
        """Reserve, Put and Get, so many rows at a time."""
        first, record = scene.rooms(), records.record(records.SMALL)
        cpu = seconds = 0.0
        for at in range(first, first + _PUTS, together):
            rooms = range(at, at + together)
            reserved = self._drive("Reserve", records.reserves(rooms))
            tokens = [pb.ReserveResponse.FromString(answer or b"").token for answer in reserved.answers]
            messages = records.puts(rooms, tokens, record)
            before = self.process.usage()
            outcome = self._drive("Put", messages)
            cpu += (self.process.usage() - before).cpu
            seconds += outcome.seconds
            self._drive("Get", records.gets(rooms))
        scene.report.add(section, subject, "server CPU a Put", "µs", cpu / _PUTS * 1e6)
        scene.report.add(section, subject, "calls", "1/s", _PUTS / seconds)

    def _drive(self, method: str, messages: list[bytes]) -> http2.Outcome:
        outcome = http2.drive_on([self._open[method]], messages, in_flight=64, keep=True)
        if outcome.errors:
            raise RuntimeError(f"{outcome.errors} of {outcome.calls} calls of {method} failed")
        return outcome
