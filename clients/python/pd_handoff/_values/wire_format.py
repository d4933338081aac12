"""The wire format of protobuf, as far as this client writes it by hand."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

_SMALL = tuple(bytes((value,)) for value in range(0x80))


def tag_of(field: FieldDescriptor) -> bytes:
    """What stands before a field that has a size."""
    return bytes((field.number << 3 | 2,))


def framed(tag: bytes, data: bytes) -> bytes:
    """A field that has a size."""
    return tag + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number as the wire has it."""
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    low = value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80
    if value < 0x10000000:
        return bytes((*low, value >> 21))
    return bytes((*low, value >> 21 & 0x7F | 0x80)) + varint(value >> 28)
