"""Seconds as floats on this side, google.protobuf.Duration on the wire."""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration

from pd_handoff.errors import invalid_request

# The store grants its own bound for anything longer; the wire's is 10,000 years, and deadlines are added to it.
_LONGEST = 1e9


def seconds(duration: Duration) -> float:
    """Seconds of a message."""
    return duration.seconds + duration.nanos / 1e9


def duration(value: float, field: str) -> Duration:
    """The message of `value` seconds, infinity included. Raises InvalidRequest for what is no number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise invalid_request(field, f"must be seconds, is a {type(value).__name__}") from None
    if math.isnan(number):
        raise invalid_request(field, "must be seconds, is NaN")
    nanos = round(max(-_LONGEST, min(number, _LONGEST)) * 1e9)
    # The two parts of a Duration have the same sign.
    whole = nanos // 1_000_000_000 if nanos >= 0 else -(-nanos // 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos - whole * 1_000_000_000)
