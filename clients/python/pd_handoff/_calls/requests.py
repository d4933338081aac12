"""Arguments of the public methods -> requests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration

from pd_handoff._values.durations import duration, seconds
from pd_handoff._values.integers import shown, unfit
from pd_handoff.errors import InvalidRequest, invalid_request
from pd_handoff.model import WIDTH_BITS, Failure, Key, Reservation, Widths
from pd_handoff.record import Record
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

_LEAST_WAIT = 0.001  # what is left of a wait that an outage used up: still a wait, with a wait's answers


def new_name(kind: str) -> str:
    """A string nobody else uses, for an owner or a reader."""
    return f"{kind}-{os.urandom(16).hex()}"


def key_message(key: Key | int, namespace: str) -> record_pb2.HandoffKey:
    """The message of a key; `namespace` is for keys that name none. Raises InvalidRequest for what no key can hold."""
    sample = 0
    if isinstance(key, Key):
        room, sample = key.room, key.sample
        namespace = namespace if key.namespace is None else key.namespace
    else:
        room = key
    if room is None or isinstance(room, bool) or isinstance(sample, bool):
        raise _unfit({"key.room": (room, 64), "key.sample": (sample, 32)}, "key")
    try:
        return record_pb2.HandoffKey(namespace=namespace, room=room, sample=sample)
    except (TypeError, ValueError) as error:
        if not isinstance(namespace, (str, bytes)):
            raise invalid_request("key.namespace", f"must be text, not {shown(namespace)}") from None
        raise _unfit({"key.room": (room, 64), "key.sample": (sample, 32)}, "key", error) from None


def check_type(value: object, kind: type[Any], name: str) -> None:
    """Raises TypeError, saying what was expected, unless `value` is None or of this kind."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, not {shown(value)}")


def check_reservation(value: object, method: str) -> None:
    """Raises TypeError unless it is a Reservation."""
    if not isinstance(value, Reservation):
        raise TypeError(f"{method} takes a Reservation, not {shown(value)}")


def key_of(message: record_pb2.HandoffKey) -> Key:
    """The key of a message."""
    return Key(message.room, message.sample, message.namespace)


def reserve_request(
    key: record_pb2.HandoffKey | None,
    *,
    owner: str | None,
    widths: Widths | None,
    lease: float | None,
    expected_readers: int,
    attempt: int,
    max_wait: float | None,
    producer: pb.Producer | None,
    request_digest: bytes | None = None,
) -> pb.ReserveRequest:
    """A Reserve; without a key, the part of a one-shot Put. Raises InvalidRequest for what it cannot hold."""
    check_type(widths, Widths, "widths")
    digest = digest_of(request_digest)
    try:
        request = pb.ReserveRequest(
            key=key,
            owner=new_name("owner") if owner is None else owner,
            widths=None if widths is None else widths.to_proto(),
            expected_readers=expected_readers,
            attempt=attempt,
            producer=producer,
            request_digest=digest,
        )
    except (TypeError, ValueError) as error:
        numbers = {"attempt": (attempt, 64), "expected_readers": (expected_readers, 32)}
        if widths is not None:
            numbers |= {f"widths.{name}": (getattr(widths, name), WIDTH_BITS[name]) for name in WIDTH_BITS}
        raise _unfit(numbers, "reserve", error) from None
    if lease is not None:
        request.lease.CopyFrom(duration(lease, "lease"))
    if max_wait is not None:
        request.max_wait.CopyFrom(duration(max_wait, "max_wait"))
    return request


def digest_of(value: bytes | None) -> bytes:
    """A `request_digest`, empty for None. Raises InvalidRequest for what is no bytes."""
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise invalid_request("request_digest", f"must be bytes, not {shown(value)}")


def selection_of(names: Iterable[str] | None) -> pb.AttachmentSelection | None:
    """Names of attachments; None stands for all. Raises InvalidRequest for what are no names."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)):
        raise invalid_request("attachments", f"must be a list of names, not {shown(names)}")
    try:
        return pb.AttachmentSelection(names=names)
    except (TypeError, ValueError) as error:
        raise invalid_request("attachments", f"must be a list of names: {error}") from None


def put_request(
    key: record_pb2.HandoffKey, record: Record | record_pb2.HandoffRecord, token: bytes = b""
) -> pb.PutRequest:
    """A Put. Raises InvalidRecord for values that no record can hold."""
    return pb.PutRequest(key=key, token=token, record=record_message(record))


def record_message(record: Record | record_pb2.HandoffRecord) -> record_pb2.HandoffRecord:
    """The message of a record. Raises InvalidRecord for values that no record can hold."""
    if isinstance(record, record_pb2.HandoffRecord):
        return record
    if not isinstance(record, Record):
        raise TypeError(f"record must be a Record or a HandoffRecord message, is a {type(record).__name__}")
    message: record_pb2.HandoffRecord = record.to_proto()
    return message


def get_request(
    key: record_pb2.HandoffKey | None,
    *,
    attempt: int,
    max_wait: float | None,
    reader_id: str,
    consume: bool,
    expected_store_epoch: str | None,
    request_digest: bytes | None = None,
    attachments: Iterable[str] | None = None,
) -> pb.GetRequest:
    """A Get; without a key, the rest of it. Raises InvalidRequest for what it cannot hold."""
    digest = digest_of(request_digest)
    wanted = selection_of(attachments)
    try:
        request = pb.GetRequest(
            key=key,
            attempt=attempt,
            reader_id=reader_id,
            consume=consume,
            expected_store_epoch=expected_store_epoch or "",
            request_digest=digest,
            attachments=wanted,
        )
    except (TypeError, ValueError) as error:
        raise _unfit({"attempt": (attempt, 64)}, "get", error) from None
    if max_wait is not None:
        request.max_wait.CopyFrom(duration(max_wait, "max_wait"))
    return request


def release_request(key: record_pb2.HandoffKey, *, token: bytes = b"", reader_id: str = "") -> pb.ReleaseRequest:
    """A Release by one of both."""
    return pb.ReleaseRequest(key=key, token=token, reader_id=reader_id)


def abort_request(
    key: record_pb2.HandoffKey, failure: Failure, *, token: bytes = b"", attempt: int | None = None
) -> pb.AbortRequest:
    """An Abort. Raises InvalidRequest for what it cannot hold; TypeError for what is no Failure, or in one."""
    if not isinstance(failure, Failure):
        raise TypeError(f"failure must be a Failure, not {shown(failure)}")
    try:
        why = failure.to_proto()
    except ValueError as error:
        raise invalid_request("failure", str(error)) from None
    try:
        return pb.AbortRequest(key=key, failure=why, token=token, attempt=attempt)
    except (TypeError, ValueError) as error:
        raise _unfit({} if attempt is None else {"attempt": (attempt, 64)}, "abort", error) from None


def reservation_of(request: pb.ReserveRequest, response: pb.ReserveResponse) -> Reservation:
    """What a Reserve gave."""
    return Reservation(
        key=key_of(request.key),
        token=response.token,
        owner=request.owner,
        attempt=request.attempt,
        lease=seconds(response.lease),
        store_epoch=response.store_epoch,
        expected_readers=request.expected_readers,
        widths=Widths.from_proto(request.widths) if request.HasField("widths") else None,
        request_digest=request.request_digest,
    )


def shorten_waits(waits: Iterable[Duration], elapsed: float) -> None:
    """Takes `elapsed` seconds off what a repeated call may still wait."""
    for wait in waits:
        wait.CopyFrom(duration(max(seconds(wait) - elapsed, _LEAST_WAIT), "max_wait"))


def _unfit(numbers: dict[str, tuple[Any, int]], what: str, error: Exception | None = None) -> InvalidRequest:
    """Which of these unsigned integers (name -> value, bits) is none, in words; else what protobuf said of `what`."""
    if isinstance(error, InvalidRequest):
        return error
    for name, (value, bits) in numbers.items():
        wrong = unfit(value, bits)
        if wrong is not None:
            return invalid_request(name, wrong)
    return invalid_request(what, str(error))
