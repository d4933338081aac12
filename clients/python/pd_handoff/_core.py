"""gRPC's own operations on a call, which its Python classes are made of, for calls that cost a part of theirs.

They are not public. Whoever uses them asks `missing` first, and has a public way for a release that lacks them
(docs/client.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:
    cygrpc = None

__all__ = ["Status", "cygrpc", "missing", "status_of"]

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class Status(NamedTuple):
    """How a call or a stream ended; has the methods that `errors.from_rpc` reads."""

    number: int
    text: str
    trailing: Any

    def code(self) -> grpc.StatusCode:
        """See grpc.Call."""
        return _CODES.get(self.number, grpc.StatusCode.UNKNOWN)

    def details(self) -> str:
        """See grpc.Call."""
        return self.text

    def trailing_metadata(self) -> Any:
        """See grpc.Call."""
        return self.trailing


def status_of(ended: Any) -> Status:
    """From the operation that waited for it, once that is done."""
    return Status(int(ended.code()), ended.details() or "", ended.trailing_metadata())


def missing(channel: grpc.Channel, names: Iterable[str], methods: Iterable[str]) -> list[str]:
    """Which of these, `methods` being those of a call, this gRPC does not have."""
    lacks = [f"cygrpc.{name}" for name in (*names, "SegregatedCall") if not hasattr(cygrpc, name)]
    if not hasattr(getattr(channel, "_channel", None), "segregated_call"):
        lacks.append("Channel._channel.segregated_call")
    call = getattr(cygrpc, "SegregatedCall", None)
    return lacks + [f"SegregatedCall.{name}" for name in methods if not hasattr(call, name)]
