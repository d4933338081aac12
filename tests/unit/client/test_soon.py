"""Puts in the background, and batches larger than the store takes, by both faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pd_handoff import Key, Published, Record, Reservation, Token, errors
from pd_handoff._calls import put_soon
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb

from tests.support.waits import PATIENCE, eventually

RECORD = Record(tokens=[Token(5)])


def held(room: int) -> Reservation:
    return Reservation(Key(room, 0, ""), b"t", "me", 0, 30.0, "e")


async def outcome(future: Any) -> Any:
    """Of either face's future: what it holds, as a value."""
    if not isinstance(future, asyncio.Future):
        future = asyncio.wrap_future(future)
    outcomes = await asyncio.gather(future, return_exceptions=True)
    return outcomes[0]


class Store:
    """Puts: refuses odd rooms, and holds the first call until it is let go."""

    def __init__(self, store: Any, refusal: Any) -> None:
        self.store = store
        self.no = refusal("ABORTED", "STALE_RESERVATION", "no")
        self.gate = threading.Event()
        store.script("Put", self.put)
        store.script("BatchPut", self.batch_put)
        store.script("Capabilities", pb.CapabilitiesResponse(max_batch=128))

    def put(self, request: pb.PutRequest, _: Any) -> Any:
        assert self.gate.wait(30)
        return self.no if request.key.room % 2 else pb.PutResponse(store_epoch="e")

    def batch_put(self, request: pb.BatchPutRequest, _: Any) -> pb.BatchPutResponse:
        results = []
        for one in request.requests:
            refused = one.key.room % 2
            result = {"error": self.no} if refused else {"response": pb.PutResponse(store_epoch="e")}
            results.append(pb.BatchPutResult(**result))
        return pb.BatchPutResponse(results=results)

    def sizes(self) -> list[int]:
        return [len(call.request.requests) for call in self.store.of("BatchPut")]


@pytest.fixture
def puts(store: Any, refusal: Any) -> Store:
    return Store(store, refusal)


async def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


async def test_one_leaves_at_once_and_alone(connect: Any, store: Any, puts: Store) -> None:
    puts.gate.set()
    client = connect("PrefillClient", put_soon_delay=60)
    assert isinstance(await outcome(client.raw.put_soon(held(0), RECORD)), Published)
    assert [call.method for call in store.calls] == ["Put"]


async def test_each_has_its_own_outcome(connect: Any, puts: Store) -> None:
    puts.gate.set()
    client = connect("PrefillClient")
    found = [await outcome(one) for one in [client.raw.put_soon(held(room), RECORD) for room in range(200)]]
    assert [type(one) for one in found] == [Published, errors.StaleReservation] * 100
    assert max(puts.sizes()) <= 64


async def test_what_comes_meanwhile_is_gathered(connect: Any, store: Any, puts: Store) -> None:
    client = connect("PrefillClient", put_soon_delay=60)
    first = client.raw.put_soon(held(0), RECORD)
    await until(lambda: store.of("Put"))
    others = [client.raw.put_soon(held(room), RECORD) for room in range(10)]
    puts.gate.set()
    assert isinstance(await outcome(first), Published)
    assert sum([isinstance(await outcome(one), Published) for one in others]) == 5
    assert puts.sizes() == [10]


async def test_nothing_is_kept_back_for_long(connect: Any, store: Any, puts: Store) -> None:
    client = connect("PrefillClient", put_soon_delay=0.01)
    first = client.raw.put_soon(held(0), RECORD)
    await until(lambda: store.of("Put"))
    others = [client.raw.put_soon(held(room), RECORD) for room in (2, 4)]
    assert [type(await outcome(one)) for one in others] == [Published] * 2  # while the first is still under way
    assert not first.done()
    puts.gate.set()
    await outcome(first)


async def test_a_full_batch_does_not_wait(connect: Any, store: Any, puts: Store) -> None:
    client = connect("PrefillClient", put_soon_delay=60)
    first = client.raw.put_soon(held(0), RECORD)
    await until(lambda: store.of("Put"))
    others = [client.raw.put_soon(held(2 * room), RECORD) for room in range(64)]
    assert [type(await outcome(one)) for one in others] == [Published] * 64
    assert puts.sizes() == [64]
    puts.gate.set()
    await outcome(first)


async def test_closing_sends_what_is_left(connect: Any, store: Any, puts: Store) -> None:
    client = connect("PrefillClient", put_soon_delay=60)
    first = client.raw.put_soon(held(0), RECORD)
    await until(lambda: store.of("Put"))
    others = [client.raw.put_soon(held(room), RECORD) for room in (2, 3)]
    closing = asyncio.ensure_future(client.close())
    await until(lambda: puts.sizes() == [2])
    puts.gate.set()
    await closing
    found = [await outcome(one) for one in (first, *others)]
    assert [type(one) for one in found] == [Published, Published, errors.StaleReservation]
    with pytest.raises(errors.ClientClosed):
        client.raw.put_soon(held(0), RECORD)


async def test_a_store_that_is_away(connect: Any, tmp_path: Any) -> None:
    client = connect("PrefillClient", target=f"unix:{tmp_path / 'nobody'}", retries=NO_RETRIES)
    found = [await outcome(one) for one in [client.raw.put_soon(held(room), RECORD) for room in range(5)]]
    assert [type(one) for one in found] == [errors.StoreUnavailable] * 5


async def test_records_that_cannot_be(connect: Any) -> None:
    client = connect("PrefillClient")
    assert isinstance(await outcome(client.raw.put_soon(held(0), Record([Token(1, 1e40)]))), errors.InvalidRecord)
    with pytest.raises(TypeError, match="Record"):
        client.raw.put_soon(held(0), {"tokens": []})


async def test_who_gives_up_harms_nobody(connect: Any, store: Any, puts: Store) -> None:
    client = connect("PrefillClient", put_soon_delay=60)
    first = client.raw.put_soon(held(0), RECORD)
    await until(lambda: store.of("Put"))
    gone, kept = (client.raw.put_soon(held(room), RECORD) for room in (2, 4))
    assert gone.cancel()
    puts.gate.set()
    assert [type(await outcome(one)) for one in (first, kept)] == [Published] * 2


@pytest.mark.parametrize(
    "delay", [-1.0, 60.1, 10**400, float("inf"), float("nan"), "1", None], ids=lambda it: repr(it)[:9]
)
async def test_a_delay_that_is_none(delay: Any, connect: Any) -> None:
    with pytest.raises(ValueError, match="put_soon_delay must be seconds from 0 to 60, is "):
        connect("PrefillClient", put_soon_delay=delay)


async def test_batches_of_any_size(connect: Any, store: Any, puts: Store) -> None:
    store.script("Capabilities", pb.CapabilitiesResponse(max_batch=100))
    client = connect("PrefillClient")
    for _ in range(2):
        found = await client.put_many([(held(room), RECORD) for room in range(250)])
        assert [type(one) for one in found] == [Published, errors.StaleReservation] * 125
    assert puts.sizes() == [100, 100, 50] * 2
    assert len(store.of("Capabilities")) == 1


async def test_a_store_that_takes_less_than_before(connect: Any, store: Any, refusal: Any) -> None:
    def get(request: pb.BatchGetRequest, _: Any) -> Any:
        if len(request.requests) > limits[0]:
            return refusal("INVALID_ARGUMENT", "INVALID_REQUEST", violations=(("requests", "too many"),))
        rooms = [one.key.room for one in request.requests]
        return pb.BatchGetResponse(results=[pb.BatchGetResult(response=pb.GetResponse(attempt=room)) for room in rooms])

    limits = [64]
    store.script("Capabilities", lambda *_: pb.CapabilitiesResponse(max_batch=limits[0]))
    store.script("BatchGet", get)
    client = connect("DecodeClient")
    for limit in (64, 5, 1):
        limits[0] = limit
        found = await client.get_many(range(70), max_wait=60)
        assert [one.attempt for one in found] == list(range(70))
    last = store.of("BatchGet")[-1].request.requests[0].max_wait
    assert last.seconds < 60  # what the parts before it waited is off


async def test_another_refusal_of_a_batch_is_told(connect: Any, store: Any, refusal: Any) -> None:
    store.script("Capabilities", pb.CapabilitiesResponse(max_batch=128))
    store.script("BatchGet", refusal("INVALID_ARGUMENT", "INVALID_REQUEST", violations=(("requests", "odd"),)))
    with pytest.raises(errors.InvalidRequest):
        await connect("DecodeClient").get_many(range(3))
    store.script("BatchGet", refusal("INVALID_ARGUMENT", "INVALID_REQUEST", violations=(("requests[0].x", "odd"),)))
    with pytest.raises(errors.InvalidRequest):
        await connect("DecodeClient").get_many(range(3))
    assert len(store.of("Capabilities")) == 1


# -- who is woken: with pauses of an hour, nothing leaves unless a thread is -------------------------------------------


class Batches:
    """What threads send: each batch waits for the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(put_soon, "_IDLE", 3600.0)
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.soon = put_soon.Soon(self._send, 0.0)

    def _send(self, batch: list[pb.PutRequest]) -> put_soon.Outcomes:
        self.sizes.append(len(batch))
        assert self.gate.wait(PATIENCE)
        return [errors.ClientClosed("not really")] * len(batch)

    def add(self, count: int) -> None:
        """That many records, which no thread can see before they are all there."""
        with self.soon._condition:
            for _ in range(count):
                self.soon.add(pb.PutRequest())

    def until(self, *sizes: int) -> None:
        """Return once exactly these batches have left."""
        eventually(lambda: sorted(self.sizes) == sorted(sizes), f"batches of {sizes} have left")

    def idle(self) -> None:
        """Let go of those that were sent, and return once all threads wait."""
        self.gate.set()
        eventually(lambda: not self.soon._busy and not self.soon._items, "all threads wait")
        self.gate.clear()
        self.sizes.clear()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Batches]:
    """Three threads that wait."""
    made = Batches(monkeypatch)
    for number in range(3):
        made.add(1)
        made.until(*[1] * (number + 1))
    made.idle()
    made.soon._delay = 3600.0
    yield made
    made.gate.set()
    made.soon.close(PATIENCE)


def test_a_thread_that_waits_is_woken_by_the_first_record(batches: Batches) -> None:
    batches.add(1)
    batches.until(1)


def test_a_thread_is_woken_for_what_a_full_batch_left(batches: Batches) -> None:
    batches.add(1)
    batches.until(1)
    batches.add(1)  # the second thread waits for more
    waiting = batches.soon._condition._waiters  # type: ignore[attr-defined]  # to be counted, there is no other way
    eventually(lambda: len(waiting) == 2, "the second thread waits again, behind the third")
    batches.add(127)  # so the third is woken, and takes what it may
    batches.until(1, 64, 64)
