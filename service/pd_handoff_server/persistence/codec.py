"""What is kept of hand-offs, as bytes: fixed structs and strings behind their lengths, each under a checksum.

Nothing that is read here is trusted: whatever does not fit raises DamageError.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from pd_handoff_server.lifecycle.model import Failure, Handoff, Outcome, Spec, State, Tombstone

from .errors import DamageError

Producer = tuple[tuple[str, str], int]
"""((namespace, instance id), epoch)."""

# -- a slot: head (changes), claim (written once a hand-off), the marks of its first readers ---------------------------

# state, spare, readers, generation, lease, deadline, published (monotonic, wall), checksum of the readers
_HEAD = struct.Struct("<BxHIQqqqqI")
_CLAIM = struct.Struct("<QQQIQIqqQBBHHBB")
_CLAIM_FRAME = struct.Struct("<HI")
_WIDTHS = struct.Struct("<11Q")
_CRC = struct.Struct("<I")

CLAIM_AT: Final = 64
_NAMESPACE_MOST, _ID_MOST, _TOKEN_MOST, _REQUEST_DIGEST_MOST = 128, 256, 64, 32
CLAIM_MOST: Final = (
    _CLAIM_FRAME.size + _CLAIM.size + _WIDTHS.size + _NAMESPACE_MOST + 2 * _ID_MOST + _TOKEN_MOST + _REQUEST_DIGEST_MOST
)
MARK: Final = 18  # one length byte and up to 17 bytes
INLINE_MARKS: Final = 8
MARKS_MOST: Final = 1024
MARKS_AT: Final = -(-(CLAIM_AT + CLAIM_MOST) // 8) * 8
SLOT_STRIDE: Final = -(-(MARKS_AT + INLINE_MARKS * MARK) // 64) * 64
READERS_STRIDE: Final = -(-((MARKS_MOST - INLINE_MARKS) * MARK) // 4096) * 4096  # whole pages, which can be holes

FREE: Final = 1
QUARANTINED: Final = 2
_STATES: Final = {State.RESERVED: 3, State.PUBLISHED: 4, State.CONSUMED: 5}
_STATE_OF: Final = {number: state for state, number in _STATES.items()}
_HAS_PRODUCER, _HAS_WIDTHS = 1, 2


class Head:
    """The changing part of a slot, read back. `state` is None for a slot without a hand-off."""

    __slots__ = ("deadline", "generation", "lease", "marks_crc", "published", "quarantined", "readers", "state")

    def __init__(self, data: memoryview, slot: int) -> None:
        """Raises DamageError."""
        body = data[: _HEAD.size]
        if crc32(body, slot) != _CRC.unpack_from(data, _HEAD.size)[0]:
            raise DamageError(f"the head of slot {slot}")
        state, _, self.readers, self.generation, self.lease, self.deadline, mono, wall, self.marks_crc = _HEAD.unpack(
            body
        )
        self.published = (mono, wall)
        self.quarantined = state == QUARANTINED
        self.state = _STATE_OF.get(state)
        if self.state is None and state not in (FREE, QUARANTINED):
            raise DamageError(f"the state of slot {slot}")
        if self.readers > MARKS_MOST:
            raise DamageError(f"the readers of slot {slot}")


def pack_empty(slot: int, generation: int, state: int = FREE) -> bytes:
    """The head of a slot without a hand-off."""
    head = _HEAD.pack(state, 0, 0, generation, 0, 0, 0, 0, 0)
    return head + _CRC.pack(crc32(head, slot))


def pack_head(handoff: Handoff, marks: int, marks_crc: int) -> bytes:
    """The head of a slot with a hand-off, of whose readers the first `marks` are kept."""
    head = _HEAD.pack(
        _STATES[handoff.state],
        0,
        marks,
        handoff.generation,
        handoff.lease,
        handoff.deadline or 0,
        handoff.published_mono,
        handoff.published_wall,
        marks_crc,
    )
    return head + _CRC.pack(crc32(head, handoff.slot))


def pack_claim(handoff: Handoff, serial: int) -> bytes:
    """Who holds a slot, and for what; `serial` counts reservations. Raises ValueError: an identifier over its bound."""
    namespace, owner = handoff.key[0].encode(), handoff.owner.encode()
    instance, epoch = handoff.producer or ("", 0)
    instance_id = instance.encode()
    flags = (_HAS_PRODUCER if handoff.producer is not None else 0) | (_HAS_WIDTHS if handoff.widths is not None else 0)
    if (
        len(namespace) > _NAMESPACE_MOST
        or max(len(owner), len(instance_id)) > _ID_MOST
        or len(handoff.token) > _TOKEN_MOST
        or len(handoff.request_digest) > _REQUEST_DIGEST_MOST
    ):
        raise ValueError("an identifier is longer than the contract allows")
    fixed = _CLAIM.pack(
        serial,
        handoff.generation,
        handoff.key[1],
        handoff.key[2],
        handoff.attempt,
        handoff.expected_readers,
        handoff.reserved_mono,
        handoff.reserved_wall,
        epoch,
        flags,
        len(namespace),
        len(owner),
        len(instance_id),
        len(handoff.token),
        len(handoff.request_digest),
    )
    widths = _WIDTHS.pack(*handoff.widths) if handoff.widths is not None else b""
    body = fixed + widths + namespace + owner + instance_id + handoff.token + handoff.request_digest
    return _CLAIM_FRAME.pack(len(body), crc32(body, handoff.slot)) + body


def unpack_claim(data: memoryview, slot: int, head: Head) -> tuple[int, Handoff]:
    """(serial, the hand-off without its readers) of a slot whose head names one. Raises DamageError."""
    size, crc = _CLAIM_FRAME.unpack_from(data)
    body = data[_CLAIM_FRAME.size : _CLAIM_FRAME.size + size]
    if size < _CLAIM.size or len(body) != size or crc32(body, slot) != crc:
        raise DamageError(f"the claim of slot {slot}")
    serial, generation, room, sample, attempt, readers, mono, wall, epoch, flags, *lengths = _CLAIM.unpack_from(body)
    widths_size = _WIDTHS.size if flags & _HAS_WIDTHS else 0
    if generation != head.generation or head.state is None or _CLAIM.size + widths_size + sum(lengths) != size:
        raise DamageError(f"the claim of slot {slot}")
    widths = _WIDTHS.unpack_from(body, _CLAIM.size) if widths_size else None
    namespace, owner, instance_id, token, digest = _cut(body[_CLAIM.size + widths_size :], lengths)
    producer = (_text(instance_id), epoch) if flags & _HAS_PRODUCER else None
    spec = Spec((_text(namespace), room, sample), _text(owner), attempt, None, readers, producer, widths, digest)
    handoff = Handoff(spec, slot, generation, token, head.lease, mono, wall)
    handoff.state = head.state
    handoff.deadline = head.deadline
    handoff.published_mono, handoff.published_wall = head.published
    return serial, handoff


def pack_mark(mark: bytes) -> bytes:
    """A reader of a hand-off."""
    return (bytes((len(mark),)) + mark).ljust(MARK, b"\0")


def unpack_mark(data: memoryview) -> bytes:
    """A reader's mark. Raises DamageError."""
    if not 0 <= data[0] < MARK:
        raise DamageError("a reader's mark")
    return bytes(data[1 : 1 + data[0]])


# -- tombstones --------------------------------------------------------------------------------------------------------

TOMBSTONE_FRAME: Final = struct.Struct("<QHIB")  # serial, size of the body, checksum, remembered or not
REMEMBERED, FORGOTTEN = 0x5A, 0xA5
_TOMBSTONE = struct.Struct("<QIQBqqBqqQiBHBHBBH")
_TOMBSTONE_AT = struct.Struct("<IQ")
_REASON_MOST, _MESSAGE_MOST, _DIGEST_MOST = 255, 1024, 64
TOMBSTONE_MOST: Final = (
    TOMBSTONE_FRAME.size
    + _TOMBSTONE.size
    + _NAMESPACE_MOST
    + 2 * _ID_MOST
    + _TOKEN_MOST
    + _DIGEST_MOST
    + _REASON_MOST
    + _MESSAGE_MOST
)
TOMBSTONE_STRIDE: Final = 512  # holds all but the longest
LONG_STRIDE: Final = -(-(TOMBSTONE_MOST - TOMBSTONE_STRIDE) // 64) * 64
_OUTCOMES: Final = {Outcome.ABORTED: 1, Outcome.EXPIRED: 2, Outcome.RESTARTED: 3, Outcome.COMPLETED: 4}
_OUTCOME_OF: Final = {number: outcome for outcome, number in _OUTCOMES.items()}
_HAS_DIGEST, _HAS_FAILURE = 2, 4


def pack_tombstone(tombstone: Tombstone, place: int, serial: int) -> bytes:
    """An entry for this place. Raises ValueError for texts over their bounds."""
    failure, digest = tombstone.failure, tombstone.digest
    instance, epoch = tombstone.producer or ("", 0)
    parts = (
        tombstone.key[0].encode(),
        tombstone.owner.encode(),
        tombstone.token,
        instance.encode(),
        digest or b"",
        failure.reason.encode() if failure else b"",
        failure.message.encode() if failure else b"",
    )
    flags = (
        (_HAS_PRODUCER if tombstone.producer is not None else 0)
        | (_HAS_DIGEST if digest is not None else 0)
        | (_HAS_FAILURE if failure is not None else 0)
    )
    fixed = _TOMBSTONE.pack(
        tombstone.key[1],
        tombstone.key[2],
        tombstone.attempt,
        _OUTCOMES[tombstone.outcome],
        tombstone.deadline,
        tombstone.ended_mono,
        flags,
        tombstone.published_wall,
        tombstone.reserved_wall,
        epoch,
        failure.http_status if failure else 0,
        *map(len, parts),
    )
    body = fixed + b"".join(parts)
    if TOMBSTONE_FRAME.size + len(body) > TOMBSTONE_MOST:
        raise ValueError("a text is longer than the contract allows")
    return TOMBSTONE_FRAME.pack(serial, len(body), _tombstone_crc(body, place, serial), REMEMBERED) + body


def _tombstone_crc(body: bytes, place: int, serial: int) -> int:
    return crc32(body, crc32(_TOMBSTONE_AT.pack(place, serial)))


def unpack_tombstone(body: bytes, crc: int, place: int, serial: int) -> Tombstone:
    """The body of an entry. Raises DamageError."""
    if len(body) < _TOMBSTONE.size or _tombstone_crc(body, place, serial) != crc:
        raise DamageError("a tombstone")
    room, sample, attempt, outcome, deadline, ended, flags, published, reserved, epoch, status, *lengths = (
        _TOMBSTONE.unpack_from(body)
    )
    if outcome not in _OUTCOME_OF or _TOMBSTONE.size + sum(lengths) != len(body):
        raise DamageError("a tombstone")
    namespace, owner, token, instance, digest, reason, message = _cut(memoryview(body)[_TOMBSTONE.size :], lengths)
    return Tombstone(
        (_text(namespace), room, sample),
        attempt,
        _OUTCOME_OF[outcome],
        deadline,
        ended,
        Failure(status, _text(reason), _text(message)) if flags & _HAS_FAILURE else None,
        _text(owner),
        token,
        (_text(instance), epoch) if flags & _HAS_PRODUCER else None,
        digest if flags & _HAS_DIGEST else None,
        published,
        reserved,
    )


# -- producers ---------------------------------------------------------------------------------------------------------

_PRODUCER = struct.Struct("<IQBH")
_NO_LONGER = 1 << 15  # beside the length of the instance's id: it is forgotten
PRODUCER_MOST: Final = _PRODUCER.size + _NAMESPACE_MOST + _ID_MOST


def pack_producer(namespace: str, instance_id: str, epoch: int | None) -> bytes:
    """An entry of the log of producers; without an epoch the instance is forgotten."""
    names = (namespace.encode(), instance_id.encode())
    flag = _NO_LONGER if epoch is None else 0
    body = _PRODUCER.pack(0, epoch or 0, len(names[0]), len(names[1]) | flag)[4:] + names[0] + names[1]
    return _CRC.pack(crc32(body)) + body


def unpack_producer(data: memoryview) -> tuple[int, tuple[str, str], int | None]:
    """(bytes taken, the instance, its epoch) at the start of this piece. Raises DamageError."""
    if len(data) < _PRODUCER.size:
        raise DamageError("a producer's epoch")
    crc, epoch, *lengths = _PRODUCER.unpack_from(data)
    forgotten = lengths[1] & _NO_LONGER
    lengths[1] ^= forgotten
    size = _PRODUCER.size + sum(lengths)
    if size > len(data) or crc32(data[4:size]) != crc:
        raise DamageError("a producer's epoch")
    namespace, instance_id = _cut(data[_PRODUCER.size : size], lengths)
    return size, (_text(namespace), _text(instance_id)), None if forgotten else epoch


# -- control -----------------------------------------------------------------------------------------------------------

_CONTROL = struct.Struct("<II")
CONTROL_SIZE: Final = _CONTROL.size + _CRC.size


def pack_control(half: int, used: int) -> bytes:
    """The producers' half and the bytes used in it."""
    body = _CONTROL.pack(half, used)
    return body + _CRC.pack(crc32(body))


def unpack_control(data: memoryview) -> tuple[int, int]:
    """As `pack_control` was given it. Raises DamageError."""
    if crc32(data[: _CONTROL.size]) != _CRC.unpack_from(data, _CONTROL.size)[0]:
        raise DamageError("the control block")
    half, used = _CONTROL.unpack_from(data)
    return half, used


def _cut(data: memoryview, lengths: list[int]) -> list[bytes]:
    parts, at = [], 0
    for length in lengths:
        parts.append(bytes(data[at : at + length]))
        at += length
    return parts


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise DamageError("a text") from None
