"""What the example shows, each as a function that raises AssertionError when it does not hold."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pd_handoff import DecodeClient
from pd_handoff.engines.sglang import Admission, RequestRefused

from examples.sglang.requests import Order, compute, request_of, shown
from examples.sglang.wire import Engine, Raised


@dataclass
class Deployment:
    """Two prefill and two decode processes: of each kind one with the adapter and one with SGLang's own class."""

    store: str
    prefill: Engine
    decode: Engine
    their_prefill: Engine
    their_decode: Engine


ORDERS = (
    Order("plain", 1001, seed=1),
    Order("logprobs", 1002, logprobs=True, top_logprobs=20, seed=2),
    Order("all-128", 1003, logprobs=True, top_logprobs=128, seed=3),
    Order("mask-selected", 1004, logprobs=True, mask="selected", seed=4),
    Order("mask-support", 1005, mask="support", seed=5),
    Order("eagle", 1006, logprobs=True, top_logprobs=5, eagle=True, seed=6),
    Order("plain-again", 1007, seed=7),  # in a row that one of the others had
)


def _given(order: Order) -> dict[str, Any]:
    return dataclasses.asdict(order)


def _over(prefill: Engine, decode: Engine, order: Order) -> dict[str, Any]:
    decode.do("expect", order=_given(order))
    assert prefill.do("prefill", order=_given(order))["aborted"] is None
    decode.do("kv_arrived", rid=order.rid)
    found: dict[str, Any] = decode.do("finish", rid=order.rid)
    return found


def _computed(order: Order) -> dict[str, Any]:
    """What an undivided engine would have."""
    req = request_of(order)
    compute(req, order)
    req.already_computed = req.cached_tokens  # so that decode counts none of it again
    req.mm_token_counts_ready = True
    if order.logprobs and not order.top_logprobs:  # decode keeps one row a token, if an empty one
        req.logprob.output_top_logprobs_val.append([])
        req.logprob.output_top_logprobs_idx.append([])
    return shown(req)


def _raised_by(prefill: Engine, order: Order) -> str:
    try:
        prefill.do("prefill", order=_given(order))
    except Raised as raised:
        return str(raised)
    return "nothing"


def every_request_arrives(on: Deployment) -> str:
    """SGLang's own queues, with the store between them: what decode has is what prefill computed, bit for bit."""
    for order in ORDERS:
        found = _over(on.prefill, on.decode, order)
        for name, value in _computed(order).items():
            assert found[name] == value, (order.rid, name, found[name], value)
        assert found["checksum"] == order.seed + 1
        if not order.eagle:
            assert set(found["hidden"]) == {"0"}, "residue of another request's hidden states"
    return f"{len(ORDERS)} requests, each as computed"


def both_classes_on_either_side(on: Deployment) -> str:
    """SGLang's class on one side and the adapter on the other, and the reverse: one request, one result."""
    pairs = {
        "adapter to SGLang": (on.prefill, on.their_decode),
        "SGLang to adapter": (on.their_prefill, on.decode),
        "SGLang to SGLang": (on.their_prefill, on.their_decode),
        "adapter to adapter": (on.prefill, on.decode),
    }
    orders = [dataclasses.replace(order, room=order.room + 1000) for order in ORDERS]
    results = []
    for number, (prefill, decode) in enumerate(pairs.values()):
        rooms = [dataclasses.replace(order, room=order.room + 100 * number) for order in orders]
        results.append([_over(prefill, decode, order) for order in rooms])
    for name, result in zip(pairs, results, strict=True):
        for mine, theirs in zip(result, results[-1], strict=True):
            assert mine == theirs, (name, mine, theirs)
    return f"{len(pairs)} pairings of {len(orders)} requests, all alike"


def an_abort_reaches_decode(on: Deployment) -> str:
    """Prefill refuses an input; decode, waiting for a KV cache that will never come, answers with its words."""
    order = Order("too-long", 3001, logprobs=True)
    on.decode.do("expect", order=_given(order))
    assert on.decode.do("poll", rid=order.rid) == "waiting"
    text = "Request too-long exceeds the maximum number of tokens: 9000 > 8192"
    began = time.monotonic()
    on.prefill.do("abort", order=_given(order), message=text, status=400)
    found = on.decode.do("finish", rid=order.rid)
    took = time.monotonic() - began
    assert found["finished"] == [400, text], found
    assert found["streamed"]
    return f"400 {text!r} after {took * 1000:.0f} ms"


def an_abort_reaches_prefill(on: Deployment) -> str:
    """The user leaves while decode waits; the prefill that comes too late is told, and goes on with others."""
    order = Order("left", 3002)
    on.decode.do("expect", order=_given(order))
    on.decode.do("drop", rid=order.rid)
    answer = on.prefill.do("prefill", order=_given(order))
    assert answer["aborted"] == "the user left", answer
    _over(on.prefill, on.decode, Order("next", 3003))
    return "prefill was told, and went on"


def a_rejection_reaches_decode(on: Deployment) -> str:
    """Prefill's scheduler rejects a request at its door, by `set_finish_with_abort`."""
    order = Order("rejected", 3004)
    on.decode.do("expect", order=_given(order))
    on.prefill.do("reject", order=_given(order), message="Failed to compile the grammar")
    found = on.decode.do("finish", rid=order.rid)
    assert found["finished"] == [400, "Failed to compile the grammar"], found
    return f"{found['finished'][0]} {found['finished'][1]!r}"


def a_retracted_request_is_prefilled_again(on: Deployment) -> str:
    """The same room, a second time: decode gets the second record, not the first, which could still be read. And a
    third time, by a prefill that has restarted and knows nothing of the two before."""
    first = Order("retracted", 4001, logprobs=True, top_logprobs=3, seed=40)
    before = _over(on.prefill, on.decode, first)
    assert before["output_ids"] == _computed(first)["output_ids"]
    attempts = []
    for seed in (41, 42):
        again = dataclasses.replace(first, seed=seed)
        on.decode.do("expect", order=_given(again), retracted_after=before["output_ids"][0])
        on.decode.do("kv_arrived", rid=again.rid)
        assert on.decode.do("poll", rid=again.rid) == "waiting", "decode took a former prefill's record"
        # SGLang asks for no logprobs this time: the token that the user has had is not scored again.
        on.prefill.do("prefill", order=_given(dataclasses.replace(again, logprobs=False, top_logprobs=0)))
        found = on.decode.do("finish", rid=again.rid)
        assert "finished" not in found, found
        assert found["output_ids"] == before["output_ids"]  # the token that the user has had goes on
        assert found["cached"] == _computed(again)["cached"]
        assert found["top"] == []
        with DecodeClient(on.store) as reader:
            attempts.append(reader.get(first.room, consume=False).attempt)
        on.prefill.do("restart")
    assert attempts == [2, 4]
    return "attempts 2 and 4 followed attempt 0"


def three_samples_of_sglangs_own(on: Deployment) -> str:
    """n = 3: each side's tokenizer, for itself, gives each sample a room; all under way at a time."""
    rooms = on.decode.do("sample_rooms", room=5101, n=3)
    assert rooms == on.prefill.do("sample_rooms", room=5101, n=3), rooms
    assert len({5101, *rooms}) == len(rooms) == 4, rooms  # the first is of the prompt's own prefill, in the room itself
    assert on.their_prefill.do("sample_rooms", room=5101, n=3) == [5101] * 4
    _samples(on, [Order(f"n-{sample}", room, seed=60 + sample) for sample, room in enumerate(rooms[1:])])
    return f"rooms {', '.join(map(str, rooms[1:]))}, alike on both sides"


def three_samples_of_one_room(on: Deployment) -> str:
    """n = 3 as an engine may have it that numbers its samples: one room, three hand-offs, all under way at a time."""
    _samples(on, [Order(f"sample-{sample}", 5001, sample=sample, seed=50 + sample) for sample in range(3)])
    return "three records of room 5001"


def _samples(on: Deployment, orders: list[Order]) -> None:
    orders = [dataclasses.replace(order, logprobs=True, top_logprobs=4) for order in orders]
    for order in orders:
        on.decode.do("expect", order=_given(order))
    for order in reversed(orders):
        assert on.prefill.do("prefill", order=_given(order))["aborted"] is None
    for order in orders:
        on.decode.do("kv_arrived", rid=order.rid)
        found = on.decode.do("finish", rid=order.rid)
        assert found["top"] == _computed(order)["top"], order.rid


def too_many_top_logprobs_are_refused_first(on: Deployment) -> str:
    """129 top logprobs: refused at admission, before the prefill. One that slips through is aborted on both sides,
    where SGLang's class raises into its scheduler."""
    before = on.prefill.do("state")["computed"]
    with DecodeClient(on.store) as reader:
        admission = Admission(reader.capabilities())
    try:
        admission.check({"return_logprob": True, "top_logprobs_num": 129})
    except RequestRefused as refused:
        words = f"{refused.http_status} {refused}"
    else:
        raise AssertionError("129 top logprobs were admitted")
    assert on.prefill.do("state")["computed"] == before

    slipped = Order("slipped", 6001, logprobs=True, top_logprobs=129)
    on.decode.do("expect", order=_given(slipped))
    text = on.prefill.do("prefill", order=_given(slipped))["aborted"]
    assert "129 exceeds disaggregation metadata capacity 128" in text
    found = on.decode.do("finish", rid=slipped.rid)
    assert found["finished"] == [400, text], found["finished"]
    raised = _raised_by(on.their_prefill, dataclasses.replace(slipped, room=6002))
    assert raised.startswith("RuntimeError: top_logprobs_num 129 exceeds"), raised
    return words


def rooms_that_sglang_cannot_hold(on: Deployment) -> str:
    """Room 0, and rooms from 2**63."""
    for number, room in enumerate((0, 2**63, 2**64 - 1)):
        order = Order(f"room-{number}", room, seed=70 + number)
        assert _over(on.prefill, on.decode, order)["output_ids"] == _computed(order)["output_ids"]
    return "0, 2**63 and 2**64 - 1"


def nothing_is_left(on: Deployment) -> str:
    """All rows of the adapter are free again."""
    assert on.prefill.do("state")["free"] == on.decode.do("state")["free"] == 4
    return "all rows are free"


ALL: tuple[Callable[[Deployment], str], ...] = (
    every_request_arrives,
    both_classes_on_either_side,
    an_abort_reaches_decode,
    an_abort_reaches_prefill,
    a_rejection_reaches_decode,
    a_retracted_request_is_prefilled_again,
    three_samples_of_sglangs_own,
    three_samples_of_one_room,
    too_many_top_logprobs_are_refused_first,
    rooms_that_sglang_cannot_hold,
    nothing_is_left,
)
