"""Whatever goes wrong on the prefill side, a waiting decode learns it at once, and the caller sees their own error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pd_handoff import Failure, Record, Token, Widths, errors

pytestmark = pytest.mark.internals

PLAIN = Record(tokens=[Token(5, -0.5)])
LONG = 60.0  # seconds that decode would wait


class UserError(Exception):
    http_status = 422
    reason = "INPUT_TOO_LONG"


class MuteError(UserError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED = [
    (UserError("a \ud800 b"), "a ? b"),
    (UserError("x" * (12 << 20)), "x" * 1024),
    (MuteError(), "MuteError without a text"),
]


async def _waiting(decode: Any, room: int) -> asyncio.Future[Any]:
    waiting: asyncio.Future[Any] = asyncio.ensure_future(decode.get(room, max_wait=LONG))
    await asyncio.sleep(0)  # it may come before or after the end: both are told
    return waiting


@pytest.mark.parametrize(("error", "text"), RAISED, ids=["surrogate", "12-mb", "mute"])
async def test_decode_learns_what_was_raised(error: UserError, text: str, connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    manager = prefill.raw.prefill(room)
    await prefill.enter(manager)
    waiting = await _waiting(decode, room)
    await prefill.leave(manager, error)
    with pytest.raises(errors.HandoffAborted) as caught:
        await waiting
    assert caught.value.failure == Failure(422, "INPUT_TOO_LONG", text)


async def test_decode_learns_that_the_entry_was_refused(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    waiting = await _waiting(decode, room)
    with pytest.raises(errors.TopLogprobsOverflow):
        await prefill.enter(prefill.raw.prefill(room, widths=Widths(top_logprobs=129)))
    with pytest.raises(errors.HandoffAborted) as caught:
        await waiting
    assert caught.value.failure.http_status == 400
    assert caught.value.failure.reason == "TOP_LOGPROBS_OVERFLOW"


async def test_an_entry_refused_as_a_duplicate_leaves_the_first_alone(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    manager = prefill.raw.prefill(room)
    handoff = await prefill.enter(manager)
    with pytest.raises(errors.HandoffExists):
        await prefill.enter(prefill.raw.prefill(room, widths=Widths(top_logprobs=129)))
    await handoff.put(PLAIN)
    await prefill.leave(manager)
    assert (await decode.get(room)).record == PLAIN


async def test_what_was_put_stays(connect: Any, room: int) -> None:
    prefill, decode = connect("PrefillClient"), connect("DecodeClient")
    manager = prefill.raw.prefill(room, expected_readers=2)
    handoff = await prefill.enter(manager)
    await handoff.put(PLAIN)
    with pytest.raises(errors.RecordImmutable) as caught:
        await handoff.put(Record(tokens=[Token(6)]))
    await prefill.leave(manager, caught.value)
    assert (await decode.get(room)).record == PLAIN
