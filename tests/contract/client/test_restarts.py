"""A store that drains, dies and comes back, as its clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pd_handoff import Record, Retries, Token, errors

from tests.support.process import ProcessStore

pytestmark = pytest.mark.internals

PLAIN = Record(tokens=[Token(5, -0.5)])
PATIENT = Retries(total_seconds=60, initial_backoff=0.02, max_backoff=0.2)
END: dict[str, Callable[[ProcessStore], object]] = {"drained": ProcessStore.stop, "killed": ProcessStore.close}


@pytest.mark.parametrize("end", END)
async def test_a_waiting_get_outlives_the_store(end: str, connect: Any, socket: str) -> None:
    decode = connect("DecodeClient", target=socket, retries=PATIENT)
    prefill = connect("PrefillClient", target=socket, retries=PATIENT)
    with ProcessStore(socket, slots=4, drain_notice=0, grace=2) as first:
        await asyncio.to_thread(first.wait)
        waiting = asyncio.ensure_future(decode.get(7, max_wait=120))
        with pytest.raises(errors.RecordNotReady):
            await decode.get(7, max_wait=0.01)
        before = (await prefill.capabilities()).store_epoch
        await asyncio.to_thread(END[end], first)
    assert not waiting.done()
    putting = asyncio.ensure_future(prefill.put_once(7, PLAIN))  # while there is no store
    with ProcessStore(socket, slots=4) as second:
        await asyncio.to_thread(second.wait)
        published = await putting
        found = await waiting
        assert found.record == PLAIN
        assert found.store_epoch == published.store_epoch != before
        with pytest.raises(errors.StoreRestarted):
            await decode.get(7, expected_store_epoch=before)


async def test_without_a_budget_the_end_is_told(connect: Any, socket: str) -> None:
    decode = connect("DecodeClient", target=socket, retries=Retries(total_seconds=0))
    with ProcessStore(socket, slots=4, drain_notice=0, grace=2) as store:
        await asyncio.to_thread(store.wait)
        waiting = asyncio.ensure_future(decode.get(7, max_wait=120))
        with pytest.raises(errors.RecordNotReady):
            await decode.get(7, max_wait=0.01)
        store.signal()
        with pytest.raises(errors.Draining) as caught:
            await waiting
        assert caught.value.retry_after is not None
        assert await asyncio.to_thread(store.exit_code) == 0
    with pytest.raises(errors.StoreUnavailable):
        await decode.get(7)


async def test_a_prefill_that_meets_an_empty_store_reserves_anew(connect: Any, socket: str) -> None:
    prefill = connect("PrefillClient", target=socket, retries=PATIENT)
    decode = connect("DecodeClient", target=socket, retries=PATIENT)
    manager = prefill.raw.prefill(7, lease=1, expected_readers=2)
    with ProcessStore(socket, slots=4) as first:
        await asyncio.to_thread(first.wait)
        handoff = await prefill.enter(manager)
        token = manager.reservation.token
    with ProcessStore(socket, slots=4) as second:
        await asyncio.to_thread(second.wait)
        for _ in range(200):
            if manager.reservation.token != token:
                break
            await asyncio.sleep(0.05)
        await handoff.put(PLAIN)
        await prefill.leave(manager)
        assert (await decode.get(7)).record == PLAIN
        assert (await decode.get(7, reader_id="another")).record == PLAIN
