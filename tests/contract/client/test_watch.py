"""Producers learn an abort from the other side at once, long before their next renewal."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pd_handoff import AdminClient, Failure, Record, Token, errors

from tests.support.process import ProcessStore

pytestmark = pytest.mark.internals

PRODUCERS = 100
BEFORE_A_RENEWAL = 19.0  # seconds; the first would come after 20


@pytest.fixture
def rooms(room: int) -> list[int]:
    return [room + (1 << 32) * (1 + index) for index in range(PRODUCERS)]


async def test_every_producer_is_told(connect: Any, served: ProcessStore, rooms: list[int]) -> None:
    prefill, decode = connect("PrefillClient", target=served.target), connect("DecodeClient", target=served.target)
    told: dict[int, errors.HandoffError] = {}
    all_told = threading.Event()

    def tell(room: int, error: errors.HandoffError) -> None:
        told[room] = error
        if len(told) == PRODUCERS:
            all_told.set()

    managers = {
        room: prefill.raw.prefill(room, lease=60, on_abort=lambda error, of=room: tell(of, error)) for room in rooms
    }
    for manager in managers.values():
        await prefill.enter(manager)
    with AdminClient(served.target) as admin:
        expires = [(await asyncio.to_thread(admin.get_handoff, room)).expires_in for room in rooms]
        assert min(expires) > BEFORE_A_RENEWAL
        for room in rooms:
            assert await decode.abort(room, Failure(499, "GONE", str(room)))
        assert await asyncio.to_thread(all_told.wait, BEFORE_A_RENEWAL), f"{len(told)} of {PRODUCERS} were told"
        for room, manager in managers.items():
            error = told[room]
            assert isinstance(error, errors.HandoffAborted)
            assert error.failure == Failure(499, "GONE", str(room))
            assert manager.aborted
            await prefill.leave(manager)
        seen = [await asyncio.to_thread(admin.get_handoff, room) for room in rooms]
    assert {info.waiting for info in seen} == {0}


async def test_no_watch_outlives_a_put(connect: Any, served: ProcessStore, room: int) -> None:
    prefill, decode = connect("PrefillClient", target=served.target), connect("DecodeClient", target=served.target)
    manager = prefill.raw.prefill(room)
    handoff = await prefill.enter(manager)
    assert manager.aborted is False  # which begins to watch
    record = Record(tokens=[Token(5, -0.5)])
    await handoff.put(record)
    await prefill.leave(manager)
    assert manager.aborted is False
    with AdminClient(served.target) as admin:
        assert (await asyncio.to_thread(admin.get_handoff, room)).waiting == 0
    assert (await decode.get(room)).record == record  # the watch counted for nothing
