"""What docs/sizing.md counts with: server CPU of a hand-off's calls however they are made, and what those cost that
wait or ask in vain. The clients cost little, so that the store is what is measured."""

from __future__ import annotations

import time

from pd_handoff.v1 import metadata_store_pb2 as pb

from bench import http2, records, servers
from bench.scene import NARROW, Scene
from bench.sections.load import STORE
from bench.servers import Process

SECTION = "sizing: server CPU, 1.5 KB, Unix socket"
WAITING = "sizing: memory of a Get that waits, as a call of its own"
_BATCH = 32
_POLLED = 128  # rooms in a BatchGet
_IN_FLIGHT = 64
_SETTLED = 0.5  # seconds in which the memory in use hardly changes
_HARDLY = 1 << 17  # bytes
_LONGEST = 20.0  # seconds that it may take to settle
_NEVER = 1 << 50  # the first of rooms that nobody puts


def run(scene: Scene) -> None:
    """A store of its own, so that its memory tells of these calls alone."""
    slots = scene.amount.slots // 2
    quick = scene.amount.rounds < 4
    with servers.store(f"unix:{scene.directory}/sizing", slots=slots, **NARROW) as process:
        for _ in range(scene.amount.rounds):
            _batches(scene, process, slots - _BATCH)
            _sessions(scene, process, min(scene.amount.singles * 2, slots - _BATCH))
            _polls(scene, process, scene.amount.singles // 50)
        _waiting(scene, process, 500 if quick else 10_000)


def _note(scene: Scene, subject: str, unit: str, cpu: float, count: int) -> None:
    scene.report.add(SECTION, subject, unit, "µs", cpu / count * 1e6)


def _batches(scene: Scene, process: Process, most: int) -> None:
    count = most // _BATCH * _BATCH
    first = scene.rooms()
    parts = [range(at, at + _BATCH) for at in range(first, first + count, _BATCH)]
    answers = _called(scene, process, "BatchReserve", [records.batch_reserve(part) for part in parts], count)
    tokens = [[one.token for one in pb.BatchReserveResponse.FromString(answer).responses] for answer in answers]
    record = records.record(records.SMALL)
    puts = [records.batch_put(part, some, record) for part, some in zip(parts, tokens, strict=True)]
    for put in _called(scene, process, "BatchPut", puts, count):
        if any(result.WhichOneof("result") != "response" for result in pb.BatchPutResponse.FromString(put).results):
            raise RuntimeError("a Put of a batch failed")
    for got in _called(scene, process, "BatchGet", [records.batch_get(part) for part in parts], count):
        if any(result.WhichOneof("result") != "response" for result in pb.BatchGetResponse.FromString(got).results):
            raise RuntimeError("a Get of a batch failed")


def _called(scene: Scene, process: Process, method: str, messages: list[bytes], count: int) -> list[bytes]:
    before = process.usage()
    answers = _answers(process, method, messages)
    _note(scene, f"{method} of {_BATCH}, one in flight", "a record", (process.usage() - before).cpu, count)
    return answers


def _answers(process: Process, method: str, messages: list[bytes]) -> list[bytes]:
    """One call after the other. Raises RuntimeError when one fails."""
    outcome = http2.drive(process.address, STORE + method, messages, in_flight=1, keep=True)
    found = [answer for answer in outcome.answers if answer is not None]
    if len(found) < len(messages):
        raise RuntimeError(f"{len(messages) - len(found)} of {len(messages)} calls of {method} failed")
    return found


def _sessions(scene: Scene, process: Process, count: int) -> None:
    first = scene.rooms()
    rooms = range(first, first + count)
    reserves = [pb.ReserveRequest.FromString(request) for request in records.reserves(rooms)]
    reserved = _conversed(scene, process, "Reserve", [pb.SessionRequest(reserve=one) for one in reserves])
    tokens = {answer.call_id: answer.reserve.token for answer in reserved}
    made = records.puts(rooms, [tokens[number] for number in range(1, count + 1)], records.record(records.SMALL))
    puts = [pb.PutRequest.FromString(request) for request in made]
    _conversed(scene, process, "Put", [pb.SessionRequest(put=put) for put in puts])
    gets = [pb.GetRequest.FromString(request) for request in records.gets(rooms)]
    _conversed(scene, process, "Get", [pb.SessionRequest(get=get) for get in gets])


def _conversed(
    scene: Scene, process: Process, method: str, requests: list[pb.SessionRequest]
) -> list[pb.SessionResponse]:
    for number, request in enumerate(requests, 1):
        request.call_id = number
    messages = [request.SerializeToString() for request in requests]
    before = process.usage()
    outcome = http2.converse(process.address, STORE + "Session", messages, in_flight=_IN_FLIGHT)
    used = process.usage() - before
    answers = [pb.SessionResponse.FromString(answer or b"") for answer in outcome.answers]
    if {answer.WhichOneof("result") for answer in answers} != {method.lower()}:
        raise RuntimeError(f"{method} over a Session failed")
    _note(scene, f"{method} over a Session, {_IN_FLIGHT} in flight", "a record", used.cpu, len(requests))
    return answers


def _polls(scene: Scene, process: Process, count: int) -> None:
    """One BatchGet after the other of rooms that are not there."""
    message = records.batch_get(range(_NEVER, _NEVER + _POLLED))
    before = process.usage()
    answers = _answers(process, "BatchGet", [message] * count)
    used = process.usage() - before
    if any(result.WhichOneof("result") == "response" for result in pb.BatchGetResponse.FromString(answers[0]).results):
        raise RuntimeError("a room that nobody put was there")
    _note(scene, f"BatchGet of {_POLLED} rooms that are not there", "a call", used.cpu, count)


def _waiting(scene: Scene, process: Process, count: int) -> None:
    before = process.resident()
    hang_up = http2.park(process.address, STORE + "Get", records.gets(range(_NEVER, _NEVER + count), wait=500))
    try:
        after = _settled(process)
    finally:
        hang_up()
    if after is None:
        scene.report.lacks(f"{WAITING}: the store's memory did not settle in {_LONGEST:.0f} s")
    else:
        scene.report.add(WAITING, f"{count:,} at a time", "resident", "KB a Get", (after - before) / count / 1e3)


def _settled(process: Process) -> int | None:
    """Bytes in use, once that hardly changes; None when it goes on changing."""
    deadline = time.monotonic() + _LONGEST
    last = process.resident()
    while time.monotonic() < deadline:
        time.sleep(_SETTLED)
        now = process.resident()
        if abs(now - last) <= _HARDLY:
            return now
        last = now
    return None
