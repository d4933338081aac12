"""vLLM's `kv_transfer_params` as a record of the store, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pd_handoff.engines.payload import UnusableHandoff
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
        token_id: the first token where prefill's side knows it.
    """
    said = {"type": type_of(connector), "params": dict(params or {})}
    return Record(
        tokens=[Token(token_id or 0)],
        customized_info=json.dumps(said, separators=(",", ":")).encode(),
    )


def params_of(connector: str, handoff: Handoff) -> dict[str, Any]:
    """What decode's connector needs. Raises UnusableHandoff."""
    try:
        said = json.loads(handoff.proto.customized_info or b"null")
        kind, params = said["type"], said["params"]
    except (ValueError, TypeError, KeyError):
        raise UnusableHandoff("the record holds no engine state") from None
    if kind != type_of(connector):
        raise UnusableHandoff(f"the record is for {kind}, this engine has {type_of(connector)}")
    if not isinstance(params, dict):
        raise UnusableHandoff("the engine state is no JSON object")
    return params
