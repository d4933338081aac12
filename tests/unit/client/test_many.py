"""Each of many succeeds or fails alone: what was answered is returned, whatever becomes of the rest; by both faces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from pd_handoff import GetItem, Handoff, Key, Published, Record, Reservation, Retries, Token, errors
from pd_handoff.retries import NO_RETRIES
from pd_handoff.v1 import metadata_store_pb2 as pb

GOOD, UNFIT = Record(tokens=[Token(5)]), Record(tokens=[Token(1.5)])  # type: ignore[arg-type]
QUICK = Retries(total_seconds=5, initial_backoff=0.001, max_backoff=0.002)
SIZE = 40
CALLS = ("Get", "Put")


def held(room: int) -> Reservation:
    return Reservation(Key(room, 0, ""), b"t", "me", 0, 30.0, "e")


class Store:
    """Answers each room of a batch, or what `script` has for that batch: a refusal of all, or room -> refusal."""

    def __init__(self, store: Any) -> None:
        self.script: list[Any] = []
        self.store = store
        store.script("Capabilities", pb.CapabilitiesResponse(max_batch=SIZE))
        store.script("BatchGet", self._answering(pb.BatchGetResponse, pb.BatchGetResult, pb.GetResponse))
        store.script("BatchPut", self._answering(pb.BatchPutResponse, pb.BatchPutResult, pb.PutResponse))

    def _answering(self, response: Any, result: Any, made: Any) -> Callable[..., Any]:
        def answer(request: Any, _: Any) -> Any:
            rooms = [one.key.room for one in request.requests]
            self.sent.append(rooms)
            now = self.script.pop(0) if self.script else {}
            if not isinstance(now, dict):
                return now
            answers = []
            for room in rooms:
                no = now.get(room)
                answers.append(result(error=no) if no is not None else result(response=made(store_epoch=str(room))))
            return response(results=answers)

        self.sent: list[list[int]] = []
        return answer


@pytest.fixture
def batches(store: Any) -> Store:
    return Store(store)


@pytest.fixture(params=CALLS)
def many(request: pytest.FixtureRequest, connect: Any) -> Callable[..., Any]:
    """many(rooms, **settings of the client): get_many or put_many of them."""

    async def call(rooms: Any, **settings: Any) -> Any:
        settings = {"retries": NO_RETRIES, **settings}
        if request.param == "Get":
            return await connect("DecodeClient", **settings).get_many(rooms)
        return await connect("PrefillClient", **settings).put_many([(held(room), GOOD) for room in rooms])

    return call


def answered(outcomes: Any) -> list[str]:
    return [one.store_epoch for one in outcomes if isinstance(one, (Handoff, Published))]


def rooms(first: int, last: int) -> list[str]:
    return [str(room) for room in range(first, last)]


# What the store says of a batch -> what the items get, and whether the batch after it is sent.
WHOLE = [
    ("UNAVAILABLE", "", errors.StoreUnavailable, False),
    ("DEADLINE_EXCEEDED", "", errors.DeadlineExceeded, False),
    ("UNAVAILABLE", "DRAINING", errors.Draining, False),
    ("UNAUTHENTICATED", "", errors.Unauthenticated, False),
    ("PERMISSION_DENIED", "", errors.PermissionDenied, False),
    ("INTERNAL", "INTERNAL", errors.StoreInternalError, True),
    ("INVALID_ARGUMENT", "INVALID_REQUEST", errors.InvalidRequest, True),
    ("RESOURCE_EXHAUSTED", "", errors.HandoffError, True),
]


@pytest.mark.parametrize(("code", "reason", "kind", "goes_on"), WHOLE, ids=[row[2].__name__ for row in WHOLE])
async def test_a_later_batch_that_fails_as_a_whole(
    code: str, reason: str, kind: Any, goes_on: bool, many: Any, batches: Store, refusal: Any
) -> None:
    batches.script = [{}, refusal(code, reason)]
    outcomes = await many(range(100))
    assert answered(outcomes) == rooms(0, 40) + (rooms(80, 100) if goes_on else [])
    failed = [one for one in outcomes if isinstance(one, errors.HandoffError)]
    assert outcomes[40:80] == failed[:40]
    assert {type(one) for one in failed} == {kind}
    assert len(outcomes) == 100
    assert len({id(one) for one in failed}) == len(failed)  # an instance each
    assert len(batches.sent) == (3 if goes_on else 2)


async def test_the_first_batch_that_fails_as_a_whole_is_raised(many: Any, batches: Store, refusal: Any) -> None:
    batches.script = [refusal("UNAVAILABLE")]
    with pytest.raises(errors.StoreUnavailable):
        await many(range(100))
    assert len(batches.sent) == 1


async def test_what_is_retried_ends_the_sending(many: Any, batches: Store, refusal: Any) -> None:
    batches.script = [{}, refusal("INTERNAL", "INTERNAL", retry_after=9)]
    outcomes = await many(range(100), retries=Retries(total_seconds=1, also=frozenset({"INTERNAL"})))
    assert answered(outcomes) == rooms(0, 40)
    assert len(batches.sent) == 2


async def test_a_size_that_cannot_be_learned_again(many: Any, batches: Store, store: Any, refusal: Any) -> None:
    too_many = refusal("INVALID_ARGUMENT", "INVALID_REQUEST", violations=(("requests", "too many"),))
    store.script("Capabilities", pb.CapabilitiesResponse(max_batch=SIZE), refusal("INTERNAL", "INTERNAL"))
    batches.script = [{}, too_many]
    outcomes = await many(range(100))
    assert answered(outcomes) == rooms(0, 40)
    assert {type(one) for one in outcomes[40:]} == {errors.StoreInternalError}
    assert len(outcomes) == 100
    assert len(batches.sent) == 2
    store.script("Capabilities", refusal("INTERNAL", "INTERNAL"))
    with pytest.raises(errors.StoreInternalError):  # nothing has been answered yet
        await many(range(100))


async def test_a_repetition_that_fails_as_a_whole(many: Any, batches: Store, refusal: Any) -> None:
    draining = refusal("UNAVAILABLE", "DRAINING", retry_after=0.001)
    batches.script = [{1: draining, 3: draining}, refusal("UNAUTHENTICATED")]
    outcomes = await many(range(100), retries=QUICK)
    assert batches.sent[1:] == [[1, 3]]  # and none for the others
    assert answered(outcomes) == ["0", "2", *rooms(4, 40)]
    assert {type(outcomes[at]) for at in (1, 3, *range(40, 100))} == {errors.Unauthenticated}
    assert outcomes[1] is not outcomes[3]


async def test_a_repetition_of_all_that_fails_is_raised(many: Any, batches: Store, refusal: Any) -> None:
    draining = refusal("UNAVAILABLE", "DRAINING", retry_after=0.001)
    batches.script = [{1: draining, 2: draining}, refusal("UNAUTHENTICATED")]
    with pytest.raises(errors.Unauthenticated):
        await many([1, 2], retries=QUICK)


async def test_records_that_cannot_be_sent(connect: Any, batches: Store) -> None:
    client = connect("PrefillClient")
    items = [(held(room), UNFIT if room in (0, 50, 99) else GOOD) for room in range(100)]
    outcomes = await client.put_many(items)
    assert [at for at, one in enumerate(outcomes) if isinstance(one, errors.InvalidRecord)] == [0, 50, 99]
    assert str(outcomes[50]).startswith("tokens[0].token_id: ")
    assert answered(outcomes) == rooms(1, 50) + rooms(51, 99)
    (outcome,) = await client.put_many([(held(1), UNFIT)])
    assert isinstance(outcome, errors.InvalidRecord)
    assert sum(map(len, batches.sent)) == 97


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ((held(1), {"tokens": []}), r"items\[1\]: record must be a Record or a HandoffRecord message, is a dict"),
        ((GOOD, held(1)), r"items\[1\]: put takes a Reservation, then a Record; the first is Record"),
        ((held(1),), r"items\[1\]: must be a reservation and a record, not \(Reservation"),
        (held(1), r"items\[1\]: must be a reservation and a record, not Reservation"),
    ],
)
async def test_what_is_nothing_to_put(bad: Any, what: str, connect: Any, store: Any) -> None:
    with pytest.raises(TypeError, match=what):
        await connect("PrefillClient").put_many([(held(0), GOOD), bad, (held(2), GOOD)])
    assert store.calls == []


async def test_keys_that_cannot_be_asked_for(connect: Any, batches: Store) -> None:
    client = connect("DecodeClient")
    for max_wait in (None, 1.0):
        outcomes = await client.get_many([-1, 1, GetItem(2, attempt=-1), 3, Key(4, 2**32)], max_wait=max_wait)
        assert answered(outcomes) == ["1", "3"]
        failed = [outcomes[at] for at in (0, 2, 4)]
        assert [one.violations[0].field for one in failed] == ["key.room", "attempt", "key.sample"]
    assert batches.sent == [[1, 3]] * 2
    (outcome,) = await client.get_many(["x"])
    assert isinstance(outcome, errors.InvalidRequest)


@pytest.mark.parametrize("options", [{"attempt": -1}, {"max_wait": "long"}, {"reader_id": 5}], ids=str)
async def test_what_is_wrong_with_all_is_raised(options: Any, connect: Any, store: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        await connect("DecodeClient").get_many([1, 2], **options)
    assert store.calls == []


UNREADABLE = Record(tokens=[Token(1, top_logprobs={"values": []})])  # type: ignore[arg-type]


async def test_an_unreadable_value_is_the_outcome_of_its_record_alone(connect: Any, batches: Store) -> None:
    items = [(held(0), GOOD), (held(1), UNREADABLE), (held(2), GOOD)]
    outcomes = await connect("PrefillClient").put_many(items)
    assert isinstance(outcomes[1], errors.InvalidRecord)
    assert outcomes[1].violations == (("tokens[0].top_logprobs", "must be Logprobs, is a dict"),)
    assert batches.sent == [[0, 2]]
    assert answered(outcomes) == ["0", "2"]


async def test_so_it_is_with_put_soon(connect: Any, store: Any) -> None:
    store.script("Put", pb.PutResponse(store_epoch="e"))
    client = connect("PrefillClient")
    assert (await _outcome(client.raw, held(1), GOOD)).store_epoch == "e"
    with pytest.raises(errors.InvalidRecord, match="must be Logprobs, is a dict"):
        await _outcome(client.raw, held(2), UNREADABLE)


async def _outcome(client: Any, reservation: Reservation, record: Record) -> Any:
    future = client.put_soon(reservation, record)
    return await (future if isinstance(future, asyncio.Future) else asyncio.wrap_future(future))


NO_RESERVATION: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("renew", (7,), {}, "takes a Reservation, not 7"),
    ("release", (7,), {}, "takes a Reservation, not 7"),
    ("put", (7, GOOD), {}, "takes a Reservation"),
    ("reserve", (7,), {"widths": {"tokens": 2}}, "widths must be Widths, not {'tokens': 2}"),
    ("capabilities", (), {"required": {"tokens": 2}}, "required must be Widths, not {'tokens': 2}"),
]


@pytest.mark.parametrize(
    ("method", "given", "options", "words"), NO_RESERVATION, ids=[row[0] for row in NO_RESERVATION]
)
async def test_wrong_python_types(
    method: str, given: tuple[Any, ...], options: dict[str, Any], words: str, connect: Any, store: Any
) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        await getattr(connect("PrefillClient"), method)(*given, **options)
    assert store.calls == []
