"""What the reader in C understands it understands as Python does, and nothing that Python refuses."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
from types import ModuleType
from typing import Any

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.arena.layout import Layout, Limits

from tests.property.catalogue import LIMITS as NARROW
from tests.support import records, requests
from tests.support.records import varint

from . import python_reader
from .conftest import LONG, count
from .inputs import inputs, request

pytestmark = pytest.mark.timeout(6 * 3600 if LONG else 300)

LAYOUTS = [
    *[Layout(Limits())] * 6,
    Layout(NARROW),
    Layout(Limits(0, 0, 0, 0, 0, 0, 0, 0)),
    Layout(Limits(1, 128, 0, 16, 4, 16, 256, 0)),
]
PUTS = ("put", "put_all")


def packed(layout: Layout) -> bytes:
    """The limits as the reader takes them."""
    return struct.pack("=12Q", *layout.widths, layout.image_bytes)


def scanned(scan: ModuleType, name: str, data: bytes, layout: Layout) -> Any:
    """What the reader in C finds."""
    function = getattr(scan, name)
    return function(data, packed(layout)) if name in PUTS else function(data)


def test_it_understands_what_python_does_and_as_python_does(scan: ModuleType) -> None:
    rng = random.Random(11)
    understood = dict.fromkeys(python_reader.READERS, 0)
    for _ in range(count(2_500)):
        message = request(rng)
        data = message.SerializeToString()
        layout = rng.choice(LAYOUTS)
        for name, (kind, _) in python_reader.READERS.items():
            if isinstance(message, kind):
                expected, _ = python_reader.read(name, data, layout)
                assert scanned(scan, name, data, layout) == expected, (name, data)
                understood[name] += expected is not None
    assert min(understood.values()) > count(2_500) // 500, understood


def test_what_is_not_just_so_is_left_to_python_or_read_as_python_does(scan: ModuleType) -> None:
    understood = dict.fromkeys(python_reader.READERS, 0)
    rng = random.Random(12)
    for data in inputs(13, count(16_000)):
        layout = rng.choice(LAYOUTS)
        for name in understood:
            found = scanned(scan, name, data, layout)
            if found is not None:
                assert (found, True) == python_reader.read(name, data, layout), (name, data)
                understood[name] += 1
    assert min(understood.values()) > count(16_000) // 500, understood


def test_parts_that_few_engines_send_are_left_to_python(scan: ModuleType) -> None:
    complete = records.complete()
    parts = [complete]
    for name in ("prompt_tokens", "traceparent"):
        parts.append(records.full())
        setattr(parts[-1], name, getattr(complete, name))
    for record in parts:
        data = requests.put(7, b"token", record).SerializeToString()
        assert scanned(scan, "put", data, LAYOUTS[0]) is None
        expected, _ = python_reader.read("put", data, LAYOUTS[0])
        assert expected is not None


def test_a_session_is_taken_apart_and_no_further(scan: ModuleType) -> None:
    fields = {field.number: field.name for field in pb.SessionRequest.DESCRIPTOR.fields}
    understood = 0
    for data in inputs(14, count(10_000)):
        found = scan.session(data)
        if found is None:
            continue
        call_id, number, call = found
        head = b"\x08" + varint(call_id) if call_id else b""
        assert head + bytes((number << 3 | 2,)) + varint(len(call)) + call == data
        assert fields[number] in {field.name for field in pb.SessionRequest.DESCRIPTOR.oneofs[0].fields}
        understood += 1
    assert understood > count(10_000) // 20


def test_nothing_of_another_type_is_read(scan: ModuleType) -> None:
    limits = packed(LAYOUTS[0])
    for name in python_reader.READERS:
        more = (limits,) if name in PUTS else ()
        for wrong in ("text", bytearray(b"x"), memoryview(b"x"), None, 7):
            with pytest.raises(TypeError):
                getattr(scan, name)(wrong, *more)
        with pytest.raises(TypeError):
            getattr(scan, name)()
    for name in PUTS:
        with pytest.raises(ValueError, match="96"):
            getattr(scan, name)(b"", limits[1:])
        with pytest.raises(TypeError):
            getattr(scan, name)(b"", "x" * 96)


def test_nothing_is_kept(scan: ModuleType) -> None:
    some = list(inputs(15, 2_000))
    names = [*python_reader.READERS, "session"]

    def read_all() -> int:
        for data in some:
            for name in names:
                scanned(scan, name, data, LAYOUTS[0])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        read_all()
        before = read_all()
        after = max(read_all() for _ in range(3))
    finally:
        tracemalloc.stop()
    assert after - before < 4_096  # one reference lost a request would be a hundred times that
