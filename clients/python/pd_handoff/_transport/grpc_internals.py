"""gRPC's own operations on a call, which its Python classes are made of, for calls that cost a part of theirs.

They are not public, and a later release may change them. Each use is checked: an exception that is not gRPC's own means
the public way from then on, for this process, with one warning (docs/client.md).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:
    cygrpc = None

__all__ = ["Status", "begin_of", "cygrpc", "give_up", "given_up", "missing", "status_of", "wanted"]

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


_given_up = False


def wanted() -> bool:
    """Whether the private operations may be tried. Raises ValueError for a setting that is none."""
    way = os.environ.get("PD_HANDOFF_GRPC", "auto")
    if way not in ("auto", "public", ""):
        raise ValueError(f"PD_HANDOFF_GRPC must be auto or public, is {way!r}")
    return way != "public" and not _given_up


def given_up() -> bool:
    """Whether one of them failed in this process."""
    return _given_up


def give_up(error: Exception) -> None:
    """One of them failed in a way that is not gRPC's own: this release has another form of it."""
    global _given_up  # noqa: PLW0603  # one release of gRPC per process
    if not _given_up:
        _given_up = True
        warnings.warn(
            f"pd_handoff: grpcio {grpc.__version__} differs from the releases that this version knows "
            f"({type(error).__name__}: {error}); calls take gRPC's public way from now on, which is slower. "
            "PD_HANDOFF_GRPC=public chooses it without this warning.",
            RuntimeWarning,
            stacklevel=2,
        )


def begin_of(channel: grpc.Channel) -> Callable[..., Any]:
    """What begins a call on the channel."""
    begin: Callable[..., Any] = channel._channel.segregated_call  # type: ignore[attr-defined]
    return begin


def missing(channel: grpc.Channel, names: Iterable[str], methods: Iterable[str]) -> list[str]:
    """Which of these, `methods` being those of a call, this gRPC does not have."""
    lacks = [f"cygrpc.{name}" for name in (*names, "SegregatedCall") if not hasattr(cygrpc, name)]
    if not hasattr(getattr(channel, "_channel", None), "segregated_call"):
        lacks.append("Channel._channel.segregated_call")
    call = getattr(cygrpc, "SegregatedCall", None)
    return lacks + [f"SegregatedCall.{name}" for name in methods if not hasattr(call, name)]
