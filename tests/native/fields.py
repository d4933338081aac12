"""Messages as lists of fields, in order, which can be written back with any field changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.records import varint

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


@dataclass
class Field:
    """One of them. A value is a number of VARINT, the bytes of other types, or the fields of a message.

    `padding` is how many bytes longer than needed its number, or its length, is written; `lost` is how many bytes are
    missing at its end; `packed` tells a list of numbers.
    """

    number: int
    wire: int
    value: int | bytes | list[Field]
    padding: int = 0
    lost: int = 0
    packed: bool = False

    def copy(self) -> Field:
        """Another with the same contents, down to the last."""
        value = [field.copy() for field in self.value] if isinstance(self.value, list) else self.value
        return Field(self.number, self.wire, value, self.padding, self.lost, self.packed)


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def decode(data: bytes, message: Any) -> list[Field]:
    """The fields of a well-formed message; `message` is the descriptor of its type."""
    fields, at = [], 0
    known: dict[int, Any] = dict(message.fields_by_number)
    while at < len(data):
        tag, at = _varint_at(data, at)
        number, wire = tag >> 3, tag & 7
        value: int | bytes | list[Field]
        packed = False
        if wire == VARINT:
            value, at = _varint_at(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(wire, 0)
            if wire == DELIMITED:
                size, at = _varint_at(data, at)
            value, at = data[at : at + size], at + size
            inner = known[number].message_type
            packed = known[number].is_packed
            if inner is not None:
                value = decode(value, inner)
        fields.append(Field(number, wire, value, packed=packed))
    return fields


def _padded(value: int, padding: int) -> bytes:
    short = varint(value)
    return short if not padding else short[:-1] + bytes((short[-1] | 0x80,)) + b"\x80" * (padding - 1) + b"\x00"


def encode(fields: list[Field]) -> bytes:
    """Their bytes, with the lengths that belong to them."""
    return b"".join(map(_encoded, fields))


def _encoded(field: Field) -> bytes:
    tag = varint(field.number << 3 | field.wire)
    if isinstance(field.value, int):
        out = tag + _padded(field.value, field.padding)
    else:
        value = encode(field.value) if isinstance(field.value, list) else field.value
        out = tag + (_padded(len(value), field.padding) if field.wire == DELIMITED else b"") + value
    return out[: max(0, len(out) - field.lost)]
