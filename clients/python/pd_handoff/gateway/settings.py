"""Settings of a gateway: keyword arguments first, then PD_HANDOFF_* variables, then defaults."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pd_handoff._transport import bearer
from pd_handoff._transport.channel import DEFAULT_TARGET, target_of, tls_credentials
from pd_handoff.errors import Unauthenticated
from pd_handoff.gateway.fields import Policy
from pd_handoff.gateway.topology import Bootstrap

Role = Literal["front", "prefill", "decode"]


@dataclass(frozen=True)
class Settings:
    """What a gateway runs by."""

    targets: tuple[str, ...]
    role: Role
    policy: Policy
    engine_limit: int | None
    room_from_request_id: bool
    bootstrap: Bootstrap
    max_body_bytes: int
    max_buffered_bytes: int
    refresh: float
    connection: dict[str, Any]


def settings(
    *,
    target: str | Sequence[str] | None,
    role: str | None,
    policy: str | None,
    engine_limit: int | None,
    room_from_request_id: bool | None,
    bootstrap: str | None,
    max_body_bytes: int | None,
    max_buffered_bytes: int | None,
    refresh: float | None,
    connection: dict[str, Any] | None,
) -> Settings:
    """Raises ValueError, naming the variable and the keyword, for a bad setting."""
    chosen = _choice("PD_HANDOFF_ROLE", role, ("front", "prefill", "decode"))
    body = _number("PD_HANDOFF_MAX_BODY_BYTES", max_body_bytes, 64 << 20, 1)
    return Settings(
        targets=_targets(target),
        role=cast(Role, chosen),
        policy=cast(Policy, _choice("PD_HANDOFF_ADMISSION", policy, ("reject", "clamp"))),
        engine_limit=_optional("PD_HANDOFF_ENGINE_TOP_LOGPROBS", engine_limit),
        room_from_request_id=(
            bearer.says_yes("PD_HANDOFF_ROOM_FROM_REQUEST_ID")
            if room_from_request_id is None
            else bool(room_from_request_id)
        ),
        bootstrap=cast(
            Bootstrap,
            _choice("PD_HANDOFF_BOOTSTRAP", bootstrap, ("strip", "keep") if chosen == "front" else ("keep", "strip")),
        ),
        max_body_bytes=body,
        max_buffered_bytes=_number("PD_HANDOFF_MAX_BUFFERED_BYTES", max_buffered_bytes, max(512 << 20, body), body),
        refresh=_seconds("PD_HANDOFF_LIMITS_REFRESH", refresh, 30.0),
        connection=_connection() if connection is None else dict(connection),
    )


def _targets(given: str | Sequence[str] | None) -> tuple[str, ...]:
    value = given or os.environ.get("PD_HANDOFF_TARGET") or DEFAULT_TARGET
    targets = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
    try:
        for target in targets:
            target_of(target)
    except ValueError as error:
        raise ValueError(f"PD_HANDOFF_TARGET: {error}") from None
    return tuple(dict.fromkeys(targets))


def _choice(variable: str, given: str | None, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    value = given if given is not None else os.environ.get(variable) or choices[0]
    if value not in choices:
        raise ValueError(f"{variable} must be one of {', '.join(sorted(choices))}, is {value!r}")
    return value


def _optional(variable: str, given: int | None) -> int | None:
    if given is None and not os.environ.get(variable):
        return None
    return _number(variable, given, 0, 0)


def _number(variable: str, given: int | None, default: int, least: int) -> int:
    value: Any = given if given is not None else os.environ.get(variable) or default
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{variable} must be a whole number from {least}, is {value!r}")
    return value


def _seconds(variable: str, given: float | None, default: float) -> float:
    value: Any = given if given is not None else os.environ.get(variable) or default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{variable} must be a positive number of seconds, is {value!r}")
    return number


def _connection() -> dict[str, Any]:
    connection: dict[str, Any] = {"namespace": os.environ.get("PD_HANDOFF_NAMESPACE", "")}
    bearer_file = os.environ.get("PD_HANDOFF_BEARER_FILE")
    if bearer_file:
        connection["token"] = _token_reader(bearer_file)
        connection["insecure_token"] = bearer.says_yes("PD_HANDOFF_INSECURE_TOKEN")
    authority = os.environ.get("PD_HANDOFF_TLS_CA")
    if authority:
        try:
            connection["credentials"] = tls_credentials(ca=Path(authority).read_bytes())
        except OSError as error:
            raise ValueError(f"PD_HANDOFF_TLS_CA: {error}") from error
    return connection


def _token_reader(file: str) -> Callable[[], str]:
    """Read at each call, since tokens are renewed. Raises ValueError at once for a file that holds none."""
    try:
        bearer.token_in(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"PD_HANDOFF_BEARER_FILE: {error}") from error

    def token() -> str:
        try:
            return bearer.token_in(file)
        except (OSError, ValueError) as error:
            raise Unauthenticated(f"PD_HANDOFF_BEARER_FILE cannot be read: {error}") from error

    return token
