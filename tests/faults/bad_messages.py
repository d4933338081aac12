"""Bytes that are no messages, messages that are too much, and framing that lies, into every RPC."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

import grpc
import hypothesis
from grpc_health.v1 import health_pb2
from hypothesis import strategies as st
from pd_handoff.v1 import admin_pb2, record_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support import records, requests

from . import http2
from .common import record_of
from .http2 import Connection, frame
from .target import ADMIN, SECONDS, STORE, Target

HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def _key(room: int) -> record_pb2.HandoffKey:
    return record_pb2.HandoffKey(room=room)


_ONE_SHOT = requests.put_once(2, record_of(("", 2, 0), 0))

MESSAGES: dict[str, Any] = {
    f"/{STORE}/Capabilities": pb.CapabilitiesRequest(required=pb.Widths(tokens=1)),
    f"/{STORE}/Reserve": requests.reserve(1, lease=1, producer=("p", 1)),
    f"/{STORE}/Put": _ONE_SHOT,
    f"/{STORE}/Get": requests.get(3, reader="r"),
    f"/{STORE}/Release": pb.ReleaseRequest(key=_key(4), reader_id="r"),
    f"/{STORE}/Abort": requests.abort(5),
    f"/{STORE}/BatchReserve": pb.BatchReserveRequest(requests=[requests.reserve(room, lease=1) for room in (6, 7)]),
    f"/{STORE}/BatchPut": pb.BatchPutRequest(requests=[_ONE_SHOT] * 3),
    f"/{STORE}/BatchGet": pb.BatchGetRequest(requests=[requests.get(room) for room in range(5)]),
    f"/{ADMIN}/ListHandoffs": admin_pb2.ListHandoffsRequest(namespace="a", page_token="1"),
    f"/{ADMIN}/GetHandoff": admin_pb2.GetHandoffRequest(key=_key(9), include_record=True),
    f"/{HEALTH}/Check": health_pb2.HealthCheckRequest(service=STORE),
}
SERIALIZED = {method: message.SerializeToString() for method, message in MESSAGES.items()}
SESSION = [
    pb.SessionRequest(call_id=1, reserve=MESSAGES[f"/{STORE}/Reserve"]).SerializeToString(),
    pb.SessionRequest(call_id=2, put=_ONE_SHOT).SerializeToString(),
    pb.SessionRequest(call_id=3, get=MESSAGES[f"/{STORE}/Get"]).SerializeToString(),
    pb.SessionRequest(call_id=4, capabilities=pb.CapabilitiesRequest()).SerializeToString(),
]
NEVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


# -- bytes -------------------------------------------------------------------------------------------------------------


def _tag(field: int, wire: int = 2) -> bytes:
    return bytes((field << 3 | wire,))


def _nested(depth: int, field: int) -> bytes:
    """A field within itself, so deep, with lengths that are right."""
    out = b""
    for _ in range(depth):
        out = _tag(field) + records.varint(len(out)) + out
    return out


def _mutated(base: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Pieces of a message cut out and others put in."""
    data = bytearray(base)
    for at, count, fresh in edits:
        where = at % (len(data) + 1)
        data[where : where + count] = fresh
    return bytes(data)


_FIELDS = st.integers(1, 15)
_EDITS = st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=6)
_BASES = st.sampled_from([*SERIALIZED.values(), *SESSION])

PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.builds(_mutated, _BASES, _EDITS),
    st.builds(lambda base, size: base[: size % (len(base) + 1)], _BASES, st.integers(0, 10_000)),  # cut off
    st.builds(lambda one, other: one + other, _BASES, _BASES),  # of another type, or two in one
    st.builds(_nested, st.integers(1, 3000), _FIELDS),
    st.builds(lambda field, count: _tag(field, 3) * count, _FIELDS, st.integers(1, 20_000)),  # groups within groups
    st.builds(lambda field, size: _tag(field) + records.varint(size), _FIELDS, st.integers(0, 2**64 - 1)),
    st.builds(lambda field, count: (_tag(field) + b"\0") * count, _FIELDS, st.integers(1, 30_000)),
    st.builds(lambda count: b"\xff" * count, st.integers(1, 64)),
)


class Stream:
    """A Session that is sent anything, and read.

    Attributes:
        sent: requests so far.
        internal: answers that are INTERNAL or UNKNOWN.
        code: how the stream ended.
    """

    def __init__(self, channel: Any) -> None:
        self.sent = 0
        self.internal = 0
        self.code: grpc.StatusCode | None = None
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = channel.stream_stream(f"/{STORE}/Session")(iter(self._out.get, None))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def send(self, payload: bytes) -> None:
        """Send bytes in the place of a SessionRequest."""
        self.sent += 1
        self._out.put(payload)

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for answer in self._call:
                status = pb.SessionResponse.FromString(answer).error
                self.internal += status.code in (grpc.StatusCode.INTERNAL.value[0], grpc.StatusCode.UNKNOWN.value[0])
        self.code = self._call.code()

    def finish(self, seconds: float = SECONDS) -> None:
        """Send no more, and wait for the end: what waits in the store is dropped with the stream."""
        self._out.put(None)
        self._thread.join(seconds)
        self._call.cancel()


def fuzz(target: Target, seed: int, inputs: int) -> None:
    """Raw bytes into every RPC, and into a Session."""
    with target.attack("fuzzing"), target.channel() as channel:
        methods = {method: channel.unary_unary(method) for method in SERIALIZED}
        stream = Stream(channel)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=inputs,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.sampled_from(sorted(methods)), PAYLOADS)
        def one(method: str, payload: bytes) -> None:
            try:
                methods[method](payload, timeout=SECONDS)
            except grpc.RpcError as error:
                wrong = f"{method} answered {error.code()} ({error.details()}) to {payload[:60]!r}"
                target.expect(error.code() not in NEVER, wrong)
            target.report.count("bad inputs")
            stream.send(payload)

        one()
        stream.finish()
        target.report.count("bad inputs", stream.sent)
        target.expect(stream.internal == 0, f"a Session answered INTERNAL {stream.internal} times")
        target.expect(stream.code is grpc.StatusCode.OK, f"a Session ended with {stream.code}")
    target.settled()


def sizes(target: Target) -> None:
    """Oversized messages, plain and compressed, names, and metadata."""
    with target.channel() as channel:
        answer = channel.unary_unary(f"/{STORE}/Capabilities")(b"", timeout=SECONDS)
    limit = pb.CapabilitiesResponse.FromString(answer).max_message_bytes
    too_much, invalid = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT
    with target.attack("oversized messages"), target.channel() as channel:
        for method in SERIALIZED:
            _refused(target, channel.unary_unary(method), bytes(limit + 1), too_much)
    with target.attack("bombs of compressed zeros"), target.channel() as channel:
        for method in (f"/{STORE}/BatchPut", f"/{ADMIN}/GetHandoff"):
            for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                _refused(target, channel.unary_unary(method), bytes(64 << 20), too_much, compression)
    with target.attack("long names"), target.channel() as channel:
        for size in (129, 10_000, 1 << 20):
            name = "n" * size
            for method, request in (
                ("Get", pb.GetRequest(key=record_pb2.HandoffKey(namespace=name, room=1))),
                ("Reserve", pb.ReserveRequest(key=_key(1), owner=name * 2)),
                ("Get", pb.GetRequest(key=_key(1), reader_id=name * 2, consume=True)),
            ):
                _refused(target, channel.unary_unary(f"/{STORE}/{method}"), request.SerializeToString(), invalid)
    with target.attack("metadata without measure"):
        for metadata in ((("x-much", "m" * 100_000),), tuple((f"x-{number}", "m" * 100) for number in range(2000))):
            with target.channel(("grpc.max_metadata_size", 1 << 24)) as channel, contextlib.suppress(grpc.RpcError):
                channel.unary_unary(f"/{STORE}/Capabilities")(b"", timeout=SECONDS, metadata=metadata)
            target.report.count("bad inputs")


def _refused(target: Target, call: Any, payload: bytes, code: grpc.StatusCode, compression: Any = None) -> None:
    target.report.count("bad inputs")
    try:
        call(payload, timeout=SECONDS, compression=compression)
    except grpc.RpcError as error:
        target.expect(error.code() is code, f"{len(payload)} bytes: {error.code()}, not {code}: {error.details()}")
    else:
        target.fault(f"{len(payload)} bytes were taken")


def misframed(target: Target) -> None:
    """Calls whose gRPC framing lies, and methods that are not there."""
    get = SERIALIZED[f"/{STORE}/Get"]
    bodies = [
        http2.message(get, length=len(get) + 1),
        http2.message(get, length=len(get) - 1),
        http2.message(get, length=2**32 - 1),
        http2.message(get, compressed=1),
        http2.message(get, compressed=77),
        http2.message(get) * 3,
        http2.message(get)[:3],
        b"",
        b"\xff" * 100,
    ]
    headers: list[tuple[tuple[str, str | bytes], ...]] = [
        (),
        (("grpc-encoding", "gzip"),),
        (("grpc-encoding", "nonsense"),),
        (("grpc-timeout", "0n"),),
        (("grpc-timeout", "99999999999999H"),),
        (("grpc-timeout", "-1S"),),
        (("content-length", "-5"),),
        (("authorization", b"\x00\xff\x80"),),
        (("traceparent", "00-" + "f" * 9000),),
        (("grpc-trace-bin", "!!!"),),
    ]
    ours = (f"/{STORE}/Get", f"/{STORE}/Session", f"/{ADMIN}/ListHandoffs")
    with target.attack("lies in the framing"):
        for method in (*ours, f"/{HEALTH}/Check", f"/{HEALTH}/Watch", f"/{REFLECTION}", "/no/where", "/", ""):
            with Connection(target.address) as connection:
                stream = 1
                for body in bodies:
                    for more in headers:
                        opening = connection.open_call(stream, method, *more, end=not body)
                        connection.send(opening + (frame(http2.DATA, http2.END_STREAM, stream, body) if body else b""))
                        target.report.count("bad inputs")
                        stream += 2
                        if connection.closed:
                            break
                connection.settle(0.2)


def unknown_keys(target: Target, calls: int) -> None:
    """Calls about keys that nobody knows."""
    with target.attack("calls for unknown keys"), target.channel() as channel:
        stream = Stream(channel)
        for number in range(calls):
            key = record_pb2.HandoffKey(namespace=f"n{number % 1000}", room=number, sample=number % 5)
            request = pb.SessionRequest(call_id=number, get=requests.get(key, reader=f"r{number}"))
            if number % 2:
                request = pb.SessionRequest(call_id=number, release=pb.ReleaseRequest(key=key, reader_id=f"r{number}"))
            stream.send(request.SerializeToString())
        stream.finish(SECONDS * 10)
        target.report.count("calls for unknown keys", calls)
        target.expect(stream.code is grpc.StatusCode.OK, f"the Session ended with {stream.code}")
