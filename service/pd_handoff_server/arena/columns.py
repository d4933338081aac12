"""A row's image read as typed columns: in place where the column is fixed width, decoded where it is varints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pd_handoff.v1 import record_pb2

_FLOATS = {
    "tokens.top_logprobs.values",
    "tokens.token_ids_logprobs.values",
    "sampling_mask.logprobs",
    "speculative.topk_p",
}


def columns(image: memoryview) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """(column name, elements) for every list and byte string that is present, in the order of the row.

    float32 lists and byte strings are read-only views into `image`; integer lists are decoded copies. A column of
    `tokens` comes once for each token that has it.
    """
    yield from _walk(image, record_pb2.HandoffRecord.DESCRIPTOR, "")


def _walk(image: memoryview, message: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    at = 0
    while at < len(image):
        tag, at = _varint(image, at)
        field = message.fields_by_number.get(tag >> 3)
        wire = tag & 7
        if wire != 2:
            at = _past(image, at, wire)
        else:
            size, at = _varint(image, at)
            part = image[at : at + size]
            at += size
            if field is not None:
                yield from _column(part, field, f"{path}{field.name}")


def _past(image: memoryview, at: int, wire: int) -> int:
    """Where the field that begins here ends; groups come only from a newer schema."""
    if wire in (1, 5):
        return at + (8 if wire == 1 else 4)
    number, at = _varint(image, at)
    if wire == 0:
        return at
    if wire == 2:
        return at + number
    while number & 7 != 4:
        number, at = _varint(image, _past(image, at, number & 7))
    return at


def _column(part: memoryview, field: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if field.message_type is not None:
        yield from _walk(part, field.message_type, path + ".")
    elif path in _FLOATS:
        yield path, np.frombuffer(part, "<f4")
    elif field.type == field.TYPE_BYTES:
        yield path, np.frombuffer(part, np.uint8)
    else:
        yield path, _integers(part, signed=field.type != field.TYPE_UINT32)


def _integers(part: memoryview, *, signed: bool) -> np.ndarray[Any, Any]:
    values, at = [], 0
    while at < len(part):
        value, at = _varint(part, at)
        values.append(value - (1 << 64) if signed and value >> 63 else value)
    return np.array(values, np.int64)


def _varint(image: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = image[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
