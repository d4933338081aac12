"""The heap of attachments: pages, chains, and what can be read of them."""

from __future__ import annotations

import random

import pytest
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.heap import DamagedPagesError, Heap
from pd_handoff_server.arena.layout import HeapShape, Layout, Limits
from pd_handoff_server.arena.packed_record import Attachments, measure
from pd_handoff_server.refusal import Refusal

from tests.support.records import with_attachments

PAGE = 4096
LAYOUT = Layout(Limits(attachment_bytes=1 << 20))


def attachments(*sizes: int, seed: int = 1) -> Attachments:
    """Some of these sizes, named by their place."""
    source = random.Random(seed)
    data = source.randbytes(sum(sizes))
    return Attachments(data, [(str(place), size) for place, size in enumerate(sizes)])


@pytest.mark.parametrize(
    ("size", "slots", "shape"),
    [
        (0, 1024, (0, 4096)),
        (1, 1024, (1, 4096)),
        (1 << 30, 1024, (8192, 1 << 17)),
        (3 << 30, 1024, (12288, 1 << 18)),
        (1 << 30, 1 << 20, (1 << 18, 4096)),
        (64 << 30, 16, (64 << 10, 1 << 20)),
    ],
)
def test_pages_are_a_power_of_two_of_which_each_slot_could_have_eight(
    size: int, slots: int, shape: tuple[int, int]
) -> None:
    found = HeapShape.of(size, slots)
    assert (found.pages, found.page_bytes) == shape
    assert size <= found.total < size + found.page_bytes


def test_nothing_is_lost_however_often_it_is_filled_and_freed() -> None:
    heap, source = Heap(HeapShape(16, PAGE)), random.Random(7)
    kept: dict[int, Attachments] = {}
    made = [attachments(source.randrange(1, 3 * PAGE), source.randrange(1, PAGE), seed=n) for n in range(50)]
    for turn in range(100_000):
        slot = turn % 11
        if slot in kept:
            assert turn % 97 or b"".join(heap.read(slot, slot)) == kept[slot].data
            heap.scrub(slot)
            del kept[slot]
        one = made[source.randrange(50)]
        if heap.shape.pages_for(len(one.data)) <= heap.free:
            heap.write(slot, slot, one)
            kept[slot] = one
    for slot, one in kept.items():
        assert b"".join(heap.read(slot, slot)) == one.data
        heap.scrub(slot)
    assert heap.free == 16
    assert not heap.storage.any()


def test_what_does_not_fit_is_not_begun() -> None:
    heap = Heap(HeapShape(4, PAGE))
    heap.write(1, 1, attachments(3 * PAGE))
    with pytest.raises(RuntimeError):
        heap.write(2, 1, attachments(PAGE + 1))
    with pytest.raises(RuntimeError):
        heap.write(1, 2, attachments(1))
    assert heap.free == 1
    assert heap.size(2) == 0
    heap.scrub(2)
    heap.scrub(1)
    heap.scrub(1)
    assert heap.free == 4
    with pytest.raises(DamagedPagesError):
        heap.read(1, 1)


def test_each_attachment_can_be_read_alone_and_has_its_own_checksum() -> None:
    heap, one = Heap(HeapShape(8, PAGE)), attachments(PAGE - 3, 1, 9000, 40)
    heap.write(5, 9, one)
    view, places = memoryview(one.data), {"0": (0, 4093), "1": (4093, 4094), "2": (4094, 13094), "3": (13094, 13134)}
    for name, (start, end) in places.items():
        assert heap.read(5, 9, {name, "other"}) == [bytes(view[start:end])]
        assert heap.size(5, {name}) == end - start
    assert heap.read(5, 9, ()) == []
    assert heap.digest(5) == one.digest
    with pytest.raises(DamagedPagesError):
        heap.read(5, 8)
    flat = heap.storage.reshape(-1)
    where = bytes(flat.numpy()).find(one.data[6000:6100])
    flat[where] ^= 1
    assert heap.read(5, 9, {"0", "1", "3"})
    with pytest.raises(DamagedPagesError):
        heap.read(5, 9, {"2"})
    with pytest.raises(DamagedPagesError):
        heap.read(5, 9)


def test_a_record_is_split_at_its_attachments() -> None:
    record = with_attachments(a=b"1" * 300, b=rp.Tensor(dtype=rp.DATA_TYPE_UINT8, shape=[2], data=b"xy"))
    draft = measure(record, LAYOUT)
    assert draft.attachments is not None
    assert draft.image + draft.attachments.data == record.SerializeToString()
    assert draft.widths[-1] == len(draft.attachments.data) == draft.size - len(draft.image)
    assert len(draft.attachments.data) <= 302 + 2 * 192
    other = measure(with_attachments(a=b"2" * 300), LAYOUT)
    assert draft.digest() != other.digest() != measure(with_attachments(), LAYOUT).digest()
    with pytest.raises(Refusal) as caught:
        measure(record, Layout(Limits()))
    assert caught.value.metadata == {
        "field": "attachment_bytes",
        "requested": str(draft.widths[-1]),
        "limit": "0",
    }
    assert "--attachment-heap" in caught.value.message
