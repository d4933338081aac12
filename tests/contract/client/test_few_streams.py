"""More waiting calls than a proxy lets through over one connection."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pd_handoff import AdminClient, Record, Retries, Token, errors

from tests.support.process import ProcessStore
from tests.support.proxies import WebProxy
from tests.support.waits import PATIENCE

pytestmark = pytest.mark.internals

PARKED, STREAMS = 180, 128
PLAIN = Record(tokens=[Token(5, -0.5)])


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
@pytest.mark.parametrize("connect", ["blocking-alone-fast", "asyncio-alone-aio"], indirect=True)
async def test_parked_gets_leave_room_for_other_calls(
    kind: str, connect: Any, served: ProcessStore, room: int, tmp_path: Path
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(PARKED + 20))
    settings = f"http2_max_concurrent_streams {STREAMS};" if kind == "nginx" else ""
    with WebProxy(kind, served.target, tmp_path, settings, f"tune.h2.max-concurrent-streams {STREAMS}") as proxy:
        options = {"target": proxy.target, "session": "never", "retries": Retries(total_seconds=0)}
        prefill, decode = (connect(one, **options) for one in ("PrefillClient", "DecodeClient"))
        held = await prefill.reserve(room)
        waiting = [
            asyncio.ensure_future(decode.get(room, max_wait=60, consume=False, reader_id=str(reader)))
            for reader in range(PARKED)
        ]
        with AdminClient(served.target) as admin:
            until = asyncio.get_running_loop().time() + PATIENCE
            while (await asyncio.to_thread(admin.get_handoff, room)).waiting < PARKED:
                assert asyncio.get_running_loop().time() < until, "not all of them wait in the store"
        with pytest.raises(errors.RecordNotReady):
            await decode.get(room)
        await prefill.put(held, PLAIN)
        assert {found.record.tokens[0].token_id for found in await asyncio.gather(*waiting)} == {5}
