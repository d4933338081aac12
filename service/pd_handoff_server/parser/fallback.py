"""What takes the place of the part in C: it reads nothing, which leaves all to protobuf, and it writes the same."""

from __future__ import annotations

from typing import Any, Final, Protocol

_SECOND: Final = 1_000_000_000


def varint(value: int) -> bytes:
    """A non-negative number as varint."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0x1000_0000 <= value < 0x8_0000_0000:  # seconds and nanoseconds of a moment
        low, high = value & 0x7F | 0x80, value >> 28
        return bytes((low, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21 & 0x7F | 0x80, high))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def framed(number: int, payload: bytes) -> bytes:
    """A length-delimited field (message, bytes or string); `number` is below 16."""
    return bytes((number << 3 | 2,)) + varint(len(payload)) + payload


_second = (0, b"")  # the last one seen, and how it is encoded: most moments share it with the one before


def stamp(tag: int, wall: int) -> bytes:
    """A Timestamp as the field of this tag; what is before the epoch is taken for it."""
    global _second  # noqa: PLW0603 - a pair that is replaced whole
    second, nanos = divmod(max(wall, 0), _SECOND)
    known, encoded = _second
    if known != second:
        encoded = b"\x08" + varint(second) if second else b""
        _second = (second, encoded)
    if nanos:
        encoded += b"\x10" + varint(nanos)
    return bytes((tag, len(encoded))) + encoded


class Reader(Protocol):
    """The functions of `_scan`, which has their meaning."""

    def put(self, data: bytes, limits: bytes, /) -> Any:
        """A PutRequest."""

    def put_all(self, data: bytes, limits: bytes, /) -> Any:
        """A BatchPutRequest."""

    def get(self, data: bytes, /) -> Any:
        """A GetRequest."""

    def get_all(self, data: bytes, /) -> Any:
        """A BatchGetRequest."""

    def reserve(self, data: bytes, /) -> Any:
        """A ReserveRequest."""

    def reserve_all(self, data: bytes, /) -> Any:
        """A BatchReserveRequest."""

    def session(self, data: bytes, /) -> Any:
        """A SessionRequest."""

    def stamp(self, tag: int, wall: int, /) -> bytes:
        """A Timestamp, in nanoseconds since the Unix epoch, as the field of this tag."""

    def answer(self, call_id: int, number: int, payload: bytes, /) -> bytes:
        """A SessionResponse with the field of this number."""


class Absent:
    """A `Reader` that leaves everything to Python."""

    def __init__(self, why: str) -> None:
        """`why` it is in this place, for people."""
        self.why = why

    def put(self, data: bytes, limits: bytes, /) -> None:
        """See `Reader`."""

    def put_all(self, data: bytes, limits: bytes, /) -> None:
        """See `Reader`."""

    def get(self, data: bytes, /) -> None:
        """See `Reader`."""

    def get_all(self, data: bytes, /) -> None:
        """See `Reader`."""

    def reserve(self, data: bytes, /) -> None:
        """See `Reader`."""

    def reserve_all(self, data: bytes, /) -> None:
        """See `Reader`."""

    def session(self, data: bytes, /) -> None:
        """See `Reader`."""

    def stamp(self, tag: int, wall: int, /) -> bytes:
        """See `Reader`."""
        return stamp(tag, wall)

    def answer(self, call_id: int, number: int, payload: bytes, /) -> bytes:
        """See `Reader`."""
        return b"\x08" + varint(call_id) + framed(number, payload)
