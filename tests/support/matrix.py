"""Which calls the documents let which reasons refuse. The suite fails when it judged one of these pairs nowhere.

`Put` is one under a token, `one-shot Put` one that reserves. A batch of one item counts as its item. `BatchReserve`,
`BatchPut` and `BatchGet` are batches of several, refused as a whole or in one of their items.
"""

from __future__ import annotations

from typing import Final

_RESERVING: Final = ("Reserve", "one-shot Put", "BatchReserve")
_PUTTING: Final = ("Put", "one-shot Put", "BatchPut")
_GETTING: Final = ("Get", "BatchGet")
_BY_TOKEN: Final = ("Put", "BatchPut", "Release", "Abort")
_ADMIN: Final = ("ListHandoffs", "GetHandoff")
_SINGLE: Final = ("Reserve", "Put", "one-shot Put", "Get", "Release", "Abort", "Capabilities")
_BATCHES: Final = ("BatchReserve", "BatchPut", "BatchGet")

_CALLS: Final[dict[str, tuple[str, ...]]] = {
    "TOP_LOGPROBS_OVERFLOW": (*_RESERVING, "Put", "BatchPut", "Capabilities"),
    "FIELD_OVERFLOW": (*_RESERVING, "Put", "BatchPut", "Capabilities"),
    "ARENA_FULL": _RESERVING,
    "TOO_MANY_WAITERS": (*_RESERVING, *_GETTING),
    "HANDOFF_EXISTS": _RESERVING,
    "RECORD_IMMUTABLE": ("Put", "BatchPut", "one-shot Put"),
    "STALE_RESERVATION": (*_RESERVING, *_BY_TOKEN),
    "RESERVATION_EXPIRED": (*_RESERVING, "Put", "BatchPut"),
    "INVALID_RECORD": _PUTTING,
    "INVALID_REQUEST": (*(set(_SINGLE) - {"Capabilities"}), *_BATCHES, *_ADMIN),
    "HANDOFF_NOT_FOUND": (*_GETTING, "GetHandoff"),
    "RECORD_NOT_READY": _GETTING,
    "HANDOFF_ABORTED": (*_RESERVING, "Put", "BatchPut", *_GETTING),
    "HANDOFF_EXPIRED": (*_RESERVING, "Put", *_GETTING),
    "PRODUCER_RESTARTED": (*_RESERVING, "Put", *_GETTING),
    "ALREADY_CONSUMED": ("Reserve", "BatchReserve", *_GETTING),
    "STORE_RESTARTED": _GETTING,
    "REQUEST_MISMATCH": _GETTING,
    "SCHEMA_MISMATCH": ("Capabilities",),
    "DRAINING": (*_SINGLE, *_BATCHES, *_ADMIN),
    "INTERNAL": (*_SINGLE, *_BATCHES, *_ADMIN),
}

DOCUMENTED: Final = frozenset((reason, call) for reason, calls in _CALLS.items() for call in calls)
"""(reason, call), credentials aside."""
