"""Attachments through the client's methods, by both faces, alone and over a Session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pd_handoff import DataType, GetItem, Record, Tensor, Token, Widths, errors

pytestmark = pytest.mark.internals

LOGITS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
EXPERTS = torch.arange(300_000, dtype=torch.int32).reshape(100, 3000)
RECORD = Record([Token(5)], attachments={"logits": LOGITS, "experts": EXPERTS, "blob": b"bytes", "row": [1.0, 2.0]})


def contents(got: Record) -> dict[str, Any]:
    """Its attachments."""
    return {} if got.attachments is None else dict(got.attachments)


async def test_arrays_and_bytes_come_back_bit_for_bit(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    facts = await prefill.capabilities()
    assert facts.attachment_heap_bytes == 32 << 20
    assert facts.limits.attachment_bytes == 32 << 20
    widths = Widths(attachment_bytes=EXPERTS.numel() * 4 + 1000)
    await prefill.put(await prefill.reserve(room, widths=widths), RECORD)
    got = (await decode.get(room, consume=False)).record
    assert got == RECORD
    found = contents(got)
    assert list(found) == ["logits", "experts", "blob", "row"]
    assert found["logits"].to_numpy().tobytes() == LOGITS.tobytes()
    assert found["logits"].shape == (2, 3, 4)
    assert torch.equal(found["experts"].to_torch(), EXPERTS)
    assert found["blob"] == b"bytes"
    assert found["row"] == Tensor(DataType.FLOAT32, (2,), np.array([1, 2], "<f4").tobytes())
    assert Record.from_json(got.to_json()) == got


async def test_a_reader_may_choose(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    await prefill.put(await prefill.reserve(room), RECORD)
    for wait in (None, 10):
        assert (await decode.get(room, consume=False, max_wait=wait, attachments=[])).record.attachments is None
        got = await decode.get(room, consume=False, max_wait=wait, attachments=["blob", "none of this name"])
        assert contents(got.record) == {"blob": b"bytes"}
    items = [GetItem(room, attachments=["row"]), GetItem(room), room]
    first, *others = await decode.get_many(items, consume=False, attachments=["blob"])
    assert list(contents(first.record)) == ["row"]
    assert [contents(one.record) for one in others] == [{"blob": b"bytes"}] * 2
    for wrong in ("blob", [1]):
        with pytest.raises(errors.InvalidRequest):
            await decode.get(room, attachments=wrong)


async def test_what_does_not_fit_and_what_is_none(connect: Any, room: int) -> None:
    prefill = connect("PrefillClient")
    held = await prefill.reserve(room)
    with pytest.raises(errors.FieldOverflow) as caught:
        await prefill.put(held, Record([Token(1)], attachments={"x": bytes(32 << 20)}))
    assert (caught.value.field, caught.value.limit) == ("attachment_bytes", 32 << 20)
    for wrong in ({"x": object()}, {3: b""}, [b""], {"x": "text"}):
        with pytest.raises(errors.InvalidRecord, match="attachments"):
            await prefill.put(held, Record([Token(1)], attachments=wrong))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRecord):
        await prefill.put(held, Record([Token(1)], attachments={"no spaces": b""}))
    await prefill.put(held, Record([Token(1)], attachments={}))
    assert "attachments=4 values" in repr(RECORD)
