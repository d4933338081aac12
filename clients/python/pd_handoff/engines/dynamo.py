"""NVIDIA Dynamo's `prefill_result` as a record of the store, and back.

Dynamo's router takes it from the prefill worker's answer and sends it to the decode worker. It is the JSON form of
Dynamo's `PrefillResult`. Its `disaggregated_params` belong to the worker's engine, so the record says which engine that
is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pd_handoff.engines.payload import UnusableHandoff, fields_of, integer_of, object_of, refused, state_of
from pd_handoff.record import CachedTokens, ModalityTokens, Record

_DETAILS = "prompt_tokens_details"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_LINK = (("trace_id", 32), ("span_id", 16))

__all__ = ["UnusableHandoff", "migration_link_of", "prefill_result_of", "record_of", "type_of"]


def type_of(engine: str) -> str:
    """The type of the engine state, by the engine behind Dynamo's workers such as `vllm`, `sglang` or `trtllm`."""
    return f"dynamo/{engine};v=1"


def record_of(
    engine: str, prefill_result: Mapping[str, Any], *, migration_link: Mapping[str, str] | None = None
) -> Record:
    """The record of a prefill.

    Args:
        engine: the engine behind the workers. Both sides name the same one.
        prefill_result: `disaggregated_params`, any JSON value, becomes the engine state. Of `prompt_tokens_details`,
            `cached_tokens` becomes `cached_tokens.total` and `audio_tokens` becomes `modality_tokens.audio`.
        migration_link: `trace_id` (32 hexadecimal digits) and `span_id` (16) of the prefill's span. It becomes
            `traceparent`, with the flag for a recorded span.

    Returns:
        A record without tokens: decode's engine finds the first token in its own parameters.

    Raises:
        InvalidRecord: a field is missing, or holds what cannot be carried; `violations` names it.
    """
    fields = object_of(prefill_result, "prefill_result")
    if "disaggregated_params" not in fields:
        raise refused("disaggregated_params", "is required")
    cached: CachedTokens | None = None
    modality: ModalityTokens | None = None
    if fields.get(_DETAILS) is not None:
        fields[_DETAILS] = details = object_of(fields[_DETAILS], _DETAILS)
        if details.get("cached_tokens") is not None:
            cached = CachedTokens(integer_of(details.pop("cached_tokens"), f"{_DETAILS}.cached_tokens", 32))
        if details.get("audio_tokens") is not None:
            modality = ModalityTokens(audio=integer_of(details.pop("audio_tokens"), f"{_DETAILS}.audio_tokens", 32))
    return Record(
        cached_tokens=cached,
        modality_tokens=modality,
        engine_state=state_of(type_of(engine), fields),
        traceparent=None if migration_link is None else _traceparent(migration_link),
    )


def prefill_result_of(engine: str, record: Record) -> dict[str, Any]:
    """The `prefill_result` that `record_of` was given. Raises UnusableHandoff for the record of another engine."""
    fields = fields_of(type_of(engine), record)
    cached = None if record.cached_tokens is None else record.cached_tokens.total
    audio = None if record.modality_tokens is None else record.modality_tokens.audio
    counted = {name: value for name, value in (("cached_tokens", cached), ("audio_tokens", audio)) if value is not None}
    if counted:
        details = fields.setdefault(_DETAILS, {})
        if not isinstance(details, dict):
            raise UnusableHandoff(f"{_DETAILS} of the engine state is no object")
        details.update(counted)
    return fields


def migration_link_of(record: Record) -> dict[str, str] | None:
    """The `migration_link` that `record_of` was given; None without one. Raises UnusableHandoff for a `traceparent` of
    another form."""
    if record.traceparent is None:
        return None
    found = _TRACEPARENT.fullmatch(record.traceparent)
    if found is None:
        raise UnusableHandoff("the record's traceparent is none of version 00")
    return {"trace_id": found[1], "span_id": found[2]}


def _traceparent(link: Mapping[str, str]) -> str:
    fields = object_of(link, "migration_link")
    for name, digits in _LINK:
        value = fields.pop(name, None)
        if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value) or not value.strip("0"):
            raise refused(f"migration_link.{name}", f"must be {digits} hexadecimal digits in lower case, not all 0")
    for name in fields:
        raise refused(f"migration_link.{name}", "a traceparent has no place for it")
    return f"00-{link['trace_id']}-{link['span_id']}-01"
