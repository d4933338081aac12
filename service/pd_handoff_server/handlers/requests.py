"""Requests read and checked for form: messages in, plain values out, one violation a field."""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.unknown_fields import UnknownFieldSet
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

from pd_handoff_server import refusal
from pd_handoff_server.arena.layout import WIDTHS
from pd_handoff_server.arena.packed_record import MAX_ATTACHMENTS, Violations
from pd_handoff_server.lifecycle.model import Failure, Key, Spec

MAX_ID_BYTES: Final = 256
MAX_READERS: Final = 1024
MAX_DIGEST_BYTES: Final = 32
MAX_FAILURE_MESSAGE: Final = 1024
_SECOND = 1_000_000_000

_namespace = re.compile(r"[A-Za-z0-9._-]{0,128}").fullmatch
_upper_snake = re.compile(r"[A-Z][A-Z0-9_]{0,62}").fullmatch

NO_KEY: Key = ("", 0, 0)


def refuse(found: Violations) -> None:
    """Raises Refusal INVALID_REQUEST when there are violations."""
    if found:
        raise refusal.invalid("INVALID_REQUEST", found)


def key_of(key: record_pb2.HandoffKey, found: Violations, where: object = "") -> Key:
    """(namespace, room, sample); `where` the key stands, ending with a dot."""
    if len(UnknownFieldSet(key)):
        found.append((f"{where}key", "has fields that this store does not know; upgrade the store"))
        return NO_KEY
    namespace = key.namespace
    if namespace and not _namespace(namespace):
        what = "at most 128 of letters, digits, '.', '_' and '-' are legal"
        found.append((f"{where}key.namespace", what))
        return NO_KEY
    if not key.HasField("room"):
        found.append((f"{where}key.room", "is required; 0 is a room, leaving it out is not"))
        return NO_KEY
    return namespace, key.room, key.sample


def identifier(value: str, field: str, found: Violations, *, required: bool = True, where: object = "") -> str:
    """An owner, reader or instance id; `where` the field stands, ending with a dot."""
    if not value:
        if required:
            found.append((f"{where}{field}", "is required"))
    elif len(value) > MAX_ID_BYTES or (not value.isascii() and len(value.encode()) > MAX_ID_BYTES):
        found.append((f"{where}{field}", f"at most {MAX_ID_BYTES} bytes are legal"))
    return value


def digest_of(value: bytes, found: Violations, where: object = "") -> bytes:
    """A `request_digest`, empty when it is not stated."""
    if len(value) > MAX_DIGEST_BYTES:
        found.append((f"{where}request_digest", f"has {len(value)} bytes; at most {MAX_DIGEST_BYTES} are legal"))
    return value


def selection_of(request: pb.GetRequest, found: Violations, where: object = "") -> frozenset[str] | None:
    """Names of the attachments that a Get asks for; None: all."""
    if not request.HasField("attachments"):
        return None
    names = request.attachments.names
    if len(names) > MAX_ATTACHMENTS:
        found.append((f"{where}attachments.names", f"{len(names)} names; at most {MAX_ATTACHMENTS} are legal"))
    return frozenset(names)


def duration(value: Duration, field: str, found: Violations) -> int:
    """Nanoseconds; a negative one is a violation."""
    nanoseconds = value.seconds * _SECOND + value.nanos
    if nanoseconds < 0:
        found.append((field, "must not be negative"))
    return nanoseconds


def wait_of(request: pb.ReserveRequest | pb.GetRequest, found: Violations, where: object = "") -> int:
    """`max_wait` in nanoseconds, 0 when left out."""
    if not request.HasField("max_wait"):
        return 0
    return duration(request.max_wait, f"{where}max_wait", found)


def widths_of(widths: pb.Widths) -> tuple[int, ...]:
    """In the order of `Limits`."""
    return tuple(getattr(widths, name) for name in WIDTHS)


def spec_of(request: pb.ReserveRequest, found: Violations, where: object = "", key: Key | None = None) -> Spec:
    """What a Reserve asks for; `key` is given when it is that of the Put around it."""
    if key is None:
        key = key_of(request.key, found, where)
    owner = identifier(request.owner, "owner", found, where=where)
    lease = duration(request.lease, f"{where}lease", found) if request.HasField("lease") else None
    readers = request.expected_readers or 1
    if readers > MAX_READERS:
        found.append((f"{where}expected_readers", f"at most {MAX_READERS} are legal"))
    producer = None
    if request.HasField("producer"):
        instance_id = identifier(request.producer.instance_id, "producer.instance_id", found, where=where)
        producer = (instance_id, request.producer.epoch)
    widths = widths_of(request.widths) if request.HasField("widths") else None
    digest = digest_of(request.request_digest, found, where)
    return Spec(key, owner, request.attempt, lease, readers, producer, widths, digest)


def failure_of(failure: pb.Failure, found: Violations) -> Failure:
    """Why something was aborted, with defaults for what was left out."""
    status = failure.http_status
    if status and not 100 <= status <= 599:
        found.append(("failure.http_status", "must be from 100 to 599, or left out"))
    if failure.reason and not _upper_snake(failure.reason):
        found.append(("failure.reason", "must be UPPER_SNAKE of at most 63 bytes, or left out"))
    message = failure.message
    if len(message.encode()) > MAX_FAILURE_MESSAGE:
        message = message.encode()[:MAX_FAILURE_MESSAGE].decode(errors="ignore")
    return Failure(status or 500, failure.reason or "ABORTED", message)
