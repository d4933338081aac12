"""Rows: what was written is what is read, and nothing else ever is."""

from __future__ import annotations

import struct
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.arena import Arena, DamagedRowError
from pd_handoff_server.arena.layout import HEADER, Layout
from pd_handoff_server.arena.packed_record import PRESENCE, Draft, measure

from tests.support import records as make

from .strategies import SMALL, largest, records

LAYOUT = Layout(SMALL)


def draft_of(record: rp.HandoffRecord) -> Draft:
    """Measured."""
    return measure(record, LAYOUT)


@given(st.lists(records(), min_size=3, max_size=3), records())
@settings(deadline=None, max_examples=30)
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


@settings(deadline=None)
@given(records(), st.integers(0, 2**64 - 1))
def test_the_header_tells_lengths_and_presence(record: rp.HandoffRecord, generation: int) -> None:
    arena = Arena(2, LAYOUT)
    draft = draft_of(record)
    arena.write(1, generation, draft)
    written, size, checksum, presence, *widths = HEADER.unpack_from(bytes(arena.storage[1].numpy()))
    assert (written, size, checksum) == (generation, len(draft.image), zlib.crc32(draft.image, 1))
    for name, bit in PRESENCE.items():
        assert bool(presence & bit) == record.HasField(name)  # type: ignore[arg-type]
    assert tuple(widths) == draft.widths == arena.widths(1)
    assert arena.digest(1) == draft.digest()
    assert not arena.storage[0].any()


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
    assert arena.read(0, 3)


@settings(deadline=None)
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


@settings(deadline=None)
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
        struct.pack_into("<I", arena.storage[0].numpy().data, 8, size)
        with pytest.raises(DamagedRowError):
            arena.read(0, 0)
    arena.scrub(0, 1)
    assert arena.read(1, 0) == largest(SMALL).SerializeToString()


@settings(deadline=None)
@given(records())
def test_scrubbing_leaves_nothing_but_the_next_generation(record: rp.HandoffRecord) -> None:
    arena = Arena(2, LAYOUT)
    other = largest(SMALL)
    for slot, each in enumerate((record, other)):
        arena.write(slot, 4, draft_of(each))
    arena.scrub(0, 5)
    row = bytes(arena.storage[0].numpy())
    assert row[: HEADER.size] == HEADER.pack(5, *(0,) * 14)
    assert not any(row[HEADER.size :])
    assert arena.read(1, 4) == other.SerializeToString()
    with pytest.raises(DamagedRowError):
        arena.read(0, 4)


@settings(deadline=None)
@given(records(), records())
def test_a_shorter_record_after_a_longer_one_has_no_tail(one: rp.HandoffRecord, other: rp.HandoffRecord) -> None:
    arena = Arena(1, LAYOUT)
    for generation, record in enumerate((one, other)):
        arena.write(0, generation, draft_of(record))
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
