"""Rows: what was written is what is read, and nothing else ever is."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.arena import Arena, DamagedRowError
from pd_handoff_server.arena.columns import columns
from pd_handoff_server.arena.draft import PRESENCE, Draft, measure
from pd_handoff_server.arena.layout import HEADER, WIDTHS, Layout

from tests.support import records as make
from tests.support.records import Token, varint

from .strategies import SMALL, largest, records

LAYOUT = Layout(SMALL)


def draft_of(record: rp.HandoffRecord) -> Draft:
    """Measured."""
    return measure(record, LAYOUT)


@given(st.lists(records(), min_size=3, max_size=3), records())
@settings(max_examples=30)
def test_rows_hold_what_was_written_and_neighbours_do_not_change(
    before: list[rp.HandoffRecord], new: rp.HandoffRecord
) -> None:
    arena = Arena(3, LAYOUT)
    for slot, record in enumerate(before):
        arena.write(slot, 7, draft_of(record))
    arena.write(1, 8, draft_of(new))
    assert arena.read(0, 7) == before[0].SerializeToString()
    assert arena.read(1, 8) == new.SerializeToString()
    assert arena.read(2, 7) == before[2].SerializeToString()


@given(records(), st.integers(0, 2**64 - 1))
def test_the_header_tells_lengths_and_presence(record: rp.HandoffRecord, generation: int) -> None:
    arena = Arena(2, LAYOUT)
    draft = draft_of(record)
    arena.write(1, generation, draft)
    header = arena.headers[1]
    assert int(header["generation"]) == generation
    assert int(header["image_bytes"]) == len(draft.image)
    assert int(header["checksum"]) == zlib.crc32(draft.image, 1)
    for name, bit in PRESENCE.items():
        assert bool(int(header["presence"]) & bit) == record.HasField(name)  # type: ignore[arg-type]
    assert tuple(int(header[name]) for name in WIDTHS) == draft.widths == arena.widths(1)
    assert arena.digest(1) == draft.digest()
    assert not int(arena.headers["image_bytes"][0])


def test_the_headers_are_a_view_of_the_tensor() -> None:
    arena = Arena(2, LAYOUT)
    arena.write(1, 5, draft_of(make.record()))
    assert arena.headers.dtype.itemsize == HEADER.size
    arena.storage.zero_()
    assert int(arena.headers["generation"][1]) == 0
    arena.headers["generation"][1] = 9
    assert int(arena.storage[1, 0]) == 9


def test_rows_are_aligned_to_each_other() -> None:
    arena = Arena(5, LAYOUT)
    starts = {arena.storage[slot].data_ptr() % 64 for slot in range(5)}
    assert len(starts) == 1
    assert arena.storage.shape == (5, LAYOUT.row_bytes)
    assert arena.storage.is_contiguous()
    assert not arena.storage.any()


def test_a_row_that_was_never_written_reads_nothing() -> None:
    """Zeroed memory has generation 0, and 0 is the checksum of nothing: yet no record is empty."""
    arena = Arena(1, LAYOUT)
    with pytest.raises(DamagedRowError):
        arena.read(0, 0)
    arena.write(0, 0, draft_of(make.record()))
    arena.scrub(0, 1)
    with pytest.raises(DamagedRowError):
        arena.read(0, 1)


def test_another_generation_reads_nothing() -> None:
    arena = Arena(1, LAYOUT)
    arena.write(0, 3, draft_of(make.record()))
    for generation in (0, 2, 4, 2**63):
        with pytest.raises(DamagedRowError):
            arena.read(0, generation)
        with pytest.raises(DamagedRowError):
            arena.holds(0, generation, draft_of(make.record()))
    assert arena.read(0, 3)


@given(records(), records())
def test_rows_of_one_generation_exchanged_whole_are_noticed(one: rp.HandoffRecord, other: rp.HandoffRecord) -> None:
    arena = Arena(3, LAYOUT)
    for slot, record in ((0, one), (2, other)):
        arena.write(slot, 3, draft_of(record))
    arena.storage[[0, 2]] = arena.storage[[2, 0]]
    for slot in (0, 2):
        with pytest.raises(DamagedRowError):
            arena.read(slot, 3)
    arena.storage[[0, 2]] = arena.storage[[2, 0]]
    assert arena.read(0, 3) == one.SerializeToString()
    assert arena.read(2, 3) == other.SerializeToString()


@given(records(), st.data())
def test_a_flipped_bit_anywhere_is_noticed(record: rp.HandoffRecord, data: st.DataObject) -> None:
    arena = Arena(1, LAYOUT)
    arena.write(0, 3, draft_of(record))
    # Generation, length, checksum or record: what a read relies on.
    places = [*range(16), *range(HEADER.size, HEADER.size + record.ByteSize())]
    place = data.draw(st.sampled_from(places))
    arena.storage[0, place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedRowError):
        arena.read(0, 3)


def test_a_length_beyond_the_row_reads_no_neighbour() -> None:
    arena = Arena(2, LAYOUT)
    for slot in range(2):
        arena.write(slot, 0, draft_of(largest(SMALL)))
    for size in (LAYOUT.image_bytes + 1, LAYOUT.row_bytes * 2, 2**32 - 1):
        arena.headers["image_bytes"][0] = size
        with pytest.raises(DamagedRowError):
            arena.read(0, 0)
    arena.scrub(0, 1)
    assert arena.read(1, 0) == largest(SMALL).SerializeToString()


@given(records())
def test_scrubbing_leaves_nothing_but_the_next_generation(record: rp.HandoffRecord) -> None:
    arena = Arena(2, LAYOUT)
    other = largest(SMALL)
    for slot, each in enumerate((record, other)):
        arena.write(slot, 4, draft_of(each))
    arena.scrub(0, 5)
    row = bytes(arena.storage[0].numpy())
    assert row[: HEADER.size] == HEADER.pack(5, *(0,) * 11)
    assert not any(row[HEADER.size :])
    assert arena.read(1, 4) == other.SerializeToString()
    with pytest.raises(DamagedRowError):
        arena.read(0, 4)


@given(records(), records())
def test_a_shorter_record_after_a_longer_one_has_no_tail(one: rp.HandoffRecord, other: rp.HandoffRecord) -> None:
    arena = Arena(1, LAYOUT)
    for generation, record in enumerate((one, other)):
        arena.write(0, generation, draft_of(record))
        assert arena.holds(0, generation, draft_of(record))
        assert arena.read(0, generation) == record.SerializeToString()
        assert not arena.storage[0, HEADER.size + record.ByteSize() :].any()
        arena.scrub(0, generation + 1)


@pytest.mark.parametrize(
    "storage",
    [
        torch.zeros((2, LAYOUT.row_bytes - 1), dtype=torch.uint8),
        torch.zeros((1, LAYOUT.row_bytes), dtype=torch.uint8),
        torch.zeros((2, LAYOUT.row_bytes), dtype=torch.int8),
        torch.zeros((2, LAYOUT.row_bytes * 2), dtype=torch.uint8)[:, ::2],
    ],
    ids=["too narrow", "too few", "another type", "not contiguous"],
)
def test_storage_that_does_not_fit_is_refused(storage: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous uint8"):
        Arena(2, LAYOUT, storage)


def test_storage_of_others_is_taken_over_as_it_is() -> None:
    storage = torch.zeros((2, LAYOUT.row_bytes), dtype=torch.uint8)
    Arena(2, LAYOUT, storage).write(1, 6, draft_of(make.full()))
    assert Arena(2, LAYOUT, storage).read(1, 6) == make.full().SerializeToString()


# -- columns -----------------------------------------------------------------------------------------------------------


def _expected(record: rp.HandoffRecord) -> list[tuple[str, list[int] | bytes]]:
    """What protobuf reads: integers as lists, floats and bytes as bytes."""
    found: list[tuple[str, list[int] | bytes]] = []

    def listed(name: str, values: object) -> None:
        if values:
            found.append((name, list(values)))  # type: ignore[call-overload]

    def floats(name: str, message: object, number: int) -> None:
        raw = _raw(message.SerializeToString(), number)  # type: ignore[attr-defined]
        if raw:
            found.append((name, raw))

    for token in record.tokens:
        for part in ("top_logprobs", "token_ids_logprobs"):
            floats(f"tokens.{part}.values", getattr(token, part), 1)
            listed(f"tokens.{part}.token_ids", getattr(token, part).token_ids)
    listed("sampling_mask.token_ids", record.sampling_mask.token_ids)
    floats("sampling_mask.logprobs", record.sampling_mask, 2)
    floats("speculative.topk_p", record.speculative, 1)
    listed("speculative.topk_index", record.speculative.topk_index)
    tensor = record.speculative.hidden_states
    listed("speculative.hidden_states.shape", tensor.shape)
    if tensor.data:
        found.append(("speculative.hidden_states.data", tensor.data))
    listed("speculative.dsa_topk_indices", record.speculative.dsa_topk_indices)
    if record.HasField("customized_info"):
        found.append(("customized_info", record.customized_info))
    return found


def _raw(data: bytes, number: int) -> bytes:
    """The payload of one length-delimited field, cut out by hand from a message of such fields and varints."""
    at = 0
    while at < len(data):
        tag, at = data[at], at + 1
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if tag & 7 == 2:
            if tag >> 3 == number:
                return data[at : at + size]
            at += size
    return b""


@given(records())
def test_columns_are_what_protobuf_reads(record: rp.HandoffRecord) -> None:
    image = record.SerializeToString()
    read = []
    for name, values in columns(memoryview(image)):
        if values.dtype == np.int64:
            read.append((name, values.tolist()))
        else:
            read.append((name, values.tobytes()))
            assert values.dtype == (np.uint8 if "info" in name or "data" in name else np.dtype("<f4"))
    assert read == _expected(record)


def test_float_columns_and_bytes_are_read_in_place() -> None:
    image = make.full().SerializeToString()
    lowest = np.frombuffer(image, np.uint8).ctypes.data
    in_place = [values for _, values in columns(memoryview(image)) if values.dtype != np.int64]
    assert len(in_place) == 7
    for values in in_place:
        assert lowest < values.ctypes.data < lowest + len(image)
        assert not values.flags.writeable


def test_columns_of_a_row_in_the_arena_copy_nothing() -> None:
    arena = Arena(1, LAYOUT)
    record = make.record(Token(top_logprobs=make.logprobs(3)))
    arena.write(0, 0, draft_of(record))
    row = memoryview(arena.storage[0].numpy().data)[HEADER.size : HEADER.size + record.ByteSize()]
    (_, values), _ = columns(row)
    start = arena.storage.data_ptr()
    assert start < values.ctypes.data < start + LAYOUT.row_bytes
    assert values.tolist() == [-0.125, -0.25, -0.375]


@pytest.mark.parametrize(
    "unknown",
    [
        varint(100 << 3) + b"\x05",
        varint(100 << 3 | 1) + bytes(8),
        varint(100 << 3 | 5) + bytes(4),
        varint(100 << 3 | 2) + b"\x03abc",
        varint(100 << 3 | 3) + b"\x08\x01\x1a\x02hi\x23\x24" + varint(100 << 3 | 4),
    ],
    ids=["varint", "64 bits", "32 bits", "bytes", "group"],
)
def test_columns_pass_fields_of_a_newer_schema_by(unknown: bytes) -> None:
    record = make.record(customized_info=b"kept")
    record.tokens[0].top_logprobs.token_ids.append(300)
    record.tokens[0].top_logprobs.values.append(-0.5)
    known = dict(columns(memoryview(record.SerializeToString())))
    record.MergeFromString(unknown)
    record.tokens[0].MergeFromString(unknown)
    image = record.SerializeToString()
    assert image.count(unknown) == 2
    found = dict(columns(memoryview(image)))
    assert {name: values.tolist() for name, values in found.items()} == {
        name: values.tolist() for name, values in known.items()
    }
