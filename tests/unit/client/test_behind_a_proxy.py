"""A store behind nginx or HAProxy whose bounds are tighter than the store's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pd_handoff import Key, Record, Reservation, Retries, Token, errors
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support.proxies import WebProxy
from tests.support.waits import PATIENCE

BUDGET = Retries(total_seconds=1.5, initial_backoff=0.01, max_backoff=0.05)
CUTS = 4  # of a second each: far more than the budget

Front = Callable[..., str]


@pytest.fixture
def front(server: Any, tmp_path: Path) -> Iterator[Front]:
    """front("nginx", settings): the address of a proxy before the scripted store."""
    proxies: list[WebProxy] = []

    def start(kind: str, settings: str = "") -> str:
        proxies.append(WebProxy(kind, server.target, tmp_path, settings))
        return proxies[-1].target

    yield start
    for proxy in proxies:
        proxy.__exit__()


CUTTING = {"nginx": "grpc_read_timeout 1s;", "haproxy": "timeout server 1s"}


@pytest.mark.parametrize("session", ["never", "always"])
@pytest.mark.parametrize("kind", CUTTING)
async def test_a_parked_get_that_is_cut_is_no_outage(
    kind: str, session: str, front: Front, connect: Any, store: Any
) -> None:
    gets = []

    def park(request: pb.GetRequest, context: Any) -> Any:
        gets.append(request)
        if len(gets) <= CUTS:
            cut = threading.Event()
            if context.add_callback(cut.set):
                cut.wait(PATIENCE)
            return None if session == "always" else pb.GetResponse()
        return pb.GetResponse(store_epoch="e")

    store.script("Get", park)
    store.script("Capabilities", pb.CapabilitiesResponse())
    store.serve_sessions()
    client = connect("DecodeClient", target=front(kind, CUTTING[kind]), session=session, retries=BUDGET)
    assert (await client.get(7, max_wait=300)).store_epoch == "e"
    assert len(gets) == CUTS + 1
    waits = [request.max_wait.seconds + request.max_wait.nanos / 1e9 for request in gets]
    if session == "never":  # else an asyncio client asks for a few seconds at a time
        assert waits == sorted(waits, reverse=True)  # what was waited comes off


async def test_a_store_that_is_away_behind_one_is_an_outage(front: Front, connect: Any, server: Any) -> None:
    client = connect("DecodeClient", target=front("nginx"), session="never", retries=BUDGET)
    server.stop()
    with pytest.raises(errors.StoreUnavailable):
        await client.get(7, max_wait=300)


def held(room: int) -> Reservation:
    return Reservation(Key(room, 0, ""), b"t", "me", 0, 30.0, "e")


async def test_a_batch_that_the_proxy_finds_too_large_is_split(front: Front, connect: Any, store: Any) -> None:
    sent = []

    def answer(request: pb.BatchPutRequest, _: Any) -> pb.BatchPutResponse:
        sent.append([one.key.room for one in request.requests])
        return pb.BatchPutResponse(
            results=[pb.BatchPutResult(response=pb.PutResponse(store_epoch=str(room))) for room in sent[-1]]
        )

    store.script("BatchPut", answer)
    client = connect("PrefillClient", target=front("nginx", "client_max_body_size 1m;"), session="never")
    records = [Record(tokens=[Token(1)], customized_info=bytes(size)) for size in [200_000] * 8 + [1_500_000, 10]]
    outcomes = await client.put_many([(held(room), record) for room, record in enumerate(records)])
    assert [getattr(one, "store_epoch", type(one)) for one in outcomes] == [
        *map(str, range(8)),
        errors.MessageTooLarge,
        "9",
    ]
    assert sorted(room for rooms in sent for room in rooms) == [*range(8), 9]
    assert "413" in str(outcomes[8])


async def test_a_call_that_the_proxy_finds_too_large_says_so(front: Front, connect: Any, store: Any) -> None:
    client = connect("PrefillClient", target=front("nginx", "client_max_body_size 1m;"), session="never")
    with pytest.raises(errors.MessageTooLarge, match="a proxy on the way refused the request as too large"):
        await client.put(held(1), Record(tokens=[Token(1)], customized_info=bytes(1_500_000)))
