"""Contract section 4, "exact": values come back bit for bit. Compared as bytes, so that no float is touched."""

from __future__ import annotations

import random
import struct

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.caller import STORE
from tests.support.local import LocalStore
from tests.support.records import Token, floats, logprobs_of_bits, record, varint
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

PATTERNS = {
    "zeros": [0x00000000, 0x80000000],
    "infinities": [0x7F800000, 0xFF800000],
    "quiet NaNs": [0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC12345],
    "signalling NaNs": [0x7F800001, 0xFF800001, 0x7FBFFFFF, 0xFFA5A5A5, 0x7F812345],
    "denormals": [0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF],
    "extremes": [0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF],
    "any": [random.Random(1).getrandbits(32) for _ in range(16)],
}


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field as the wire has it."""
    return bytes((number << 3 | 2,)) + varint(len(payload)) + payload


def record_of_bits(bits: list[int]) -> bytes:
    """A serialized record with these bits wherever a record has float32."""
    packed = floats(*bits)
    ids = field(2, bytes(range(len(bits))))
    logprobs = field(1, packed) + ids
    token = b"\x08\x01" + b"\x15" + floats(bits[0]) + field(3, logprobs) + field(4, logprobs)
    mask = field(1, bytes(range(len(bits)))) + field(2, packed)
    speculative = field(1, packed) + field(2, bytes(range(len(bits))))
    return field(1, token) + field(4, mask) + field(5, speculative)


def put_raw(store: LocalStore, room: int, record_: bytes) -> bytes:
    """Publish a record given as bytes, and the bytes of the record that Get returns."""
    channel = store.channel()

    def call(method: str, request: bytes) -> bytes:
        multicallable: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{STORE}/{method}")
        return multicallable(request, timeout=20)

    key = requests.key(room).SerializeToString()
    reserve = requests.reserve(None).SerializeToString()
    call("Put", field(1, key) + field(3, record_) + field(4, reserve))
    answer = call("Get", requests.get(room, reader="decode").SerializeToString())
    assert answer[0] == 0x0A  # the record comes first
    size = shift = 0
    at = 1
    while True:
        byte = answer[at]
        size |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return answer[at : at + size]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_float_bit_for_bit(shared_store: LocalStore, room: int, name: str) -> None:
    sent = record_of_bits(PATTERNS[name])
    assert put_raw(shared_store, room, sent) == sent


@pytest.mark.parametrize("name", PATTERNS)
def test_every_float_bit_for_bit_over_every_caller(shared: Steps, room: int, name: str) -> None:
    bits = PATTERNS[name]
    sent = record(Token(token_id=1, top_logprobs=logprobs_of_bits(bits)))
    got = shared.exchange(room, sent)
    assert field(1, floats(*bits)) in got.SerializeToString()
    assert got.SerializeToString() == sent.SerializeToString()


@pytest.mark.parametrize("logprob", [0x7F800001, 0x80000000, 0x00000001, 0xFFFFFFFF])
def test_a_logprob_bit_for_bit(shared: Steps, room: int, logprob: int) -> None:
    sent = rp.HandoffRecord.FromString(field(1, b"\x08\x05\x15" + floats(logprob)))
    got = shared.exchange(room, sent)
    assert b"\x15" + floats(logprob) in got.SerializeToString()


@pytest.mark.parametrize("value", [0, 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_every_unsigned_64_bit_value(shared: Steps, room: int, value: int) -> None:
    sent = record(
        cached_tokens=rp.CachedTokens(total=value, device=value, host=value, storage=value),
        modality_tokens=rp.ModalityTokens(image=value, audio=value, video=value),
        kv_checksum=rp.KvChecksum(digest=value, layout_signature=(1 << 64) - 1 - value),
    )
    assert shared.exchange(room, sent) == sent


@pytest.mark.parametrize("value", [-(1 << 63), -1, 0, 1, (1 << 63) - 1])
def test_every_signed_64_bit_value(shared: Steps, room: int, value: int) -> None:
    sent = record(speculative=rp.SpeculativeState(topk_p=[0.5] * 16, topk_index=[value] * 16))
    assert shared.exchange(room, sent) == sent


@pytest.mark.parametrize("value", [-(1 << 31), -1, 0, (1 << 31) - 1])
def test_sparse_attention_indices_of_any_value(shared: Steps, room: int, value: int) -> None:
    sent = record(speculative=rp.SpeculativeState(dsa_topk_indices=[value] * 2048))
    assert shared.exchange(room, sent) == sent


def test_every_room_and_sample(steps: Steps) -> None:
    extremes = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    keys = [rp.HandoffKey(room=value, sample=sample) for value in extremes for sample in (0, (1 << 32) - 1)]
    for number, key in enumerate(keys[:8]):
        steps.put_once(key, records.numbered(number))
    for number, key in enumerate(keys[:8]):
        assert steps.record(key, reader="decode") == records.numbered(number)
    for number, key in enumerate(keys[8:]):
        assert steps.exchange(key, records.numbered(number)) == records.numbered(number)


@pytest.mark.parametrize("value", [0, 1, (1 << 63), (1 << 64) - 1])
def test_every_attempt_and_producer_epoch(steps: Steps, store: LocalStore, value: int) -> None:
    steps.put_once(7, records.numbered(1), attempt=value, producer=("p", value))
    got = steps.get(7, attempt=value)
    assert got.attempt == value
    assert store.sight(7).producer.epoch == value


def test_the_largest_legal_record(shared: Steps, room: int) -> None:
    ids, rng = [(1 << 31) - 1 - index for index in range(1024)], random.Random(7)
    wide = logprobs_of_bits([rng.getrandbits(32) for _ in range(128)])
    del wide.token_ids[:]
    wide.token_ids.extend(ids[:128])
    most = (1 << 64) - 1
    sent = rp.HandoffRecord(
        tokens=[Token(token_id=ids[0], logprob=-1.5, top_logprobs=wide, token_ids_logprobs=wide)] * 8,
        cached_tokens=rp.CachedTokens(total=most, device=most, host=most, storage=most),
        modality_tokens=rp.ModalityTokens(image=most, audio=most, video=most),
        sampling_mask=rp.SamplingMask(token_ids=ids, logprobs=[-0.5] * 1024, truncated=True),
        speculative=rp.SpeculativeState(
            topk_p=[0.5] * 16,
            topk_index=[-1] * 16,
            hidden_states=records.tensor(rp.DATA_TYPE_FLOAT8_E5M2, [1, 1, 1, 1, 1, 1, 1, 32768], rng.randbytes(32768)),
            dsa_topk_indices=[-1] * 2048,
        ),
        kv_checksum=rp.KvChecksum(digest=most, layout_signature=most),
        finish_reason=rp.FINISH_REASON_ABORT,
        reasoning_tokens=(1 << 32) - 1,
        customized_info=rng.randbytes(4096),
    )
    assert shared.exchange(room, sent).SerializeToString() == sent.SerializeToString()


def test_unpacked_lists_are_the_same_lists(shared_store: LocalStore, room: int) -> None:
    unpacked = b"".join(b"\x0d" + struct.pack("<f", -1.5) + b"\x10" + bytes((index,)) for index in range(3))
    packed = field(1, struct.pack("<fff", -1.5, -1.5, -1.5)) + field(2, b"\x00\x01\x02")
    assert put_raw(shared_store, room, field(1, b"\x08\x01" + field(3, unpacked))) == field(
        1, b"\x08\x01" + field(3, packed)
    )


def test_fields_of_a_later_schema_are_kept(shared_store: LocalStore, room: int) -> None:
    sent = field(1, b"\x08\x01") + b"\xa0\x3e\x2a"  # field 1000, varint 42
    assert put_raw(shared_store, room, sent) == sent


def test_the_same_record_for_every_reader(steps: Steps) -> None:
    sent = records.full(3)
    steps.publish(7, sent, readers=3)
    answers = [steps.get(7, reader=f"rank {rank}") for rank in range(3)] + [steps.get(7)]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0].record == sent
    assert isinstance(answers[0], pb.GetResponse)
