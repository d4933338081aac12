"""The metadata hand-off of prefill/decode disaggregated LLM serving: client of a pd-handoff store.

    from pd_handoff import DecodeClient, PrefillClient, Record, Token

    with PrefillClient("127.0.0.1:50071") as prefill, prefill.prefill(room) as handoff:
        handoff.put(Record(tokens=[Token(token_id=42, logprob=-0.5)]))

    with DecodeClient("127.0.0.1:50071") as decode:
        record = decode.get(room, max_wait=300).record

`pd_handoff.aio` has the same clients for asyncio. Neither numpy nor torch is needed; both are understood.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pd_handoff._version import __version__

if TYPE_CHECKING:
    from pd_handoff import aio, errors
    from pd_handoff._transport.channel import tls_credentials
    from pd_handoff.admin import HandoffInfo, HandoffState
    from pd_handoff.capabilities import Capabilities
    from pd_handoff.client import AdminClient, DecodeClient, PrefillClient, PrefillHandoff
    from pd_handoff.errors import (
        AlreadyConsumed,
        ArenaFull,
        ClientClosed,
        DeadlineExceeded,
        Draining,
        EngineUnreachable,
        FieldOverflow,
        HandoffAborted,
        HandoffError,
        HandoffExists,
        HandoffExpired,
        HandoffNotFound,
        InvalidRecord,
        InvalidRecordType,
        InvalidRequest,
        MessageTooLarge,
        NotAStore,
        PermissionDenied,
        ProducerRestarted,
        RecordImmutable,
        RecordNotReady,
        RequestMismatch,
        ReservationExpired,
        SchemaMismatch,
        StaleReservation,
        StoreInternalError,
        StoreRestarted,
        StoreUnavailable,
        TooManyWaiters,
        TopLogprobsOverflow,
        Unauthenticated,
        Violation,
    )
    from pd_handoff.handoff import Handoff
    from pd_handoff.model import Failure, GetItem, Key, Published, Reservation, ReserveItem, Widths, digest_of_prompt
    from pd_handoff.record import (
        CachedTokens,
        EngineState,
        FinishReason,
        KvChecksum,
        Logprobs,
        ModalityTokens,
        Record,
        SamplingMask,
        SpeculativeState,
        Token,
    )
    from pd_handoff.retries import Retries
    from pd_handoff.tensor import DataType, Tensor

# Loaded at first use: gRPC takes a noticeable part of a second, and who only catches errors or builds records needs
# none.
_HOMES = {
    "_transport.channel": ("tls_credentials",),
    "admin": ("HandoffInfo", "HandoffState"),
    "capabilities": ("Capabilities",),
    "client": ("AdminClient", "DecodeClient", "PrefillClient", "PrefillHandoff"),
    "errors": (
        *(
            "AlreadyConsumed",
            "ArenaFull",
            "ClientClosed",
            "DeadlineExceeded",
            "Draining",
            "EngineUnreachable",
            "FieldOverflow",
        ),
        *("HandoffAborted", "HandoffError", "HandoffExists", "HandoffExpired", "HandoffNotFound", "InvalidRecord"),
        "InvalidRecordType",
        *("InvalidRequest", "MessageTooLarge", "NotAStore", "PermissionDenied", "ProducerRestarted", "RecordImmutable"),
        *(
            "RecordNotReady",
            "RequestMismatch",
            "ReservationExpired",
            "SchemaMismatch",
            "StaleReservation",
            "StoreInternalError",
        ),
        *(
            "StoreRestarted",
            "StoreUnavailable",
            "TooManyWaiters",
            "TopLogprobsOverflow",
            "Unauthenticated",
            "Violation",
        ),
    ),
    "handoff": ("Handoff",),
    "model": (
        *("Failure", "GetItem", "Key", "Published", "Reservation", "ReserveItem", "Widths"),
        "digest_of_prompt",
    ),
    "record": (
        *(
            "CachedTokens",
            "EngineState",
            "FinishReason",
            "KvChecksum",
            "Logprobs",
            "ModalityTokens",
            "Record",
            "SamplingMask",
        ),
        *("SpeculativeState", "Token"),
    ),
    "retries": ("Retries",),
    "tensor": ("DataType", "Tensor"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("aio", "errors")

__all__ = [
    "AdminClient",
    "AlreadyConsumed",
    "ArenaFull",
    "CachedTokens",
    "Capabilities",
    "ClientClosed",
    "DataType",
    "DeadlineExceeded",
    "DecodeClient",
    "Draining",
    "EngineState",
    "EngineUnreachable",
    "Failure",
    "FieldOverflow",
    "FinishReason",
    "GetItem",
    "Handoff",
    "HandoffAborted",
    "HandoffError",
    "HandoffExists",
    "HandoffExpired",
    "HandoffInfo",
    "HandoffNotFound",
    "HandoffState",
    "InvalidRecord",
    "InvalidRecordType",
    "InvalidRequest",
    "Key",
    "KvChecksum",
    "Logprobs",
    "MessageTooLarge",
    "ModalityTokens",
    "NotAStore",
    "PermissionDenied",
    "PrefillClient",
    "PrefillHandoff",
    "ProducerRestarted",
    "Published",
    "Record",
    "RecordImmutable",
    "RecordNotReady",
    "RequestMismatch",
    "Reservation",
    "ReservationExpired",
    "ReserveItem",
    "Retries",
    "SamplingMask",
    "SchemaMismatch",
    "SpeculativeState",
    "StaleReservation",
    "StoreInternalError",
    "StoreRestarted",
    "StoreUnavailable",
    "Tensor",
    "Token",
    "TooManyWaiters",
    "TopLogprobsOverflow",
    "Unauthenticated",
    "Violation",
    "Widths",
    "__version__",
    "aio",
    "digest_of_prompt",
    "errors",
    "tls_credentials",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"pd_handoff.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'pd_handoff' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"pd_handoff.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(__all__) | {name for name in globals() if name.startswith("__")})
