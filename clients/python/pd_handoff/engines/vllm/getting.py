"""Decode's side of one hand-off: waiting for its record."""

from __future__ import annotations

from pd_handoff.aio import DecodeClient
from pd_handoff.errors import RecordNotReady
from pd_handoff.handoff import Handoff
from pd_handoff.model import Key


async def record_for(client: DecodeClient, key: Key, *, attempt: int, digest: bytes | None, max_wait: float) -> Handoff:
    """The record of a hand-off. Waits `max_wait` seconds for a prefill to reserve it, and then as long as that one
    renews its lease.

    Raises as DecodeClient.get."""
    while True:
        try:
            return await client.get(key, attempt=attempt, max_wait=max_wait, request_digest=digest)
        except RecordNotReady as error:
            if error.state != "RESERVED":
                raise
