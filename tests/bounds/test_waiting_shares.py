"""Places to wait are shared out: whoever has most gives way to callers that have fewer; memory is bounded too."""

from __future__ import annotations

from pathlib import Path

import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.handlers.call import StatedCall
from pd_handoff_server.lifecycle import Spec
from pd_handoff_server.refusal import Refusal
from pd_handoff_server.store.interface import Published

from tests.support import records, requests
from tests.support.caller import UnaryCaller
from tests.support.clock import FakeClock
from tests.support.credentials import access_file, bearing
from tests.support.failures import refused
from tests.support.fixtures import Start
from tests.support.steps import Steps

from .conftest import core


def test_who_has_most_gives_way(start: Start, tmp_path: Path) -> None:
    tokens = {name: f"{name}-token-0123456789" for name in ("hog", "other", "third")}
    lines = [f"{name} prefill,decode * {token}" for name, token in tokens.items()]
    store = start(max_waiters=6, token_file=str(access_file(tmp_path / "t", *lines)))
    hog, other, third = (Steps(UnaryCaller(bearing(store.channel(), token))) for token in tokens.values())
    held = []
    for room in range(6):
        held.append(hog.start_get(room))
        store.until_waiting(room + 1)
    with refused("TOO_MANY_WAITERS", limit=6):
        hog.get(99, max_wait=60)
    mine = []
    for room in range(3):
        mine.append(other.start_get(room))
        with refused("TOO_MANY_WAITERS", limit=6):
            held.pop().result()  # its newest
    with refused("TOO_MANY_WAITERS", limit=6):  # three each: nobody has more than their share
        other.get(99, max_wait=60)
    assert store.waiting == 6
    late = third.start_get(0)
    with refused("TOO_MANY_WAITERS", limit=6):
        (mine if mine[-1].done() else held).pop().result()
    hog.publish(0)
    assert {pending.result().record.tokens[0].token_id for pending in (held[0], mine[0], late)} == {
        records.record().tokens[0].token_id
    }


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ipv4:10.0.0.1:1000", "ipv4:10.0.0.1:2000", True),
        ("ipv4:10.0.0.1:1000", "ipv4:10.0.0.2:1000", False),
        ("ipv6:%5B::1%5D:1", "ipv6:%5B::1%5D:2", True),
        ("unix:", "unix:", True),
    ],
)
def test_a_host_is_one_caller(one: str, other: str, same: bool) -> None:
    assert (StatedCall(None, one).sharer == StatedCall(None, other).sharer) is same


def test_bytes_that_wait_are_bounded() -> None:
    clock = FakeClock()
    store = core(clock, slots=1, max_waiting_bytes=10_000)
    store.reserve(Spec(("", 0, 0), "o"), 0, print)
    big = rp.HandoffRecord(tokens=[rp.SampledToken(token_id=1)], customized_info=bytes(3000))
    parked = []
    for room in range(1, 4):
        parked.append(store.put_reserving(Spec(("", room, 0), "o"), big, 10**12, lambda _: None))
    assert 9000 < store.census().waiting_bytes < 10_000
    with pytest.raises(Refusal, match="--max-waiting-bytes") as caught:
        store.put_reserving(Spec(("", 9, 0), "o"), big, 10**12, lambda _: None)
    assert caught.value.reason == "TOO_MANY_WAITERS"
    assert caught.value.metadata == {"limit": "10000"}
    for waiting in parked:
        assert not isinstance(waiting, Published)
        waiting.cancel()
    assert store.census().waiting_bytes == 0


def test_a_request_counts_with_all_its_bytes(start: Start) -> None:
    store = start(max_waiting_bytes=5000)
    steps = store.steps()
    padded = requests.get(1, max_wait=60)
    junk = padded.SerializeToString() + b"\xfa\x3e" + records.varint(4000) + bytes(4000)  # a field nobody knows
    waiting = steps.caller.start("Get", junk)
    store.until_waiting(1)
    with refused("TOO_MANY_WAITERS", limit=5000):
        steps.caller.call("Get", junk)
    small = steps.start_get(2)
    store.until_waiting(2)
    steps.publish(1)
    assert waiting.result().record == records.record()
    assert not small.done()


def test_a_batch_counts_once(start: Start) -> None:
    store = start()
    steps = store.steps()
    batch = pb.BatchGetRequest(requests=[requests.get(room, max_wait=60) for room in range(50)])
    waiting = steps.caller.start("BatchGet", batch)
    store.until_waiting(50)
    assert store.core.census().waiting_bytes == batch.ByteSize()
    store.advance(61)
    assert len(waiting.result().results) == 50
    assert store.core.census().waiting_bytes == 0
