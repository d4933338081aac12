"""Single calls over one Session, by a client that costs little: what the store's side of it comes to."""

from __future__ import annotations

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records
from bench.results import percentile
from bench.scene import QUIET, Scene
from bench.sections.load import STORE
from bench.servers import Process
from bench.workers import Worker

IN_FLIGHT = (1, 16, 64, 256)
FLOOR = "the floor: one call over and over on one stream, one in flight, one Python client, 1.5 KB, Unix socket"


def section(in_flight: int) -> str:
    """The section of so many calls in flight."""
    return f"Session, light client, {in_flight} in flight, 1.5 KB, Unix socket"


def run(scene: Scene) -> None:
    """In turns between transports and depths; and between clients, from the barest to that of this project."""
    barest = _clients(scene)
    for _ in range(scene.amount.rounds):
        for subject, (client, process) in barest.items():
            _floor(scene, subject, client, process)
        for in_flight in IN_FLIGHT:
            for name in ("store fast", "store aio"):
                _round(scene, section(in_flight), name, scene.server(name), in_flight)


def _clients(scene: Scene) -> dict[str, tuple[Worker, Process]]:
    store, echo = scene.server("store fast"), scene.server("echo fast")
    found = scene.redis()
    subjects = {} if found is None else {"Redis": (scene.worker("redis", found[0].address), found[0])}
    core = {
        kind: scene.worker("core", process.address, kind, experiments=QUIET)
        for kind, process in (("store", store), ("echo", echo))
    }
    return {
        **subjects,
        "light client on gRPC's core, echo on gRPC's core": (core["echo"], echo),
        "light client on gRPC's core, store fast": (core["store"], store),
        "client, store fast": (scene.worker("client", store.address, "always", experiments=QUIET), store),
    }


def _floor(scene: Scene, subject: str, client: Worker, process: Process) -> None:
    """Put, then Get; the few calls that prepare them do not show in what the server used."""
    count = scene.amount.singles
    for method in ("put", "get"):
        before = process.usage()
        result = client.ask("repeat", method=method, size=records.SMALL, room=scene.rooms(), count=count)
        used = process.usage() - before
        add = scene.report.add
        add(FLOOR, subject, f"{method} p50", "µs", percentile(result["latencies"], 0.5) * 1e6)
        add(FLOOR, subject, f"{method} client CPU", "µs", result["cpu"] * 1e6)
        add(FLOOR, subject, f"{method} server CPU", "µs", used.cpu / count * 1e6)


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
