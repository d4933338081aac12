"""What the reader in C has to find, found by the server's Python: the functions of `_scan`, by way of protobuf.

`session`, which leaves the call in it alone, has no counterpart here. Each returns what the function of `_scan` would
have to, or None for what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.arena.layout import Layout
from pd_handoff_server.arena.packed_record import Violations, measure
from pd_handoff_server.handlers import requests
from pd_handoff_server.refusal import Refusal

M = TypeVar("M", bound=Message)


def _parsed(kind: type[M], data: bytes) -> M | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _spec(request: pb.ReserveRequest, found: Violations, key: Any = None) -> Any:
    spec = requests.spec_of(request, found, key=key)
    return (
        (
            *(spec.key, spec.owner, spec.attempt, spec.lease, spec.expected_readers, spec.producer, spec.widths),
            spec.request_digest,
        ),
        requests.wait_of(request, found),
    )


def put(request: pb.PutRequest, layout: Layout) -> Any:
    """A PutRequest."""
    found: Violations = []
    key = requests.key_of(request.key, found)
    reserve = None
    if request.HasField("reserve"):
        reserve = _spec(request.reserve, found, key)
    legal = request.HasField("record") and (reserve is None) == bool(request.token)
    if found or not legal or request.reserve.HasField("key"):
        return None
    try:
        draft = measure(request.record, layout)
    except Refusal:
        return None
    return key, request.token, draft.image, draft.presence, draft.widths, reserve


def get(request: pb.GetRequest, layout: Layout) -> Any:
    """A GetRequest."""
    del layout
    found: Violations = []
    key = requests.key_of(request.key, found)
    wait = requests.wait_of(request, found)
    reader = requests.identifier(request.reader_id, "reader_id", found, required=request.consume)
    digest = requests.digest_of(request.request_digest, found)
    if found:
        return None
    return key, request.attempt, wait, reader, request.consume, request.expected_store_epoch, digest


def reserve(request: pb.ReserveRequest, layout: Layout) -> Any:
    """A ReserveRequest."""
    del layout
    found: Violations = []
    read = _spec(request, found)
    return None if found else read


def _all(one: Callable[[Any, Layout], Any]) -> Callable[[Any, Layout], Any]:
    def read(request: Any, layout: Layout) -> Any:
        items = [one(item, layout) for item in request.requests]
        return None if None in items else items

    return read


READERS: dict[str, tuple[type[Message], Callable[[Any, Layout], Any]]] = {
    "put": (pb.PutRequest, put),
    "get": (pb.GetRequest, get),
    "reserve": (pb.ReserveRequest, reserve),
    "put_all": (pb.BatchPutRequest, _all(put)),
    "get_all": (pb.BatchGetRequest, _all(get)),
    "reserve_all": (pb.BatchReserveRequest, _all(reserve)),
}


def read(name: str, data: bytes, layout: Layout) -> tuple[Any, bool]:
    """What the function of this name has to find, and whether the bytes are those that a serializer writes."""
    kind, reader = READERS[name]
    request = _parsed(kind, data)
    if request is None:
        return None, False
    return reader(request, layout), request.SerializeToString() == data
