"""LMDeploy's `migration_request` as a record of the store, and back.

LMDeploy's proxy builds it from prefill's answer and sends it to decode. It is the JSON form of the engine's class
`MigrationRequest`, as its `model_dump(mode="json")` gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pd_handoff.engines.payload import (
    UnusableHandoff,
    fields_of,
    integer_of,
    object_of,
    refused,
    state_of,
    token_id_of,
)
from pd_handoff.record import Record, Token

TYPE = "lmdeploy/MigrationRequest;v=1"
_REQUIRED = ("protocol", "remote_engine_id", "remote_session_id", "remote_token_id", "remote_block_ids")

__all__ = ["TYPE", "UnusableHandoff", "record_of", "request_of"]


def record_of(request: Mapping[str, Any]) -> Record:
    """The record of a prefill.

    Args:
        request: `migration_request`. `remote_token_id` becomes the record's only token. The other fields become the
            engine state. A dummy prefill has sampled nothing, so its `remote_token_id` is no token of the record.

    Returns:
        A record for `PrefillHandoff.put`.

    Raises:
        InvalidRecord: a field is missing, or holds what cannot be carried; `violations` names it.
    """
    fields = object_of(request, "migration_request")
    for name in _REQUIRED:
        if fields.get(name) is None:
            raise refused(name, "is required")
    if not isinstance(fields["remote_block_ids"], (list, tuple)):
        raise refused("remote_block_ids", f"must be a list, is {type(fields['remote_block_ids']).__name__}")
    if not isinstance(fields.get("is_dummy_prefill", False), bool):
        raise refused("is_dummy_prefill", f"must be true or false, is {type(fields['is_dummy_prefill']).__name__}")
    for index, block in enumerate(fields["remote_block_ids"]):
        integer_of(block, f"remote_block_ids[{index}]", 63)
    tokens = []
    if not fields.get("is_dummy_prefill"):
        tokens.append(Token(token_id_of(fields.pop("remote_token_id"), "remote_token_id")))
    return Record(tokens=tokens, engine_state=state_of(TYPE, fields))


def request_of(record: Record) -> dict[str, Any]:
    """The `migration_request` that `record_of` was given. Raises UnusableHandoff for the record of another engine."""
    fields = fields_of(TYPE, record)
    if not fields.get("is_dummy_prefill"):
        if len(record.tokens) != 1:
            raise UnusableHandoff(f"the record has {len(record.tokens)} tokens, LMDeploy hands over one")
        fields["remote_token_id"] = record.tokens[0].token_id
    return fields
