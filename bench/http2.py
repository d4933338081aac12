"""A load generator for unary gRPC calls: HTTP/2 written by hand, so that the client costs a few microseconds a call.

Unlike h2load it sends another message with each call, so that each Put writes a row of its own, and it tells answers
from errors. One thread, blocking sockets, any number of connections and calls in flight.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_HUGE = (1 << 31) - 1
_FIRST_DYNAMIC = 62  # HPACK's static table ends at 61

_frame = struct.Struct(">BHBBI")
_word = struct.Struct(">I")


@dataclass
class Outcome:
    """What a run of calls came to. `seconds` from the first request to the last answer.

    `latencies` (seconds, one a call in order of completion) and `answers` (messages in order of request) only when
    asked for.
    """

    calls: int
    seconds: float
    errors: int
    latencies: list[float] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)


def connect(address: str) -> socket.socket:
    """A connection to unix:PATH or host:port."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _header(kind: int, flags: int, stream: int, size: int) -> bytes:
    return _frame.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


class Connection:
    """One connection. Windows are obeyed, settings and pings answered."""

    def __init__(self, address: str, method: str) -> None:
        """`method` is the full name, /package.Service/Method; all calls are of it."""
        self.sock = connect(address)
        self._stream = 1
        self._window = 65535
        self._initial_window = 65535
        self._largest_frame = 16384
        self.grown = 0  # by how much the peer has widened the window of a stream since it was opened
        self._inbox = b""
        self._index: dict[int, int] = {}  # stream -> index of the call
        self._answer: dict[int, bytes] = {}
        self._latent: list[tuple[int, bytes]] = []  # calls that the window does not let out yet
        literal = (
            b"\x44" + _text(method) + b"\x41" + _text("localhost") + b"\x40" + _text("te") + _text("trailers")
            + b"\x5f" + _text("application/grpc") + b"\x7a" + _text("pd-handoff-bench")
        )  # fmt: skip
        self._first = b"\x83\x86" + literal  # POST, http; the rest enters the dynamic table
        self._next = b"\x83\x86" + bytes(0x80 | (_FIRST_DYNAMIC + 4 - place) for place in range(5))
        settings = struct.pack(">HIHI", 4, _HUGE, 2, 0)  # our window, and no push
        update = _header(_WINDOW, 0, 0, 4) + _word.pack(_HUGE - 65535)
        self.sock.sendall(_PREFACE + _header(_SETTINGS, 0, 0, len(settings)) + settings + update)

    def request(self, index: int, message: bytes) -> bytes:
        """The bytes of one call, b"" when the peer's window is full; then they come with a later `absorb`."""
        if self._window < len(message) + 5:
            self._latent.append((index, message))
            return b""
        return self._frames(index, message)

    def _frames(self, index: int, message: bytes) -> bytes:
        stream, self._stream = self._stream, self._stream + 2
        self._index[stream] = index
        block = self._first if stream == 1 else self._next
        body = b"\x00" + _word.pack(len(message)) + message
        self._window -= len(body)
        out = _header(_HEADERS, _END_HEADERS, stream, len(block)) + block
        if len(body) <= self._largest_frame:
            return out + _header(_DATA, _END_STREAM, stream, len(body)) + body
        parts = [out]
        for at in range(0, len(body), self._largest_frame):
            piece = body[at : at + self._largest_frame]
            last = at + self._largest_frame >= len(body)
            parts += (_header(_DATA, _END_STREAM if last else 0, stream, len(piece)), piece)
        return b"".join(parts)

    def absorb(self) -> tuple[list[tuple[int, bytes | None]], bytes]:
        """Read what is there: ((call, its answer or None for an error) of each that ended, bytes to send)."""
        got = self.sock.recv(1 << 18)
        if not got:
            raise ConnectionError("the server closed the connection")
        data = self._inbox + got if self._inbox else got
        ended: list[tuple[int, bytes | None]] = []
        out = b""
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, stream = _frame.unpack_from(data, at)
            length = high << 16 | low
            if size - at - 9 < length:
                break
            start = at + 9
            at = start + length
            if kind == _DATA:
                self._answer[stream] = self._answer.get(stream, b"") + data[start:at]
            if kind in (_DATA, _HEADERS):
                if flags & _END_STREAM:
                    answer = self._answer.pop(stream, None)
                    ended.append((self._index.pop(stream), None if answer is None else answer[5:]))
            elif kind == _RST:
                self._answer.pop(stream, None)
                index = self._index.pop(stream, None)
                if index is not None:
                    ended.append((index, None))
            else:
                out += self._control(kind, flags, stream, data[start:at])
        self._inbox = data[at:]
        while self._latent and self._window >= len(self._latent[0][1]) + 5:
            out += self._frames(*self._latent.pop(0))
        return ended, out

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == _WINDOW and not stream:
            self._window += _word.unpack(payload)[0]
        elif kind == _PING and not flags & _ACK:
            return _header(_PING, _ACK, 0, 8) + payload
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 5:
                    self._largest_frame = value
                elif name == 4:
                    self.grown += value - self._initial_window
                    self._initial_window = value
            return _header(_SETTINGS, _ACK, 0, 0)
        elif kind == _GOAWAY:
            raise ConnectionError(f"GOAWAY: {payload[8:]!r}")
        return b""

    def close(self) -> None:
        """Hang up."""
        self.sock.close()


class Stream:
    """One bidirectional stream on a connection of its own: messages out, messages in."""

    def __init__(self, address: str, method: str) -> None:
        """`method` is the full name."""
        self._connection = connection = Connection(address, method)
        self._sock = connection.sock
        self._window = 65535
        self._inbox = self._message = b""
        self._latent: list[bytes] = []
        self._sock.sendall(_header(_HEADERS, _END_HEADERS, 1, len(connection._first)) + connection._first)

    def send(self, message: bytes) -> None:
        """Send a message, now or once the peer's windows let it out."""
        self._latent.append(b"\x00" + _word.pack(len(message)) + message)
        self._flush()

    def _flush(self) -> None:
        out, connection = b"", self._connection
        while self._latent:
            body = self._latent[0]
            if len(body) > min(self._window + connection.grown, connection._window):
                break
            del self._latent[0]
            self._window -= len(body)
            connection._window -= len(body)
            for at in range(0, len(body), 16384):
                piece = body[at : at + 16384]
                out += _header(_DATA, 0, 1, len(piece)) + piece
        if out:
            self._sock.sendall(out)

    def receive(self) -> list[bytes]:
        """At least one message. Raises ConnectionError when the stream has ended."""
        found: list[bytes] = []
        while not found:
            got = self._sock.recv(1 << 18)
            if not got:
                raise ConnectionError("the server closed the connection")
            self._inbox += got
            self._read_frames()
            while len(self._message) >= 5:
                size = _word.unpack_from(self._message, 1)[0] + 5
                if len(self._message) < size:
                    break
                found.append(self._message[5:size])
                self._message = self._message[size:]
        return found

    def _read_frames(self) -> None:
        data, at = self._inbox, 0
        while len(data) - at >= 9:
            high, low, kind, flags, stream = _frame.unpack_from(data, at)
            end = at + 9 + (high << 16 | low)
            if end > len(data):
                break
            payload, at = data[at + 9 : end], end
            if kind == _DATA:
                self._message += payload
            elif kind == _WINDOW and stream:
                self._window += _word.unpack(payload)[0]
            elif kind == _RST or (kind == _HEADERS and flags & _END_STREAM):
                raise ConnectionError("the stream has ended")
            elif kind != _HEADERS:
                out = self._connection._control(kind, flags, stream, payload)
                if out:
                    self._sock.sendall(out)
        self._inbox = data[at:]
        self._flush()

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def converse(address: str, method: str, messages: Sequence[bytes], *, in_flight: int) -> Outcome:
    """Send all messages over one stream, `in_flight` at a time, each answered by one message. Latencies and answers are
    in order of coming."""
    stream, clock = Stream(address, method), time.perf_counter
    latencies: list[float] = []
    answers: list[bytes | None] = []
    begun: collections.deque[float] = collections.deque()
    try:
        stream._sock.settimeout(60)
        start = clock()
        for message in messages[:in_flight]:
            begun.append(clock())
            stream.send(message)
        sent = min(in_flight, len(messages))
        while len(latencies) < len(messages):
            for answer in stream.receive():
                answers.append(answer)
                latencies.append(clock() - begun.popleft())
                if sent < len(messages):
                    begun.append(clock())
                    stream.send(messages[sent])
                    sent += 1
        return Outcome(len(messages), clock() - start, 0, latencies, answers)
    finally:
        stream.close()


def park(address: str, method: str, messages: Sequence[bytes], *, a_connection: int = 1000) -> Callable[[], None]:
    """Send calls whose answers nobody waits for; returns what hangs up on all of them."""
    opened = []
    for at in range(0, len(messages), a_connection):
        connection = Connection(address, method)
        opened.append(connection)
        for index, message in enumerate(messages[at : at + a_connection]):
            out = connection.request(index, message)
            while not out:
                out = connection.absorb()[1]
            connection.sock.sendall(out)
        connection.sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:  # settings and pings; the calls themselves have nothing to say
                out = connection.absorb()[1]
                if out:
                    connection.sock.sendall(out)

    def hang_up() -> None:
        for connection in opened:
            connection.close()

    return hang_up


def drive(
    address: str,
    method: str,
    messages: Sequence[bytes],
    *,
    in_flight: int,
    connections: int = 1,
    latencies: bool = False,
    keep: bool = False,
    timeout: float = 60.0,
) -> Outcome:
    """Send all messages, `in_flight` at a time. Raises TimeoutError after `timeout` seconds without an answer."""
    opened = [Connection(address, method) for _ in range(connections)]
    try:
        return drive_on(opened, messages, in_flight=in_flight, latencies=latencies, keep=keep, timeout=timeout)
    finally:
        for connection in opened:
            connection.close()


def drive_on(
    opened: Sequence[Connection],
    messages: Sequence[bytes],
    *,
    in_flight: int,
    latencies: bool = False,
    keep: bool = False,
    timeout: float = 60.0,
) -> Outcome:
    """The same over connections that are open, and stay so."""
    total, sent, done, errors = len(messages), 0, 0, 0
    times: list[float] = []
    begun: dict[int, float] = {}
    answers: list[bytes | None] = [None] * (total if keep else 0)
    clock = time.perf_counter
    poller = select.poll()
    by_fd = {connection.sock.fileno(): connection for connection in opened}
    for number in by_fd:
        poller.register(number, select.POLLIN)
    start = clock()
    while sent < min(in_flight, total):
        connection = opened[sent % len(opened)]
        if latencies:
            begun[sent] = clock()
        connection.sock.sendall(connection.request(sent, messages[sent]))
        sent += 1
    single = opened[0] if len(opened) == 1 else None
    if single is not None:
        single.sock.settimeout(timeout)
    while done < total:
        if single is not None:
            ready = [single]
        else:
            ready = [by_fd[number] for number, _ in poller.poll(timeout * 1000)]
            if not ready:
                raise TimeoutError(f"no answer for {timeout} s")
        for connection in ready:
            ended, out = connection.absorb()
            now = clock() if latencies else 0.0
            for index, answer in ended:
                done += 1
                if answer is None:
                    errors += 1
                if latencies:
                    times.append(now - begun.pop(index))
                if keep:
                    answers[index] = answer
                if sent < total:
                    if latencies:
                        begun[sent] = clock()
                    out += connection.request(sent, messages[sent])
                    sent += 1
            if out:
                connection.sock.sendall(out)
    return Outcome(total, clock() - start, errors, times, answers)
