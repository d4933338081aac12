"""Which hand-off a request belongs to, and nothing else of what its client says about the engines behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pd_handoff.gateway.answers import Refused
from pd_handoff.model import Key

Bootstrap = Literal["keep", "strip"]

PARAMS = "kv_transfer_params"
_TAKEN = (PARAMS, "ec_transfer_params")
# Where engines and proxies look for further parameters of a request.
_NESTED = ("vllm_xargs", "extra_args", "sampling_params", "extra_body", "parameters", "instances")
_SGLANG = ("bootstrap_host", "bootstrap_port")
_SGLANG_ROOM = "bootstrap_room"
NAMES = frozenset((*_TAKEN, *_SGLANG, _SGLANG_ROOM))
"""Every name that makes a body worth reading."""

ADDRESSES = (b"___prefill_addr_", b"___decode_addr_")
"""What vLLM's peer-to-peer connector reads addresses from, inside a request id."""


@dataclass(frozen=True, slots=True)
class Room:
    """One hand-off that a request takes part in.

    Attributes:
        room: 0 to 2**64 - 1.
        sample: which of n samples, from 0.
        attempt: 0 is the first.
    """

    room: int
    sample: int = 0
    attempt: int = 0

    def key(self) -> Key:
        """The key, in the client's own namespace."""
        return Key(self.room, self.sample)


def room_of(request_id: str) -> int:
    """The room that two legs with the same request id share: 64 bits of its BLAKE2b digest."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "big")


def clean(body: dict[str, Any], bootstrap: Bootstrap, request_id: str | None) -> tuple[tuple[Room, ...], bool]:
    """Takes everything but the room out of the body, in place; returns the rooms, and whether the body changed.

    Args:
        body: the request.
        bootstrap: whether SGLang's own addresses stay.
        request_id: makes the room where the body asks for a hand-off and names no room; None for none.

    Raises Refused for a room that is none."""
    given = body.get(PARAMS)
    room = _room(given, request_id)
    stripped = [_strip(holder, bootstrap) for holder in _holders(body)]  # each of them
    if room is not None:
        kept = {"handoff": _shown(room, given)}
        body[PARAMS] = kept
        return (room,), kept != given
    rooms = _sglang_rooms(body.get(_SGLANG_ROOM))
    return rooms, any(stripped)


def _shown(room: Room, given: Any) -> dict[str, Any]:
    handoff = given.get("handoff") or {}
    shown: dict[str, Any] = {"room": str(room.room)}
    for name in ("sample", "attempt"):
        if handoff.get(name) is not None:
            shown[name] = getattr(room, name)
    return shown


def _holders(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body and what further parameters are nested in it."""
    waiting: list[Any] = [body]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list):
            waiting += [item for item in holder if isinstance(item, dict)]
        elif isinstance(holder, dict):
            waiting += [holder[name] for name in _NESTED if name in holder]
            yield holder


def _strip(holder: dict[str, Any], bootstrap: Bootstrap) -> bool:
    names = [name for name in (*_TAKEN, *(_SGLANG if bootstrap == "strip" else ())) if name in holder]
    for name in names:
        del holder[name]
    if isinstance(holder.get("request_id"), str) and has_address(holder["request_id"].encode("utf-8", "replace")):
        del holder["request_id"]
        names.append("request_id")
    return bool(names)


def has_address(request_id: bytes) -> bool:
    """Whether a request id carries addresses of engines."""
    return any(mark in request_id for mark in ADDRESSES)


def _room(given: Any, request_id: str | None) -> Room | None:
    if not isinstance(given, dict):
        return None
    handoff = given.get("handoff")
    if handoff is None:
        asks = given.get("do_remote_prefill") or given.get("do_remote_decode")
        return Room(room_of(request_id)) if asks and request_id else None
    where = f"{PARAMS}.handoff"
    if not isinstance(handoff, dict):
        raise _bad(where, "must be an object with a room", handoff)
    if handoff.get("room") is None:
        raise _bad(f"{where}.room", "is required: a whole number from 0 to 2^64 - 1, as a string", None)
    return Room(
        _unsigned(handoff["room"], 64, f"{where}.room"),
        _unsigned(handoff.get("sample") or 0, 32, f"{where}.sample"),
        _unsigned(handoff.get("attempt") or 0, 64, f"{where}.attempt"),
    )


def _sglang_rooms(given: Any) -> tuple[Room, ...]:
    """SGLang's rooms, one per request of a batch. Values of another kind are left to SGLang's own validation."""
    items = given if isinstance(given, list) else [given]
    return tuple(
        Room(item) for item in items if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 64
    )


def _unsigned(value: Any, bits: int, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise _bad(where, f"must be a whole number from 0 to 2^{bits} - 1", value)
    return value


def _bad(where: str, what: str, value: Any) -> Refused:
    given = "" if value is None else f", not {str(value)[:64]!r}"
    return Refused(400, f"{where} {what}{given}", param=where, code="invalid_room")
