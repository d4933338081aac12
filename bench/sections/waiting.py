"""A waiting Get by a client that costs little: from the arrival of the Put to the reader's answer, on the store's side.

What two client processes add is in the section of bench/sections/handoff.py.
"""

from __future__ import annotations

import select
import time

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.results import percentile
from bench.scene import Scene
from bench.sections.load import STORE
from bench.servers import Process

_PAUSE = 0.002  # seconds, in which the Gets come to wait
_WAIT = 60.0  # seconds that a Get waits


def section(waiting: int) -> str:
    """The section of so many Gets that wait at a time."""
    return f"waiting Get, light client, {waiting} at a time, 1.5 KB, Unix socket"


def run(scene: Scene) -> None:
    """In turns between transports, and unary calls and Sessions."""
    for _ in range(scene.amount.rounds):
        for name in ("store fast", "store aio"):
            process = scene.server(name)
            _note(scene, section(1), f"{name}, unary", *_unary(scene, process, 1))
            _note(scene, section(1), f"{name}, Session", *_session(scene, process))
            _note(scene, section(64), f"{name}, unary", *_unary(scene, process, 64))


def _unary(scene: Scene, process: Process, waiting: int) -> tuple[list[float], float]:
    """Seconds from each Put to the answer of its Get, and CPU seconds of the server for both."""
    rooms, tokens = _reserved(scene, process, waiting)
    gets = records.gets(rooms, wait=_WAIT)
    puts = records.puts(rooms, tokens, records.record(records.SMALL))
    reader, writer = (http2.Connection(process.address, f"{STORE}{method}") for method in ("Get", "Put"))
    latencies: list[float] = []
    try:
        before = process.usage()
        for at in range(0, len(rooms), waiting):
            together = range(at, min(at + waiting, len(rooms)))
            _send(reader, gets, together)
            time.sleep(_PAUSE)
            began = time.perf_counter()
            _send(writer, puts, together)
            latencies += [came - began for came in _answers(reader, writer, len(together))]
        return latencies, (process.usage() - before).cpu
    finally:
        reader.close()
        writer.close()


def _send(connection: http2.Connection, messages: list[bytes], which: range) -> None:
    """Send these calls at once, as far as the window lets them out; the rest follow as answers are read."""
    connection.sock.sendall(b"".join(connection.request(index, messages[index]) for index in which))


def _answers(reader: http2.Connection, writer: http2.Connection, count: int) -> list[float]:
    """Read so many answers of both: when those of the reader came. Raises RuntimeError for an error."""
    left = {reader: count, writer: count}
    found: list[float] = []
    while any(left.values()):
        ready, _, _ = select.select([connection.sock for connection in left], [], [], _WAIT)
        if not ready:
            raise RuntimeError("a Put or its waiting Get was not answered")
        for connection in left:
            if connection.sock not in ready:
                continue
            ended, out = connection.absorb()
            if out:
                connection.sock.sendall(out)
            if any(answer is None for _, answer in ended):
                raise RuntimeError("a Put or its waiting Get failed")
            left[connection] -= len(ended)
            if connection is reader:
                found += [time.perf_counter()] * len(ended)
    return found


def _session(scene: Scene, process: Process) -> tuple[list[float], float]:
    """The same over two Sessions, one at a time."""
    rooms, tokens = _reserved(scene, process, 1)
    gets = [pb.GetRequest.FromString(request) for request in records.gets(rooms, wait=_WAIT)]
    puts = [pb.PutRequest.FromString(request) for request in records.puts(rooms, tokens, records.record(records.SMALL))]
    waits = [pb.SessionRequest(call_id=index, get=get).SerializeToString() for index, get in enumerate(gets, 1)]
    sends = [pb.SessionRequest(call_id=index, put=put).SerializeToString() for index, put in enumerate(puts, 1)]
    reader, writer = (http2.Stream(process.address, STORE + "Session") for _ in range(2))
    latencies: list[float] = []
    try:
        before = process.usage()
        for wait, send in zip(waits, sends, strict=True):
            reader.send(wait)
            time.sleep(_PAUSE)
            began = time.perf_counter()
            writer.send(send)
            answer = reader.receive()[0]
            latencies.append(time.perf_counter() - began)
            writer.receive()
            if pb.SessionResponse.FromString(answer).WhichOneof("result") != "get":
                raise RuntimeError("a waiting Get failed")
        return latencies, (process.usage() - before).cpu
    finally:
        reader.close()
        writer.close()


def _reserved(scene: Scene, process: Process, waiting: int) -> tuple[range, list[bytes]]:
    count = max(scene.amount.singles // 3, 2 * waiting)
    first = scene.rooms()
    rooms = range(first, first + count)
    reserves = records.reserves(rooms)
    outcome = http2.drive(process.address, STORE + "Reserve", reserves, in_flight=64, keep=True)
    return rooms, [pb.ReserveResponse.FromString(answer or b"").token for answer in outcome.answers]


def _note(scene: Scene, where: str, subject: str, latencies: list[float], cpu: float) -> None:
    add = scene.report.add
    add(where, subject, "p50", "µs", percentile(latencies, 0.5) * 1e6)
    add(where, subject, "p99", "µs", percentile(latencies, 0.99) * 1e6)
    add(where, subject, "server CPU a Put and Get", "µs", cpu / len(latencies) * 1e6)
