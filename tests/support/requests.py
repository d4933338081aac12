"""Requests with what tests leave out filled in."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from . import records

Key = rp.HandoffKey | int
"""A key, or just its room."""


def key(which: Key) -> rp.HandoffKey:
    """The key of a room, or the key itself."""
    return which if isinstance(which, rp.HandoffKey) else rp.HandoffKey(room=which)


def seconds(value: float | None) -> Duration | None:
    """A Duration; None stays None."""
    if value is None:
        return None
    nanoseconds = round(value * 1_000_000_000)
    whole = abs(nanoseconds) // 1_000_000_000
    rest = abs(nanoseconds) % 1_000_000_000
    sign = -1 if nanoseconds < 0 else 1
    return Duration(seconds=sign * whole, nanos=sign * rest)


def reserve(
    which: Key | None,
    owner: str = "prefill",
    *,
    lease: float | None = None,
    max_wait: float | None = None,
    attempt: int = 0,
    readers: int = 0,
    widths: pb.Widths | None = None,
    producer: tuple[str, int] | None = None,
    digest: bytes = b"",
) -> pb.ReserveRequest:
    """A Reserve; without a key the part of a one-shot Put. Times in seconds."""
    return pb.ReserveRequest(
        key=None if which is None else key(which),
        owner=owner,
        widths=widths,
        lease=seconds(lease),
        expected_readers=readers,
        attempt=attempt,
        producer=None if producer is None else pb.Producer(instance_id=producer[0], epoch=producer[1]),
        max_wait=seconds(max_wait),
        request_digest=digest,
    )


def put(which: Key, token: bytes, record: rp.HandoffRecord | None = None) -> pb.PutRequest:
    """A Put under a token."""
    return pb.PutRequest(key=key(which), token=token, record=record or records.record())


def put_once(
    which: Key, record: rp.HandoffRecord | None = None, reserving: pb.ReserveRequest | None = None
) -> pb.PutRequest:
    """A one-shot Put."""
    return pb.PutRequest(key=key(which), record=record or records.record(), reserve=reserving or reserve(None))


def get(
    which: Key,
    *,
    attempt: int = 0,
    max_wait: float | None = None,
    reader: str = "",
    consume: bool | None = None,
    epoch: str = "",
    digest: bytes = b"",
    attachments: Iterable[str] | None = None,
) -> pb.GetRequest:
    """A Get; it consumes when it names a reader, unless told otherwise."""
    return pb.GetRequest(
        key=key(which),
        attempt=attempt,
        max_wait=seconds(max_wait),
        reader_id=reader,
        consume=bool(reader) if consume is None else consume,
        expected_store_epoch=epoch,
        request_digest=digest,
        attachments=None if attachments is None else pb.AttachmentSelection(names=attachments),
    )


def failure(status: int = 400, reason: str = "INPUT_TOO_LONG", message: str = "input too long") -> pb.Failure:
    """Why something is aborted."""
    return pb.Failure(http_status=status, reason=reason, message=message)


def abort(
    which: Key, *, token: bytes = b"", attempt: int | None = None, why: pb.Failure | None = None
) -> pb.AbortRequest:
    """An Abort."""
    return pb.AbortRequest(key=key(which), failure=why or failure(), token=token, attempt=attempt)


EACH: list[tuple[str, Message]] = [
    ("Reserve", reserve(7)),
    ("Put", put(7, b"token")),
    ("Put", put_once(7)),
    ("Get", get(7)),
    ("Release", pb.ReleaseRequest(key=key(7), token=b"token")),
    ("Abort", abort(7)),
    ("Capabilities", pb.CapabilitiesRequest()),
]
"""One well-formed request for each single call, by method."""

BATCHES: list[tuple[str, Message]] = [
    ("BatchReserve", pb.BatchReserveRequest(requests=[reserve(1), reserve(2)])),
    ("BatchPut", pb.BatchPutRequest(requests=[put_once(1), put(2, b"token")])),
    ("BatchGet", pb.BatchGetRequest(requests=[get(1), get(2)])),
]
"""One well-formed request of several items for each batch, by method."""

LOOKS: list[tuple[str, Message]] = [
    ("GetHandoff", admin_pb2.GetHandoffRequest(key=key(1))),
    ("ListHandoffs", admin_pb2.ListHandoffsRequest()),
]
"""One well-formed request for each call of the admin service, by method."""
