"""vLLM's `kv_transfer_params` as the engine state of a record, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pd_handoff.engines.payload import fields_of, state_of
from pd_handoff.handoff import Handoff
from pd_handoff.record import Record, Token

VERSION = 1


def type_of(connector: str) -> str:
    """The type of the engine state of a connector, by its configured name such as `NixlConnector`."""
    return f"vllm/{connector};v={VERSION}"


def record_of(connector: str, params: Mapping[str, Any] | None, token_id: int | None) -> Record:
    """The record of a prefill.

    Args:
        connector: the name in `--kv-transfer-config`.
        params: what the connector returned for decode; None where it returned nothing (a cache that both sides share).
        token_id: the first token; None where prefill's side does not know it, and the record then holds no token.

    Raises:
        InvalidRecord: `params` holds what JSON cannot; `violations` names it.
    """
    tokens = [] if token_id is None else [Token(token_id)]
    return Record(tokens=tokens, engine_state=state_of(type_of(connector), params or {}))


def params_of(connector: str, handoff: Handoff) -> dict[str, Any]:
    """What decode's connector needs. Raises UnusableHandoff."""
    return fields_of(type_of(connector), handoff.record)
