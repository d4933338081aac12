"""HTTP/2 frame by frame, for what no library would send."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def field(name: str, value: str | bytes) -> bytes:
    """A header field as HPACK has it: literal, never indexed, no Huffman."""
    raw = value.encode() if isinstance(value, str) else value
    return b"\x10" + _length(len(name)) + name.encode() + _length(len(raw)) + raw


def remembered(name: str, value: bytes) -> bytes:
    """A header field that the peer is to keep in its table, where `REFERENCE` finds the latest."""
    return b"\x40" + _length(len(name)) + name.encode() + _length(len(value)) + value


REFERENCE = b"\xbe"
"""The latest entry of the peer's table, in one byte."""


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size >= 128:
        out.append(size % 128 + 128)
        size //= 128
    out.append(size)
    return bytes(out)


def call_headers(method: str, *more: tuple[str, str | bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "store"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]
    return b"".join(field(name, value) for name, value in fields)


def message(payload: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A gRPC message with its prefix, which may lie about its length."""
    return struct.pack(">BI", compressed, len(payload) if length is None else length) + payload


class Connection:
    """A connection to a store that says what it is told to. Everything is sent without waiting for answers."""

    def __init__(self, target: str, *, preface: bytes = PREFACE, settings: bytes = b"") -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._received = b""
        self.closed = False
        self.goaway = False
        if preface:
            self.send(preface + frame(SETTINGS, payload=settings))

    def send(self, data: bytes, patience: float = 20.0) -> bool:
        """Send all of it, reading meanwhile what comes; False when the store hung up, or stops reading."""
        until, view = time.monotonic() + patience, memoryview(data)
        while view and not self.closed:
            readable, writable, _ = select.select([self._socket], [self._socket], [], max(until - time.monotonic(), 0))
            if not readable and not writable:
                return False
            if readable:
                self._read()
            if writable and not self.closed:
                try:
                    view = view[self._socket.send(view[: 1 << 18]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self.closed = True
        return not self.closed

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
        self._received += data

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, payload) of the frames received so far."""
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big") & 0x7FFFFFFF
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == GOAWAY:
                self.goaway = True
            yield kind, flags, stream, payload

    def settle(self, seconds: float) -> None:
        """Read what comes for so long, or until the store hangs up, and forget it."""
        self.listen(seconds)
        for _ in self.frames():
            pass

    def listen(self, seconds: float) -> None:
        """Read what comes for so long, or until the store hangs up, for `frames`."""
        until = time.monotonic() + seconds
        while not self.closed and (left := until - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                self._read()

    def open_call(self, stream: int, method: str, *more: tuple[str, str | bytes], end: bool = False) -> bytes:
        """The frame that opens a call."""
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, call_headers(method, *more))

    def close(self) -> None:
        """Hang up without a word."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        self.closed = True

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
