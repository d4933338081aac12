"""Inputs for the reader in C: requests as serializers write them, and what is nearly one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.faults.common import record_of
from tests.support import records

from .fields import Field, decode, encode

INTERESTING = (0, 1, 127, 128, 1024, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2**31, 2**64 - 1)
LETTERS = "abcXYZ019._-"


def _text(rng: random.Random, most: int, letters: str = LETTERS) -> str:
    return "".join(rng.choices(letters, k=rng.choice((1, rng.randint(1, 12), most))))


def _number(rng: random.Random, most: int) -> int:
    return rng.choice((0, 1, most, rng.randint(0, most)))


# -- requests ----------------------------------------------------------------------------------------------------------


def _key(rng: random.Random) -> rp.HandoffKey:
    namespace = _text(rng, 128) if rng.random() < 0.5 else ""
    return rp.HandoffKey(namespace=namespace, room=_number(rng, 2**64 - 1), sample=_number(rng, 2**32 - 1))


def _time(message: Any, name: str, rng: random.Random) -> None:
    if rng.random() < 0.5:
        part = getattr(message, name)
        part.SetInParent()
        part.seconds, part.nanos = _number(rng, 4_000_000_000), _number(rng, 999_999_999)


def _reserve(rng: random.Random, *, key: bool = True) -> pb.ReserveRequest:
    request = pb.ReserveRequest(
        key=_key(rng) if key else None,
        owner=_text(rng, 256, LETTERS + " \x7f"),
        expected_readers=_number(rng, 1024),
        attempt=_number(rng, 2**64 - 1),
    )
    if rng.random() < 0.5:
        request.widths.SetInParent()
        for field in pb.Widths.DESCRIPTOR.fields:
            setattr(request.widths, field.name, _number(rng, 2**32 - 1))
    if rng.random() < 0.5:
        request.producer.instance_id, request.producer.epoch = _text(rng, 256), _number(rng, 2**64 - 1)
    _time(request, "lease", rng)
    _time(request, "max_wait", rng)
    _digest(request, rng)
    return request


def _digest(request: pb.ReserveRequest | pb.GetRequest, rng: random.Random) -> None:
    if rng.random() < 0.4:
        request.request_digest = rng.randbytes(rng.choice((1, 16, 32)))


def _record(rng: random.Random) -> rp.HandoffRecord:
    if rng.random() < 0.1:
        return records.full(rng.randint(1, 2**31 - 2))
    record = record_of(("fuzz", rng.getrandbits(40), 0), 0)
    if rng.random() < 0.7:  # ids as vocabularies have them, of one to four bytes
        for ids in _lists(record):
            ids[:] = [rng.getrandbits(rng.choice((6, 7, 14, 17, 28))) for _ in ids]
        if rng.random() < 0.5:
            record.ClearField("customized_info")
    return record


def _lists(record: rp.HandoffRecord) -> list[Any]:
    lists: list[Any] = [record.sampling_mask.token_ids, record.speculative.dsa_topk_indices]
    for token in record.tokens:
        lists += [token.top_logprobs.token_ids, token.token_ids_logprobs.token_ids]
    return [ids for ids in lists if ids]


def _put(rng: random.Random) -> pb.PutRequest:
    if rng.random() < 0.5:
        return pb.PutRequest(key=_key(rng), record=_record(rng), reserve=_reserve(rng, key=False))
    return pb.PutRequest(key=_key(rng), record=_record(rng), token=rng.randbytes(rng.randint(1, 32)))


def _get(rng: random.Random) -> pb.GetRequest:
    request = pb.GetRequest(key=_key(rng), attempt=_number(rng, 2**64 - 1))
    if rng.random() < 0.7:
        request.reader_id, request.consume = _text(rng, 256), rng.random() < 0.7
    if rng.random() < 0.3:
        request.expected_store_epoch = _text(rng, 32)
    _time(request, "max_wait", rng)
    _digest(request, rng)
    return request


def _session(rng: random.Random) -> pb.SessionRequest:
    call_id = _number(rng, 2**64 - 1)
    return rng.choice(
        (
            lambda: pb.SessionRequest(call_id=call_id, put=_put(rng)),
            lambda: pb.SessionRequest(call_id=call_id, get=_get(rng)),
            lambda: pb.SessionRequest(call_id=call_id, reserve=_reserve(rng)),
            lambda: pb.SessionRequest(call_id=call_id, capabilities=pb.CapabilitiesRequest()),
        )
    )()


def _batch(rng: random.Random) -> Message:
    count = range(rng.randint(1, 5))
    return rng.choice(
        (
            lambda: pb.BatchPutRequest(requests=[_put(rng) for _ in count]),
            lambda: pb.BatchGetRequest(requests=[_get(rng) for _ in count]),
            lambda: pb.BatchReserveRequest(requests=[_reserve(rng) for _ in count]),
        )
    )()


_KINDS = (_record, _put, _put, _put, _get, _reserve, _session, _batch)


def request(rng: random.Random) -> Message:
    """A request, or a record, that is well formed in every respect."""
    return rng.choice(_KINDS)(rng)


# -- what is nearly one ------------------------------------------------------------------------------------------------


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Damage to the bytes: flips, cuts, a splice with another message, lengths blown up."""
    out = bytearray(data)
    at = rng.randint(0, len(out))
    kind = rng.randrange(7)
    if kind == 0 and out:
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[at:]
    elif kind == 2:
        out[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(0, 8))
    elif kind == 3:
        return data[:at] + other[rng.randint(0, len(other)) :]
    elif kind == 4:  # what may be a length becomes a large one, or the number before it overlong
        out[at : at + 1] = (
            records.varint(rng.choice(INTERESTING)) if rng.random() < 0.7 else b"\xff" * rng.randint(1, 11)
        )
    elif kind == 5 and at < len(out):
        out[at : at + 1] = bytes((out[at] | 0x80, 0))
    else:
        out += rng.choice((other, rng.randbytes(4), b"\x00", b"\x0a\xff\xff\xff\xff\x0f"))
    return bytes(out)


def misshapen(rng: random.Random) -> pb.PutRequest:
    """A Put of a tensor of an odd shape: more elements than a number holds, or more dimensions than there may be."""
    shape = rng.choice(
        ([2**31, 2**31, 4], [2**16] * 4, [2**32 - 1] * 8, [2**31, 2**31, 8], [1] * 9, [0] * 9, [1] * 8, [])
    )
    data = bytes(rng.choice((0, 0, 1, 2, 4)))
    return pb.PutRequest(key=_key(rng), token=b"t", record=records.with_hidden(rng.randrange(7), shape, data))


def cut(rng: random.Random, message: Message) -> bytes:
    """The message up to some byte deep within it, and every length around that right."""
    fields = top = decode(message.SerializeToString(), type(message).DESCRIPTOR)
    while fields:
        at = rng.randrange(len(fields))
        del fields[at + 1 :]
        last = fields[at]
        if isinstance(last.value, list):
            fields = last.value
            continue
        last.lost = rng.randint(0, 12)
        if isinstance(last.value, bytes) and rng.random() < 0.7:
            last.value, last.lost = last.value[: rng.randint(0, len(last.value))], 0
        break
    return encode(top)


def bent(rng: random.Random, message: Message) -> bytes:
    """The message with a field changed anywhere within it, and every length around the field right."""
    fields = decode(message.SerializeToString(), type(message).DESCRIPTOR)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        leaves = list(_leaves(fields))
        lists = [leaf for leaf in leaves if leaf.packed]
        if leaves and rng.random() < 0.5:
            _change(rng, rng.choice(lists if lists and rng.random() < 0.5 else leaves))
        else:
            _bend(rng, _some(rng, fields), _some(rng, fields))
    return encode(fields)


def _leaves(fields: list[Field]) -> Iterator[Field]:
    for field in fields:
        if isinstance(field.value, list):
            yield from _leaves(field.value)
        else:
            yield field


def _some(rng: random.Random, fields: list[Field]) -> list[Field]:
    """The fields of the message, or those of a message within it."""
    while True:
        within = [field.value for field in fields if isinstance(field.value, list) and field.value]
        if not within or rng.random() < 0.3:
            return fields
        fields = rng.choice(within)


def _bend(rng: random.Random, fields: list[Field], others: list[Field]) -> None:
    if not fields or rng.random() < 0.1:
        fields.insert(
            rng.randint(0, len(fields)), Field(rng.choice((1, 2, 7, 15, 16, 2000)), 0, rng.choice(INTERESTING))
        )
        return
    at = rng.randrange(len(fields))
    field = fields[at]
    kind = rng.randrange(5)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.insert(rng.randint(0, len(fields)), rng.choice((field, *others)).copy())
    elif kind == 2:
        fields.insert(rng.randint(0, len(fields)), fields.pop(at))
    elif kind == 3:
        field.padding = rng.choice((1, 2, 9))  # longer varints than needed
    else:
        _change(rng, field)


def _change(rng: random.Random, field: Field) -> None:
    if isinstance(field.value, int):
        field.value = rng.choice((*INTERESTING, field.value ^ 1 << rng.randrange(64)))
    elif isinstance(field.value, bytes):
        spoil = _overlong if field.packed and rng.random() < 0.5 else _other_bytes
        field.value = spoil(rng, field.value)
    else:
        field.value = []


def _other_bytes(rng: random.Random, value: bytes) -> bytes:
    return rng.choice(
        (
            b"",
            value + value,
            value[: rng.randint(0, len(value))],
            value + records.varint(rng.choice(INTERESTING)),  # one more in a packed list
            value + rng.randbytes(rng.randint(1, 3)),
            _overlong(rng, value),
            bytes(len(value)),
            "é/\x00".encode() + value,
            rng.randbytes(len(value)),
        )
    )


def _overlong(rng: random.Random, value: bytes) -> bytes:
    """With one of its varints, where it holds such, a byte longer than needed."""
    ends = [at for at, byte in enumerate(value) if byte < 0x80]
    if not ends:
        return b"\x80\x00"
    at = rng.choice(ends)
    return value[:at] + bytes((value[at] | 0x80, 0)) + value[at + 1 :]


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """`count` of all kinds, the same for the same seed."""
    rng = random.Random(seed)
    former = b""
    for number in range(count):
        message = request(rng)
        data = message.SerializeToString()
        kind = number % 16
        if kind < 7:
            yield bent(rng, message)
        elif kind < 10:
            yield cut(rng, message)
        elif kind < 14:
            yield mutated(rng, data, former)
        else:
            yield data if kind == 14 else misshapen(rng).SerializeToString()
        former = data
