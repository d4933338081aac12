"""What the vLLM adapter takes from its environment, beside the settings of `pd_handoff.gateway`.

| variable | meaning | default |
|---|---|---|
| `PD_HANDOFF_LEASE` | on prefill: seconds after which a silent prefill counts as lost, 1 to 3,600 | 15 |
| `PD_HANDOFF_DECODE_WAIT` | on decode: seconds until a prefill must have reserved, 0.1 to 600 | 120 |
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from pd_handoff.gateway.settings import Settings as GatewaySettings
from pd_handoff.gateway.settings import settings as gateway_settings

LEASE = 15.0
MAX_WAIT = 120.0


@dataclass(frozen=True)
class Settings:
    """What one side of a vLLM pair runs by.

    Attributes:
        target: `host:port` or `unix:PATH` of the store.
        connection: further arguments of the clients.
        lease: seconds, on prefill.
        max_wait: seconds, on decode.
        role: "prefill" or "decode" where PD_HANDOFF_ROLE says so, else "front".
        room_from_request_id: whether the request id makes the room of a request that names none.
    """

    target: str
    connection: dict[str, Any]
    lease: float
    max_wait: float
    role: str
    room_from_request_id: bool


def from_environment() -> Settings:
    """Raises ValueError, naming the variable, for a bad setting."""
    names = ("target", "role", "policy", "engine_limit", "room_from_request_id", "bootstrap", "max_body_bytes")
    return of_gateway(gateway_settings(**dict.fromkeys((*names, "max_buffered_bytes", "refresh", "connection"))))


def of_gateway(gateway: GatewaySettings) -> Settings:
    """The settings that go with those of a gateway. Raises ValueError, naming the variable, for a bad setting."""
    if len(gateway.targets) != 1:
        raise ValueError(f"PD_HANDOFF_TARGET must name one store for vLLM, names {len(gateway.targets)}")
    return Settings(
        target=gateway.targets[0],
        connection=gateway.connection,
        lease=_seconds("PD_HANDOFF_LEASE", LEASE, 1.0, 3600.0),
        max_wait=_seconds("PD_HANDOFF_DECODE_WAIT", MAX_WAIT, 0.1, 600.0),
        role=gateway.role,
        room_from_request_id=gateway.room_from_request_id,
    )


def _seconds(variable: str, default: float, least: float, most: float) -> float:
    text = os.environ.get(variable)
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ValueError(f"{variable} must be seconds from {least:g} to {most:g}, is {text!r}")
    return number
