"""A side, a user or the store goes: what depends on it ends with a status and words, the rest goes on."""

from __future__ import annotations

import json
import signal
import urllib.request
from typing import Any

import pytest
from pd_handoff import PrefillClient

from tests.sglang_pair.calls import at_once, in_room, new_room, pair, post, undivided
from tests.sglang_pair.servers import DECODE, PREFILL, TARGET, Server
from tests.sglang_pair.test_equality import generate
from tests.support.waits import eventually

pytestmark = pytest.mark.whole
PATIENCE = 120.0


def back(deployment: dict[str, Server]) -> None:
    """The pair hands over again."""
    body = generate("hello", 5)
    wanted = undivided(body).body["output_ids"]

    def holds() -> bool:
        both = pair(body, timeout=30.0)
        return both.statuses == (200, 200) and both.decode.body["output_ids"] == wanted

    eventually(holds, "the pair hands over again", PATIENCE)


def test_a_user_leaves_amid_a_stream(deployment: dict[str, Server]) -> None:
    body = in_room({**generate("hello", 0, params={"max_new_tokens": 400}), "stream": True}, new_room())

    def leaves() -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{DECODE}/generate", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.readline()

    at_once(lambda: post(PREFILL, {**body, "stream": False}), leaves)
    back(deployment)


def test_a_full_store(deployment: dict[str, Server]) -> None:
    with PrefillClient(TARGET) as other:
        held = [other.reserve(1 << 50 | number, owner="another", lease=60.0) for number in range(64)]
        both = pair(generate("hello", 0))
        assert both.statuses == (503, 503), both
        for one in held:
            other.release(one)
    back(deployment)


def test_a_stopped_store(deployment: dict[str, Server]) -> None:
    store = deployment["store"]
    store.signal(signal.SIGSTOP)
    try:
        both = pair(generate("hello", 0), timeout=40.0)  # decode hears by the KV connection, not when the store is back
        assert all(status in (503, 504) for status in both.statuses), both
    finally:
        store.signal(signal.SIGCONT)
    back(deployment)


def test_a_restarted_store(deployment: dict[str, Server]) -> None:
    store = deployment["store"]
    store.stop()
    store.start()
    store.wait()
    back(deployment)


def test_prefills_tokenizer_alone_rejects(deployment: dict[str, Server]) -> None:
    body = in_room(generate("hello", 0), new_room())
    wrong = {**body, "text": None, "input_ids": [1] * 5000}  # longer than the model's context
    prefill, decode = at_once(lambda: post(PREFILL, wrong), lambda: post(DECODE, body, timeout=40.0))
    assert prefill.status == 400
    assert decode.status == 400, decode


def test_a_killed_prefill(deployment: dict[str, Server]) -> None:
    prefill = deployment["prefill"]
    prefill.signal(signal.SIGKILL)
    prefill.stop()
    answer = post(DECODE, in_room(generate("hello", 0), new_room()), timeout=150.0)
    assert answer.status >= 500, answer
    prefill.start()
    prefill.wait()
    back(deployment)
