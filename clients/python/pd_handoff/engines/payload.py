"""What the codecs of engines share: engine state as JSON, refusals that name the field, and what a reader refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pd_handoff.errors import InvalidRecord, invalid_record
from pd_handoff.record import EngineState, Record

_DEEPEST = 64  # levels of lists and objects; far above what engines send, far below Python's limit


class UnusableHandoff(Exception):  # noqa: N818  # as with the client's errors, the name says what happened
    """The record is none that this engine can go on from."""


def refused(path: str, why: str) -> InvalidRecord:
    """The refusal of one field of an engine, by the name that the engine gives it."""
    return invalid_record(path, why)


def state_of(kind: str, fields: Mapping[str, Any]) -> EngineState:
    """The engine state of a type. Equal fields give equal bytes, so that a repeated Put is the same Put.

    Args:
        kind: the type, such as `vllm/NixlConnector;v=1`.
        fields: what JSON can hold: numbers, texts, booleans, None, lists, and objects with text as keys. Tuples come
            back as lists.

    Raises:
        InvalidRecord: a value that JSON would change or cannot hold; `violations` names it.
    """
    _check("", fields, 0)
    return EngineState(kind, json.dumps(fields, separators=(",", ":"), sort_keys=True).encode())


def fields_of(kind: str, record: Record) -> dict[str, Any]:
    """What `state_of` was given. Raises UnusableHandoff for a record without a state of this type."""
    data = data_of(kind, record)
    try:
        fields = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):  # another writer's bytes
        fields = None
    if not isinstance(fields, dict):
        raise UnusableHandoff("the engine state is no JSON object")
    return fields


def data_of(kind: str, record: Record) -> bytes:
    """The bytes of a record's engine state. Raises UnusableHandoff for a record without a state of this type."""
    state = record.engine_state
    if state is None:
        raise UnusableHandoff("the record holds no engine state")
    if state.type != kind:
        raise UnusableHandoff(f"the record is for {state.type}, not for {kind}")
    return bytes(state.data)


def integer_of(value: object, path: str, bits: int) -> int:
    """A number of an engine that is not negative and fits `bits`. Raises InvalidRecord."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise refused(path, f"must be an integer, is {type(value).__name__}")
    if not 0 <= value < 1 << bits:
        raise refused(path, f"must be an integer from 0 to 2**{bits} - 1")
    return int(value)


def token_id_of(value: object, path: str) -> int:
    """A token id. Raises InvalidRecord."""
    return integer_of(value, path, 31)


def token_ids_of(value: object, path: str) -> list[int]:
    """A list of token ids. Raises InvalidRecord."""
    if not isinstance(value, (list, tuple)):
        raise refused(path, f"must be a list, is {type(value).__name__}")
    return [token_id_of(item, f"{path}[{index}]") for index, item in enumerate(value)]


def object_of(value: object, path: str) -> dict[str, Any]:
    """A JSON object, copied. Raises InvalidRecord."""
    if not isinstance(value, Mapping):
        raise refused(path, f"must be an object, is {type(value).__name__}")
    return dict(value)


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and infinities, which JSON has not


def _check(path: str, value: object, depth: int) -> None:
    if depth > _DEEPEST:
        raise refused(path, f"is nested more than {_DEEPEST} deep")
    if value is None or isinstance(value, (bool, str)):
        return
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise refused(path, "does not fit 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise refused(path, f"is {value}, which JSON cannot hold")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise refused(path or "the object", f"has a key of type {type(name).__name__}; JSON has texts alone")
            _check(f"{path}.{name}" if path else name, item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(f"{path}[{index}]", item, depth + 1)
    else:
        raise refused(path, f"is {type(value).__name__}, which JSON cannot hold")
