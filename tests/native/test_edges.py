"""Where the reader in C must stop understanding, and the last that it must understand, byte by byte."""

from __future__ import annotations

from types import ModuleType

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.arena.layout import Layout, Limits

from tests.support import requests
from tests.support.records import varint

from . import python_reader
from .test_reading import packed

LAYOUT = Layout(Limits())
TOKEN = b"\x0a\x02\x08\x01"
"""A record's only token."""


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


def numbers(*values: int) -> bytes:
    """A packed list."""
    return b"".join(map(varint, values))


def values(count: int) -> bytes:
    """As many floats."""
    return bytes(4 * count)


def put(record: bytes) -> bytes:
    """A PutRequest under a token."""
    head = pb.PutRequest(key=requests.key(7), token=b"t").SerializeToString()
    return head + field(3, record)


def of_token(number: int, *ids: int) -> bytes:
    """A record with these ids in its token's field of this number."""
    return field(1, b"\x08\x01" + field(number, field(1, values(len(ids))) + field(2, numbers(*ids))))


def mask(*ids: int, more: bytes = b"") -> bytes:
    """A record with a sampling mask."""
    return TOKEN + field(4, field(1, numbers(*ids)) + more)


def speculative(more: bytes) -> bytes:
    """A record with a speculative part."""
    return TOKEN + field(5, more)


def tensor(*shape: int, size: int) -> bytes:
    """A record with hidden states of one byte an element."""
    content = field(3, bytes(size)) if size else b""
    return speculative(field(3, b"\x08\x04" + field(2, numbers(*shape)) + content))


UNDERSTOOD = {
    "an id of five bytes, after short ones": of_token(3, 1, 1 << 28, 2),
    "the largest id, last": of_token(3, 1, 2, 3, (1 << 31) - 1),
    "the largest id, of listed ones": of_token(4, (1 << 31) - 1, 0),
    "the largest id, of a mask": mask(5, (1 << 31) - 1),
    "the smallest int64": speculative(field(1, values(2)) + field(2, numbers(1 << 63, 5))),
    "the smallest int32": speculative(field(4, numbers((1 << 64) - (1 << 31), 1))),
    "the last finish reason": TOKEN + b"\x38\x03",
    "truncated": mask(5, more=b"\x18\x01"),
    "the largest dimension": tensor((1 << 32) - 1, 0, size=0),
    "the highest rank": tensor(*[1] * 8, size=1),
    "the last data type": speculative(field(3, b"\x08\x05" + field(2, b"\x02") + field(3, b"ab"))),
    "the largest number of reasoning tokens": TOKEN + b"\x40" + varint((1 << 32) - 1),
}
LEFT = {
    "an id too large, of five bytes": of_token(3, 1, 1 << 31),
    "an id too large, of five bytes, among short ones": of_token(3, 1, 1 << 31, 2, 3),
    "an id too large, of listed ones": of_token(4, 1 << 31),
    "an id too large, of a mask": mask(1 << 31, 5),
    "a negative id": of_token(3, (1 << 64) - 1),
    "an id of five bytes where one would do": field(
        1, b"\x08\x01" + field(3, field(1, values(1)) + field(2, b"\x81\x80\x80\x80\x00"))
    ),
    "an int32 too small": speculative(field(4, numbers((1 << 64) - (1 << 31) - 1))),
    "an int32 too large": speculative(field(4, numbers(1 << 31))),
    "a finish reason behind the last": TOKEN + b"\x38\x04",
    "no finish reason": TOKEN + b"\x38\x00",
    "truncated twice": mask(5, more=b"\x18\x02"),
    "not truncated, in words": mask(5, more=b"\x18\x00"),
    "a dimension too large": tensor(1 << 32, 0, size=0),
    "a dimension that would wrap to one": tensor((1 << 32) + 1, size=1),
    "a rank too high": tensor(*[1] * 9, size=1),
    "a data type behind the last": speculative(field(3, b"\x08\x06" + field(2, b"\x01") + field(3, b"a"))),
    "too many reasoning tokens": TOKEN + b"\x40" + varint(1 << 32),
}


@pytest.mark.parametrize("record", UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_the_last_that_is_understood(scan: ModuleType, record: bytes) -> None:
    found = scan.put(put(record), packed(LAYOUT))
    assert found is not None
    assert (found, True) == python_reader.read("put", put(record), LAYOUT)


@pytest.mark.parametrize("record", LEFT.values(), ids=LEFT)
def test_the_first_that_is_left_to_python(scan: ModuleType, record: bytes) -> None:
    assert scan.put(put(record), packed(LAYOUT)) is None
    expected, just_so = python_reader.read("put", put(record), LAYOUT)
    assert expected is None or not just_so
