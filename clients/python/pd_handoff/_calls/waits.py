"""How long a request waits in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from pd_handoff._calls.encoded_requests import Encoded
from pd_handoff.v1 import metadata_store_pb2 as pb


def wait_of(request: Any) -> tuple[Duration, ...]:
    """The max_wait inside a request, if it has one."""
    if isinstance(request, Encoded):
        return ()
    if isinstance(request, pb.PutRequest):
        return wait_of(request.reserve) if request.HasField("reserve") else ()
    return (request.max_wait,) if request.HasField("max_wait") else ()


def longest(waits: Sequence[Duration]) -> float:
    """Seconds; 0 for none."""
    return max(0.0, *(duration.seconds + duration.nanos / 1e9 for duration in waits)) if waits else 0.0
