"""Contract section 3, the admin service: read only, takes no slot, renews no lease, wakes nobody, shows no contents."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from pd_handoff.v1 import admin_pb2
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff.v1 import record_pb2 as rp

from tests.support import records, requests
from tests.support.failures import refused
from tests.support.local import LocalStore
from tests.support.steps import Steps

pytestmark = pytest.mark.wire

State = admin_pb2.HandoffState
EVERY = [number for number in State.values() if number]


def spaced(namespace: str, room: int) -> rp.HandoffKey:
    """A key in a namespace."""
    return rp.HandoffKey(namespace=namespace, room=room)


def page(unary: Steps, **fields: object) -> admin_pb2.ListHandoffsResponse:
    """ListHandoffs."""
    answer: admin_pb2.ListHandoffsResponse = unary.caller.call(
        "ListHandoffs",
        admin_pb2.ListHandoffsRequest(**fields),  # type: ignore[arg-type]
    )
    return answer


@pytest.mark.clock
def test_what_is_shown_of_each_state(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1, "owner 1", lease=60, readers=4, attempt=2, producer=("p", 3), widths=pb.Widths(top_logprobs=5))
    unary.publish(2, records.full())
    unary.exchange(3)
    unary.abort(4, why=requests.failure(400, "WHY", "because"))
    unary.reserve(5, lease=1)
    store.advance(1)
    reserved = store.sight(1)
    assert reserved.state == State.HANDOFF_STATE_RESERVED
    assert (reserved.owner, reserved.attempt, reserved.expected_readers) == ("owner 1", 2, 4)
    assert (reserved.producer.instance_id, reserved.producer.epoch) == ("p", 3)
    assert reserved.widths == pb.Widths(top_logprobs=5)
    assert (reserved.age, reserved.expires_in) == (Duration(seconds=1), Duration(seconds=59))
    assert reserved.HasField("slot")
    assert not reserved.HasField("published_at")
    published = store.sight(2)
    assert published.state == State.HANDOFF_STATE_PUBLISHED
    assert published.expires_in == Duration(seconds=299)
    assert published.HasField("published_at")
    assert published.widths.hidden_state_bytes == 16
    assert store.sight(3).state == State.HANDOFF_STATE_CONSUMED
    assert store.sight(3).HasField("slot")
    aborted = store.sight(4)
    assert aborted.state == State.HANDOFF_STATE_ABORTED
    assert aborted.failure == requests.failure(400, "WHY", "because")
    assert not aborted.HasField("slot")
    assert store.sight(5).state == State.HANDOFF_STATE_EXPIRED


def test_live_ones_are_listed_oldest_first_and_ended_ones_on_request(unary: Steps, store: LocalStore) -> None:
    for room in (3, 1, 2):
        unary.reserve(room)
    unary.publish(4)
    unary.exchange(5)
    unary.abort(1)
    unary.exchange(6)
    unary.release(6, token=unary.reserve(6).token)  # consumed and freed
    assert [handoff.key.room for handoff in store.listing()] == [3, 2, 4, 5]
    by_state = {
        State.HANDOFF_STATE_RESERVED: [3, 2],
        State.HANDOFF_STATE_PUBLISHED: [4],
        State.HANDOFF_STATE_CONSUMED: [5, 6],
        State.HANDOFF_STATE_ABORTED: [1],
        State.HANDOFF_STATE_EXPIRED: [],
    }
    for state, rooms in by_state.items():
        assert [handoff.key.room for handoff in store.listing(states=[state])] == rooms
    assert len(store.listing(states=EVERY)) == 6


@pytest.mark.internals  # "all" would show what others keep in a given store
def test_one_namespace_or_all(unary: Steps, store: LocalStore) -> None:
    for namespace in ("", "a", "b"):
        unary.reserve(spaced(namespace, 7))
    assert [handoff.key.namespace for handoff in store.listing()] == ["", "a", "b"]
    for namespace in ("", "a", "b"):
        (only,) = store.listing(namespace=namespace)
        assert only.key == spaced(namespace, 7)
    assert store.listing(namespace="c") == []


@pytest.mark.internals
@pytest.mark.settings(slots=250)
def test_pages(unary: Steps) -> None:
    reserves = [requests.reserve(room) for room in range(250)]
    for start in (0, 125):
        unary.caller.call("BatchReserve", pb.BatchReserveRequest(requests=reserves[start : start + 125]))
    first = page(unary)
    assert len(first.handoffs) == 100
    rooms = [handoff.key.room for handoff in first.handoffs]
    token = first.next_page_token
    for size in (100, 50):
        assert token
        more = page(unary, page_token=token)
        assert len(more.handoffs) == size
        rooms += [handoff.key.room for handoff in more.handoffs]
        token = more.next_page_token
    assert token == ""
    assert rooms == list(range(250))
    assert len(page(unary, page_size=1000).handoffs) == 250
    assert len(page(unary, page_size=100_000).handoffs) == 250
    assert page(unary, page_size=250).next_page_token == ""


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"page_token": "never given"}, "page_token"),
        ({"page_token": "-1"}, "page_token"),
        ({"page_token": "9" * 40}, "page_token"),
        ({"namespace": "a/b"}, "key.namespace"),
        ({"states": [0]}, "states"),
        ({"states": [1, 99]}, "states"),
    ],
    ids=str,
)
def test_malformed_listings(unary: Steps, fields: dict[str, object], violation: str) -> None:
    with refused("INVALID_REQUEST") as caught:
        page(unary, **fields)
    assert list(caught.error.violations) == [violation]


@pytest.mark.clock
def test_a_read_renews_nothing_and_counts_as_no_reader(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1, lease=10)
    unary.publish(2)
    store.advance(9)
    for _ in range(5):
        store.listing(states=EVERY)
        store.sight(1)
        store.sight(2)
    assert store.sight(2).readers_done == 0
    store.advance(1)
    with refused("HANDOFF_EXPIRED"):
        unary.get(1)
    assert unary.record(2, reader="decode") == records.record()


@pytest.mark.internals
def test_it_shows_who_waits(unary: Steps, store: LocalStore) -> None:
    unary.reserve(7)
    waiting = [unary.start_get(7) for _ in range(3)]
    store.until_waiting(3)
    assert [handoff.waiting for handoff in store.listing()] == [3]
    waiting[0].cancel()  # type: ignore[attr-defined]
    store.until_waiting(2)
    assert store.sight(7).waiting == 2
    unary.abort(7)
    assert store.sight(7).waiting == 0


def test_contents_are_not_shown_unless_permitted(unary: Steps) -> None:
    unary.publish(7, records.full())
    request = admin_pb2.GetHandoffRequest(key=requests.key(7), include_record=True)
    with refused("INVALID_REQUEST") as caught:
        unary.caller.call("GetHandoff", request)
    assert list(caught.error.violations) == ["include_record"]
    request.include_record = False
    answer: admin_pb2.GetHandoffResponse = unary.caller.call("GetHandoff", request)
    assert not answer.HasField("record")
    assert b"engine" not in answer.SerializeToString()


@pytest.mark.settings(admin_contents=True)
def test_contents_are_shown_when_asked_for_and_permitted(unary: Steps, store: LocalStore) -> None:
    unary.reserve(1)
    unary.publish(2, records.full())
    for room, record in ((1, None), (2, records.full())):
        request = admin_pb2.GetHandoffRequest(key=requests.key(room), include_record=True)
        answer: admin_pb2.GetHandoffResponse = unary.caller.call("GetHandoff", request)
        assert answer.HasField("record") == (record is not None)
        if record is not None:
            assert answer.record == record
    assert not store.sight(2).readers_done


def test_a_key_nobody_knows_and_none_at_all(unary: Steps) -> None:
    with refused("HANDOFF_NOT_FOUND"):
        unary.caller.call("GetHandoff", admin_pb2.GetHandoffRequest(key=requests.key(7)))
    with refused("INVALID_REQUEST"):
        unary.caller.call("GetHandoff", admin_pb2.GetHandoffRequest())


def test_never_a_token(unary: Steps, store: LocalStore) -> None:
    token = unary.reserve(7).token
    assert token not in store.sight(7).SerializeToString()
    assert all(token not in handoff.SerializeToString() for handoff in store.listing())


def test_the_newest_attempt_is_shown(unary: Steps, store: LocalStore) -> None:
    unary.reserve(7)
    unary.reserve(7, attempt=4)
    assert store.sight(7).attempt == 4
    unary.abort(7, attempt=4)
    assert (store.sight(7).attempt, store.sight(7).state) == (4, State.HANDOFF_STATE_ABORTED)


@pytest.mark.internals
def test_an_unforeseen_error_does_not_show_its_text(
    unary: Steps, store: LocalStore, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret of the house")

    with monkeypatch.context() as broken:
        broken.setattr(store.core, "look", fail)
        with refused("INTERNAL") as caught:
            page(unary)
        assert caught.error.status is not None
        assert b"secret" not in caught.error.status.SerializeToString()
    assert "RuntimeError" in failures.pop()
    assert not page(unary).handoffs
