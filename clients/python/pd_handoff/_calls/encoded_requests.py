"""Requests written as bytes, where making a message of them would cost more than everything else the client does.

What is written is what protobuf would write. Whatever is out of the ordinary (a number of another type, text beyond
ASCII) goes through a message, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from pd_handoff._calls import requests as _requests
from pd_handoff._values.wire_format import framed, tag_of, varint
from pd_handoff.model import Key
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2

_KINDS: Final = 256
"""Sorts of Get that a process is expected to make at a time: attempts and readers."""


def _tags(message: Any, *names: str) -> list[bytes]:
    return [tag_of(message.DESCRIPTOR.fields_by_name[name]) for name in names]


_PUT_KEY, _PUT_TOKEN, _PUT_RECORD = _tags(pb.PutRequest, "key", "token", "record")
_GET_KEY, _GET_DIGEST, _GET_ATTACHMENTS = _tags(pb.GetRequest, "key", "request_digest", "attachments")
# the first field, and the last ones
(_ITEM,) = {*_tags(pb.BatchPutRequest, "requests"), *_tags(pb.BatchGetRequest, "requests")}  # of both the same
(_NAMESPACE,) = _tags(record_pb2.HandoffKey, "namespace")
_ROOM, _SAMPLE = (
    bytes((record_pb2.HandoffKey.DESCRIPTOR.fields_by_name[name].number << 3,)) for name in ("room", "sample")
)


class Encoded:
    """A request that is bytes already; our own transports take it for a message. A message in a message is copied into
    it before it is serialized."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - as a message has it
        """The bytes."""
        return self._data

    def ByteSize(self) -> int:  # noqa: N802
        """How many."""
        return len(self._data)


def key(key: Key | int, namespace: str) -> bytes:
    """A HandoffKey; `namespace` is for keys that name none. Raises InvalidRequest for what no key can hold."""
    if type(key) is int and namespace == "" and 0 <= key < 1 << 64:
        return _ROOM + varint(key)
    room, sample, name = key, 0, namespace
    if isinstance(key, Key):
        room, sample = key.room, key.sample
        if key.namespace is not None:
            name = key.namespace
    if (
        type(room) is not int
        or type(sample) is not int
        or not 0 <= room < 1 << 64
        or not 0 <= sample < 1 << 32
        or type(name) is not str
        or not name.isascii()
    ):
        return _requests.key_message(key, namespace).SerializeToString()
    data = _ROOM + varint(room)
    if name:
        data = framed(_NAMESPACE, name.encode()) + data
    if sample:
        data += _SAMPLE + varint(sample)
    return data


def put(key: bytes, token: bytes, record: record_pb2.HandoffRecord) -> Encoded:
    """A PutRequest by token."""
    what = record.SerializeToString()
    sizes = varint(len(key)), varint(len(token)), varint(len(what))
    return Encoded(b"".join((_PUT_KEY, sizes[0], key, _PUT_TOKEN, sizes[1], token, _PUT_RECORD, sizes[2], what)))


def get(
    key: bytes,
    attempt: int,
    reader_id: str,
    consume: bool,
    expected_store_epoch: str | None,
    request_digest: bytes | None = None,
    attachments: Iterable[str] | None = None,
) -> Encoded:
    """A GetRequest that does not wait. Raises InvalidRequest for what it cannot hold."""
    try:
        rest = _rest_of_get(attempt, reader_id, consume, expected_store_epoch)
    except TypeError:  # what cannot be remembered cannot be right
        rest = _rest_of_get.__wrapped__(attempt, reader_id, consume, expected_store_epoch)
    if request_digest is not None and (digest := _requests.digest_of(request_digest)):
        rest += framed(_GET_DIGEST, digest)
    if attachments is not None and (wanted := _requests.selection_of(attachments)) is not None:
        rest += framed(_GET_ATTACHMENTS, wanted.SerializeToString())
    return Encoded(b"".join((_GET_KEY, varint(len(key)), key, rest)))


@lru_cache(maxsize=_KINDS, typed=True)
def _rest_of_get(attempt: int, reader_id: str, consume: bool, expected_store_epoch: str | None) -> bytes:
    return _requests.get_request(
        None,
        attempt=attempt,
        max_wait=None,
        reader_id=reader_id,
        consume=consume,
        expected_store_epoch=expected_store_epoch,
    ).SerializeToString()


def batch(requests: Iterable[Encoded]) -> Encoded:
    """A BatchPutRequest or a BatchGetRequest of them."""
    parts: list[bytes] = []
    for request in requests:
        data = request._data
        parts += (_ITEM, varint(len(data)), data)
    return Encoded(b"".join(parts))
