"""Single calls over one Session, by a client that costs little: what the store's side of it comes to."""

from __future__ import annotations

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.results import percentile
from bench.scene import Scene
from bench.sections.load import STORE
from bench.servers import Process

IN_FLIGHT = (1, 16, 64, 256)


def section(in_flight: int) -> str:
    """The section of so many calls in flight."""
    return f"Session, light client, {in_flight} in flight, 1.5 KB, Unix socket"


def run(scene: Scene) -> None:
    """In turns between transports and depths."""
    for _ in range(scene.amount.rounds):
        for in_flight in IN_FLIGHT:
            for name in ("store fast", "store aio"):
                _round(scene, section(in_flight), name, scene.server(name), in_flight)


def _round(scene: Scene, where: str, subject: str, process: Process, in_flight: int) -> None:
    count = min(scene.amount.singles * (1 if in_flight == 1 else 2), scene.amount.slots - 8)
    first = scene.rooms()
    rooms = range(first, first + count)
    reserves = [pb.ReserveRequest.FromString(request) for request in records.reserves(rooms)]
    stream = http2.Stream(process.address, STORE + "Session")
    tokens = []
    for call_id, reserve in enumerate(reserves, 1):
        stream.send(pb.SessionRequest(call_id=call_id, reserve=reserve).SerializeToString())
        tokens.append(pb.SessionResponse.FromString(stream.receive()[0]).reserve.token)
    stream.close()
    record = records.record(records.SMALL)
    puts = [pb.PutRequest.FromString(request) for request in records.puts(rooms, tokens, record)]
    gets = [pb.GetRequest.FromString(request) for request in records.gets(rooms)]
    for method, requests in (
        ("Put", [pb.SessionRequest(call_id=number, put=put) for number, put in enumerate(puts, 1)]),
        ("Get", [pb.SessionRequest(call_id=number, get=get) for number, get in enumerate(gets, 1)]),
    ):
        messages = [request.SerializeToString() for request in requests]
        before = process.usage()
        outcome = http2.converse(process.address, STORE + "Session", messages, in_flight=in_flight)
        used = process.usage() - before
        results = {pb.SessionResponse.FromString(answer or b"").WhichOneof("result") for answer in outcome.answers}
        if results != {method.lower()}:
            raise RuntimeError(f"{subject}: {method} over a Session was answered by {results}")
        add = scene.report.add
        add(where, subject, f"{method} calls", "1/s", outcome.calls / outcome.seconds)
        add(where, subject, f"{method} server CPU", "µs", used.cpu / outcome.calls * 1e6)
        add(where, subject, f"{method} switches", "a call", used.switches / outcome.calls)
        add(where, subject, f"{method} p50", "µs", percentile(outcome.latencies, 0.5) * 1e6)
