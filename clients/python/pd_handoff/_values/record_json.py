"""A record's JSON, as `Record.to_json` or a person wrote it, and where it goes wrong."""

from __future__ import annotations

import difflib
import json
import struct
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pd_handoff.errors import InvalidRecord
from pd_handoff.v1 import record_pb2 as pb

_ALIKE = 0.5  # difflib's ratio, of 1


def record_of(text: str | bytes) -> pb.HandoffRecord:
    """The message. Raises InvalidRecord, saying where, for anything else."""
    try:
        # Floats are narrowed here: protobuf refuses the shortest decimal of the largest float32.
        fields = json.loads(text, parse_float=_float32, object_pairs_hook=_once)
        if not isinstance(fields, dict):
            raise ValueError("it must be an object")
        unknown = _unknown_name(fields, pb.HandoffRecord.DESCRIPTOR, "record")
        if unknown is None:
            return json_format.ParseDict(fields, pb.HandoffRecord())
    except (json_format.ParseError, ValueError) as error:
        raise _invalid("record", str(error), f"record: this JSON is no record: {error}") from None
    raise _invalid(*unknown, f"this JSON is no record: {': '.join(unknown)}")


def _invalid(field: str, what: str, message: str) -> InvalidRecord:
    return InvalidRecord(message, violations=((field, what),))


def _float32(text: str) -> float:
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", float(text)))[0]
        return narrow
    except OverflowError:
        raise ValueError(f"{text} overflows float32") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return fields


def _unknown_name(value: Any, message: Descriptor, path: str) -> tuple[str, str] | None:
    """(where, what) of the first field or enum name that `message` does not know. Looks at names alone: whether values
    are right is protobuf's to say."""
    if not isinstance(value, dict):
        return None
    fields = {field.name: field for field in message.fields}
    known = fields | {field.json_name: field for field in message.fields}  # protobuf takes both
    for name, inner in value.items():
        if name not in known:
            return f"{path}.{name}", f"no such field{_meant(name, fields)}"
        items = ((f"[{index}]", item) for index, item in enumerate(inner)) if isinstance(inner, list) else [("", inner)]
        for place, item in items:
            found = _unknown_in(item, known[name], f"{path}.{name}{place}")
            if found is not None:
                return found
    return None


def _unknown_in(value: Any, field: FieldDescriptor, path: str) -> tuple[str, str] | None:
    if field.message_type is not None:
        return _unknown_name(value, field.message_type, path)
    names = {} if field.enum_type is None else field.enum_type.values_by_name
    if names and isinstance(value, str) and value not in names and not value.lstrip("-").isdecimal():
        return path, f"no such value, {value!r}{_meant(value, names)}"
    return None


def _meant(name: str, known: Iterable[str]) -> str:
    names = list(known)
    alike = [one for one in names if len(name) > 1 and name.lower() in one.lower()]
    alike += difflib.get_close_matches(name, names, n=1, cutoff=_ALIKE)
    return f"; did you mean {alike[0]}?" if alike else f"; there are {', '.join(names)}"
