"""OpenEngine's `KvSessionRef` as a record of the store, and back.

An engine answers a prefill with `PrefillReady`, whose `kv_session` goes to the decode engine. The message travels as
its own bytes, so every field comes back as it was, also one that a later version adds. This module needs none of
OpenEngine's generated code: both sides bring their own.
"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct, Value

from pd_handoff.engines.payload import UnusableHandoff, data_of, integer_of, refused
from pd_handoff.record import CachedTokens, EngineState, Record

TYPE = "openengine/KvSessionRef;v=1"
_NAME = "openengine.v1.KvSessionRef"
_EXACT = 2.0**53  # above it, a double stands for several integers

M = TypeVar("M", bound=Message)

__all__ = ["TYPE", "UnusableHandoff", "record_of", "session_of"]


def record_of(session: Message, *, prompt_tokens: int | None = None, cached_tokens: int | None = None) -> Record:
    """The record of a prefill.

    Args:
        session: an `openengine.v1.KvSessionRef`, from `PrefillReady.kv_session`.
        prompt_tokens: `Usage.prompt_tokens` of the same answer, one uint32; None where it has no usage.
        cached_tokens: `Usage.cached_prompt_tokens` of the same answer, one uint32; None where it has no usage.

    Returns:
        A record without tokens: decode's engine finds the first token in the session's attributes.

    Raises:
        InvalidRecord: the message is another one, or its `attributes_struct` has an integer beyond 2**53, which a
            double has rounded already; `violations` names it.
    """
    if not isinstance(session, Message) or session.DESCRIPTOR.full_name != _NAME:
        raise refused("kv_session", f"must be a {_NAME}, is {type(session).__name__}")
    if session.HasField("attributes_struct"):
        _check("kv_session.attributes_struct", session.attributes_struct)  # type: ignore[attr-defined]  # the caller's code
    return Record(
        engine_state=EngineState(TYPE, session.SerializeToString(deterministic=True)),
        prompt_tokens=None if prompt_tokens is None else integer_of(prompt_tokens, "usage.prompt_tokens", 32),
        cached_tokens=None
        if cached_tokens is None
        else CachedTokens(integer_of(cached_tokens, "usage.cached_prompt_tokens", 32)),
    )


def session_of(kind: type[M], record: Record) -> M:
    """The session that `record_of` was given.

    Args:
        kind: the class `KvSessionRef` of the caller's generated code.
        record: from the store.

    Raises:
        UnusableHandoff: the record is another engine's, or does not hold this message.
    """
    session = kind()
    if session.DESCRIPTOR.full_name != _NAME:
        raise TypeError(f"must be the class of {_NAME}, is {kind.__name__}")
    try:
        session.ParseFromString(data_of(TYPE, record))
    except DecodeError:
        raise UnusableHandoff(f"the engine state is no {_NAME}") from None
    return session


def _check(path: str, struct: Struct) -> None:
    for name, value in struct.fields.items():
        _check_value(f"{path}.{name}", value)


def _check_value(path: str, value: Value) -> None:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        _check(path, value.struct_value)
    elif kind == "list_value":
        for index, item in enumerate(value.list_value.values):
            _check_value(f"{path}[{index}]", item)
    elif kind == "number_value" and abs(value.number_value) > _EXACT and value.number_value.is_integer():
        raise refused(path, f"{value.number_value:.0f} is beyond 2**53, where a double rounds; send it as text")
