"""Clients that leave, a prefill that is killed, a store that is full, away or new, and many requests at a time."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from pd_handoff import DecodeClient, HandoffAborted, HandoffError, PrefillClient

from tests.support.waits import eventually
from tests.vllm_pair.conftest import Pair
from tests.vllm_pair.requests import COMPLETIONS, at_once, both, completion, in_room, outcome, room, text
from tests.vllm_pair.servers import ANSWER_SECONDS

SECONDS = 60.0


def expected(pair: Pair, body: dict[str, Any]) -> list[Any]:
    """What the undivided server says."""
    status, answer = pair.undivided.post(COMPLETIONS, body)
    assert status == 200, answer
    return outcome(answer)


def hands_over(pair: Pair, seed: int) -> bool:
    """Whether a request crosses, with the right answer."""
    body = completion(text(seed))
    before = pair.decode.counters()
    (_, first), (status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, body)
    assert status == 200, (first, answer)
    assert outcome(answer) == expected(pair, body)
    return pair.decode.counters()["transfers"] - before.get("transfers", 0) == 1


def test_five_hundred_requests_sixteen_at_a_time(pair: Pair) -> None:
    bodies = [completion(text(1000 + number, 10 + number % 40), max_tokens=4) for number in range(500)]
    before = pair.decode.counters()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: both(pair.prefill, pair.decode, COMPLETIONS, body)[1], bodies))
    assert {status for status, _ in answers} == {200}
    transfers = pair.decode.counters()["transfers"] - before["transfers"]
    print(f"{pair.way}: {transfers:.0f} of 500 prompts were fetched")
    assert transfers >= 490  # a busy machine may let a lease lapse
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(partial(pair.undivided.post, COMPLETIONS), bodies))
    for (_, answer), (status, right) in zip(answers, alone, strict=True):
        assert status == 200, right
        # In company sums run in another order, which may move a logprob's last bit, but no greedy token.
        assert answer["choices"][0]["token_ids"] == right["choices"][0]["token_ids"]
    pair.assert_serves()


def test_a_client_that_leaves_decode_while_it_waits(pair: Pair) -> None:
    number, body = room(), completion(text(400))
    connection = pair.decode.begin(COMPLETIONS, in_room(body, number))
    eventually(lambda: pair.store.waiters() >= 1, "decode waits", SECONDS)
    connection.close()
    eventually(lambda: pair.store.waiters() == 0, "decode waits no longer", SECONDS)
    with DecodeClient(pair.store.target) as client, pytest.raises(HandoffAborted):
        client.get(number, max_wait=30)
    status, answer = pair.prefill.post(COMPLETIONS, in_room(body, number))
    if pair.way == "middleware":
        assert status == 499, answer  # refused before it is computed
    assert hands_over(pair, 401)
    pair.assert_serves()


def test_a_client_that_leaves_prefill(pair: Pair) -> None:
    number, body = room(), completion(text(410))
    connection = pair.prefill.begin(COMPLETIONS, in_room(body, number))
    connection.close()
    status, answer = pair.decode.post(COMPLETIONS, in_room(body, number))
    assert status == 200, answer
    assert outcome(answer) == expected(pair, body)
    assert hands_over(pair, 411)


def test_twenty_parked_and_then_aborted(pair: Pair) -> None:
    numbers = [room() for _ in range(20)]
    parked = [partial(pair.decode.post, COMPLETIONS, in_room(completion(text(n % 50)), n)) for n in numbers]
    refused = completion("0123456789" * 120)  # too long for prefill
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(call) for call in parked]
        eventually(
            lambda: pair.store.waiters() >= 40, "twenty wait, each with the gateway that listens for failures", SECONDS
        )
        at_once([partial(pair.prefill.post, COMPLETIONS, in_room(refused, number)) for number in numbers])
        for answer in answers:
            status, said = answer.result(ANSWER_SECONDS)
            assert status == 400, said
    assert hands_over(pair, 420)
    pair.assert_serves()


def test_a_full_store(pair: Pair) -> None:
    with PrefillClient(pair.store.target) as client:
        held = []
        with contextlib.suppress(HandoffError):
            while True:
                held.append(client.reserve(room()))
        assert len(held) > 30
        number, body = room(), completion(text(430))
        legs = [partial(server.post, COMPLETIONS, in_room(body, number)) for server in (pair.prefill, pair.decode)]
        (status, first), (decode_status, answer) = at_once(legs)
        assert status in (200, 503), first
        assert decode_status == 200, answer
        assert outcome(answer) == expected(pair, body)
        for reservation in held:
            client.release(reservation)
    assert hands_over(pair, 431)


def test_a_store_that_stops_and_comes_back(pair: Pair) -> None:
    number, body = room(), completion(text(440))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.decode.post, COMPLETIONS, in_room(body, number))
        eventually(lambda: pair.store.waiters() >= 1, "decode waits", SECONDS)
        pair.store.kill()
        status, answer = waiting.result(ANSWER_SECONDS)
    assert status == 200, answer
    assert outcome(answer) == expected(pair, body)
    other = completion(text(441))
    (first_status, first), (status, answer) = both(pair.prefill, pair.decode, COMPLETIONS, other)
    assert first_status in (200, 503), first
    assert status == 200, answer
    assert outcome(answer) == expected(pair, other)
    pair.store.start()
    pair.store.wait()
    eventually(lambda: hands_over(pair, 442), "hand-offs cross again", SECONDS)
    pair.assert_serves()


def test_a_prefill_that_is_killed(pair: Pair) -> None:
    """Decode computes by itself, for those that wait and for those that come. Last, since it takes a start."""
    number, body = room(), completion("0123456789" * 90)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(pair.decode.post, COMPLETIONS, in_room(body, number))
        eventually(lambda: pair.store.waiters() >= 1, "decode waits", SECONDS)
        with PrefillClient(pair.store.target) as client:
            client.reserve(number, lease=2.0)  # what a killed prefill leaves behind
        pair.prefill.kill()
        status, answer = waiting.result(ANSWER_SECONDS)
    assert status == 200, answer
    assert outcome(answer) == expected(pair, body)
    assert pair.decode.alive
    pair.prefill.start()
    pair.prefill.wait()
    eventually(lambda: hands_over(pair, 451), "hand-offs cross again", 120)
