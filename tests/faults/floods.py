"""HTTP/2 frames by the thousand, calls that are opened and left, and callers that do not read."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import requests
from tests.support.process import ProcessStore
from tests.support.waits import eventually

from . import http2
from .bad_messages import HEALTH, REFLECTION, SESSION
from .common import WIDTHS, Report, record_of
from .http2 import Connection, frame
from .outside import metrics
from .target import ADMIN, SECONDS, STORE, Target

GET = f"/{STORE}/Get"
WAITING = requests.get(77, max_wait=600).SerializeToString()
_NO_WINDOW = struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0)
_CANCEL = struct.pack(">I", 8)


def _opened(number: int, body: bytes = b"") -> bytes:
    """A Get on a stream of its own, and its cancellation."""
    stream = 2 * number + 3
    opening = frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers(GET))
    data = frame(http2.DATA, http2.END_STREAM, stream, http2.message(body)) if body else b""
    return opening + data + frame(http2.RST_STREAM, 0, stream, _CANCEL)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "PING flood": lambda number: frame(http2.PING, 0, 0, struct.pack(">Q", number)),
    "SETTINGS flood": lambda number: frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535 + number % 7)),
    "empty DATA flood": lambda number: frame(http2.DATA, 0, 1, b""),
    "PRIORITY flood": lambda number: frame(http2.PRIORITY, 0, 2 * number + 1, struct.pack(">IB", number, 9)),
    "WINDOW_UPDATE flood": lambda number: frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    "flood of frames that nobody knows": lambda number: frame(0xB0, number & 0xFF, 0, b"x" * 64),
    "rapid reset": _opened,
    "rapid reset of waiting Gets": lambda number: _opened(number, WAITING),
}


def frames(target: Target, many: int) -> None:
    """Frames by the thousand. Each flood ends when the store hangs up, or after so many."""
    for what, make in FLOODS.items():
        with target.attack(what), Connection(target.address) as connection:
            connection.send(connection.open_call(1, f"/{STORE}/Session"))
            for start in range(0, many, 500):
                sent = connection.send(b"".join(make(number) for number in range(start, min(start + 500, many))))
                target.report.count("hostile frames", 500)
                if not sent:
                    break
            connection.settle(0.2)
            target.report.count("floods cut off by the store", int(connection.closed or connection.goaway))


def headers(target: Target, many: int) -> None:
    """A header block that goes on and on."""
    with target.attack("headers that do not end"), Connection(target.address) as connection:
        connection.send(frame(http2.HEADERS, 0, 1, http2.call_headers(GET)))
        block = http2.field("x-more", b"m" * 8000)
        for _ in range(many):
            target.report.count("hostile frames")
            if not connection.send(frame(http2.CONTINUATION, 0, 1, block)):
                break
        connection.settle(0.2)


def references(target: Target, many: int) -> None:
    """One large header in the peer's table, then blocks of 16,000 one-byte references to it: 62 MB each once read."""
    bomb = http2.REFERENCE * 16_000
    kept = {"a name of its own": ("x-more", b"m" * 3900), "a binary one": ("x-more-bin", b"AAAA" * 975)}
    kept["the path"] = (":path", b"/" + b"m" * 3900)
    for what, entry in kept.items():
        with target.attack(f"references to one header, {what}"), Connection(target.address) as connection:
            opening = http2.call_headers(GET) + http2.remembered(*entry)
            connection.send(frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, opening))
            for number in range(many):
                target.report.count("hostile frames")
                flags = http2.END_HEADERS | http2.END_STREAM
                if not connection.send(frame(http2.HEADERS, flags, 2 * number + 3, bomb)):
                    break
            connection.settle(0.2)
            target.check("among references to one header")
    with target.attack("references that do not end"), Connection(target.address) as connection:
        connection.send(frame(http2.HEADERS, 0, 1, http2.call_headers(GET) + http2.remembered("x-more", b"m" * 3900)))
        for _ in range(many):
            target.report.count("hostile frames")
            if not connection.send(frame(http2.CONTINUATION, 0, 1, bomb)):
                break
        connection.settle(0.2)


def garbage(target: Target) -> None:
    """What is no HTTP/2, and frames where they make no sense."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of TLS
    placed = ((0, b""), (0, b"x"), (1, b""), (1, b"x" * 5), (2, b"x" * 8), (2**31 - 1, b"x" * 20_000))
    with target.attack("garbage in place of HTTP/2"):
        for start in (b"GET / HTTP/1.1\r\n\r\n", hello, b"\x00" * 4096, http2.PREFACE[:10]):
            with Connection(target.address, preface=b"") as connection:
                connection.send(start)
                connection.settle(0.1)
                target.report.count("hostile frames")
        for kind in range(12):
            for stream, payload in placed:
                with Connection(target.address) as connection:
                    connection.send(frame(kind, 0xFF, stream, payload))
                    target.report.count("hostile frames")


def abandoned(target: Target, streams: int) -> None:
    """Calls that are opened and never finished: without a message, with half of one, with a wait, unread."""
    for what, path, body in (
        ("calls without a message", GET, b""),
        ("health checks without a message", f"/{HEALTH}/Check", b""),
        ("watches of health", f"/{HEALTH}/Watch", http2.message(b"")),
        ("watches of health without a message", f"/{HEALTH}/Watch", b""),
        ("reflections", f"/{REFLECTION}", b""),
        ("admin calls without a message", f"/{ADMIN}/ListHandoffs", b""),
        ("waits", GET, http2.message(WAITING)),
        ("half messages", f"/{STORE}/Put", http2.message(b"\x0a" * 30_000, length=1 << 20)),
        ("Sessions", f"/{STORE}/Session", http2.message(SESSION[3])),
    ):
        with target.attack(f"abandoned {what}"), Connection(target.address) as connection:
            for number in range(streams):
                stream = 2 * number + 1
                data = [frame(http2.DATA, 0, stream, body[at : at + 16_000]) for at in range(0, len(body), 16_000)]
                sent = connection.send(connection.open_call(stream, path) + b"".join(data), 5.0)
                target.report.count("abandoned calls")
                if not sent:
                    break
            connection.settle(0.5)
            target.check(f"among abandoned {what}")
    target.settled()


def crowd(target: Target, many: int) -> None:
    """Connections that say nothing, or hang up in the middle."""
    with target.attack("silent connections"), contextlib.ExitStack() as held:
        for number in range(many):
            connection = Connection(target.address, preface=b"" if number % 2 else http2.PREFACE)
            held.callback(connection.close)
            target.report.count("silent connections")
        target.check("among silent connections")
    with target.attack("connections cut in the middle"):
        for number in range(many):
            with Connection(target.address) as connection:
                connection.send(connection.open_call(1, f"/{STORE}/Put"))
                connection.send(frame(http2.DATA, 0, 1, http2.message(bytes(100 + number), length=5000)))
            target.report.count("connections cut")


def deaf(target: Target, many: int) -> None:
    """Clients that ask and never read."""
    room = 1 << 41
    key = record_of(("", 1, 0), 0)
    key.customized_info = bytes(256)
    with target.channel() as channel:
        channel.unary_unary(f"/{STORE}/Put")(requests.put_once(room, key).SerializeToString(), timeout=SECONDS)
    ask = pb.SessionRequest(call_id=1, get=requests.get(room)).SerializeToString()
    with target.attack("a Session that is not read"), Connection(target.address, settings=_NO_WINDOW) as connection:
        connection.send(connection.open_call(1, f"/{STORE}/Session"))
        data = frame(http2.DATA, 0, 1, http2.message(ask) * 100)
        for _ in range(many):
            if not connection.send(data, 1.0):
                break  # the store no longer takes them: what it is meant to do
            target.report.count("unread requests", 100)
        target.check("beside a Session that is not read")
    with target.attack("answers that are not read"), Connection(target.address, settings=_NO_WINDOW) as connection:
        body = http2.message(requests.get(room).SerializeToString())
        for number in range(min(many, 4_000)):
            stream = 2 * number + 1
            data = connection.open_call(stream, GET) + frame(http2.DATA, http2.END_STREAM, stream, body)
            if not connection.send(data, 1.0):
                break
            target.report.count("unread requests")
        target.check("beside answers that are not read")
    target.settled()


UNREAD = 96 << 20
"""Bytes of answers that a store of `unread` keeps for those who do not read."""


def unread(report: Report, transport: str, say: Callable[[str], None]) -> None:
    """Large answers that are not read. Without a bound, they would be gigabytes.

    A store of its own: rows as wide as they are by default, and a record that outlasts the attack.
    """
    settings: dict[str, Any] = {"slots": 8, "transport": transport, "metrics_listen": "127.0.0.1:0"}
    key = requests.key(1 << 41)
    hidden = rp.Tensor(dtype=rp.DATA_TYPE_FLOAT8_E5M2, shape=[32768], data=bytes(32768))
    record = record_of(("", key.room, 0), 0)
    record.speculative.hidden_states.CopyFrom(hidden)
    get = pb.GetRequest(key=key)
    batch = pb.BatchGetRequest(requests=[get] * 128)
    session = pb.SessionRequest(call_id=1, get=get)
    attacks = (
        ("unread batches", 1, 120, 1, f"/{STORE}/BatchGet", batch),
        ("unread Gets", 3, 4_000, 1, GET, get),
        ("unread Sessions", 3, 500, 25, f"/{STORE}/Session", session),
    )
    with ProcessStore("127.0.0.1:0", max_unread_bytes=UNREAD, **settings).wait() as store:
        target = Target(store, report, transport, say)
        with target.channel() as channel:
            put = requests.put_once(key, record).SerializeToString()
            channel.unary_unary(f"/{STORE}/Put")(put, timeout=SECONDS)
        for what, connections, calls, times, method, request in attacks:
            end = 0 if request is session else http2.END_STREAM
            with target.attack(what), contextlib.ExitStack() as held:
                body = http2.message(request.SerializeToString())
                for _ in range(connections):
                    connection = held.enter_context(Connection(target.address, settings=_NO_WINDOW))
                    for stream in range(1, 2 * calls, 2):
                        data = connection.open_call(stream, method) + frame(http2.DATA, end, stream, body * times)
                        if not connection.send(data, 1.0):
                            break
                        report.count("unread requests", times)
                    connection.settle(0.2)
                    target.check(f"beside {what}")
                kept = int(metrics(store)["pd_handoff_unread_bytes"])
                share = UNREAD // 3 if connections == 1 else UNREAD // 2
                target.expect(kept <= share + batch_bytes(record), f"{what}: {kept >> 20} MiB are kept")
                target.expect(kept >= UNREAD // 4, f"{what}: only {kept >> 20} MiB were given to gRPC")
                target.height(what, 2 * UNREAD)  # gRPC has a copy of its own
        eventually(lambda: not metrics(store)["pd_handoff_unread_bytes"], "nothing is kept for those who left")
        target.close()


def batch_bytes(record: rp.HandoffRecord) -> int:
    """About what a batch of 128 Gets of it is answered with."""
    return 128 * (record.ByteSize() + 128)


def few_places(report: Report, transport: str) -> None:
    """The bounds on connections and on the streams of each hold, and end with those who used them up."""
    settings: dict[str, Any] = {
        "slots": 8,
        "transport": transport,
        "max_connections": 8,
        "max_streams": 16,
        "metrics_listen": "127.0.0.1:0",
        **WIDTHS,
    }
    with ProcessStore("127.0.0.1:0", **settings).wait() as store, contextlib.ExitStack() as held:
        address = store.target
        taken = [held.enter_context(Connection(address)) for _ in range(32)]
        for connection in taken:
            connection.settle(0.05)
        alive = [connection for connection in taken if not connection.closed]
        report.count("connections refused", len(taken) - len(alive))
        report.expect(len(alive) <= 8, f"{transport}: {len(alive)} connections where 8 are allowed")
        for connection in taken:
            connection.close()
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS, wait_for_ready=True)
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        report.expect(serving, f"{transport}: not SERVING after a crowd")
        with Connection(address) as greedy:
            for number in range(64):
                stream = 2 * number + 1
                body = frame(http2.DATA, http2.END_STREAM, stream, http2.message(WAITING))
                if not greedy.send(greedy.open_call(stream, GET) + body):
                    break
                greedy.settle(0.02)
            waiting = int(metrics(store)['pd_handoff_waiters{kind="record"}'])
            report.count("calls at once where 16 were allowed", waiting)
            report.expect(waiting <= 16, f"{transport}: {waiting} calls of one connection wait where 16 are allowed")
        eventually(lambda: not metrics(store)['pd_handoff_waiters{kind="record"}'], "the greedy one's calls are gone")
