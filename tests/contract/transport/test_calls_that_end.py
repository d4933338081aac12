"""Unary calls on the serving thread, carried out together: each has its own answer, and nothing is left of any."""

from __future__ import annotations

import random
from typing import Any

import grpc
import pytest
from pd_handoff.v1 import metadata_store_pb2 as pb
from pd_handoff_server.lifecycle import Failure

from tests.support import records, requests
from tests.support.local import LocalStore
from tests.support.waits import PATIENCE, at_once, eventually

SERVICE = "/pd_handoff.v1.MetadataStore/"
FAILURE = Failure(500, "OVER", "")

pytestmark = [pytest.mark.internals, pytest.mark.parametrize("transport", ["fast"]), pytest.mark.settings(slots=128)]


def method(store: LocalStore, name: str) -> Any:
    """A unary method, serialized messages in and out, over a connection of its own."""
    return store.channel().unary_unary(SERVICE + name)


def test_each_has_its_own_answer(store: LocalStore) -> None:
    put, get = method(store, "Put"), method(store, "Get")
    for turn in range(3):
        rooms = range(turn * 100, turn * 100 + 100)
        puts = [requests.put_once(room, records.numbered(room)) for room in rooms]
        answers = [put.future(one.SerializeToString(), timeout=PATIENCE) for one in puts]
        for answer in answers:
            pb.PutResponse.FromString(answer.result())
        gets = [requests.get(room, reader="r") for room in (*rooms, *(room + 10_000 for room in rooms))]
        answers = [get.future(one.SerializeToString(), timeout=PATIENCE) for one in gets]
        for room, answer in zip(rooms, answers, strict=False):
            assert pb.GetResponse.FromString(answer.result()).record == records.numbered(room)
        assert {answer.code() for answer in answers[100:]} == {grpc.StatusCode.NOT_FOUND}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_calls_that_end_in_whatever_way(store: LocalStore, seed: int) -> None:
    chance = random.Random(seed)
    put, get = method(store, "Put"), method(store, "Get")
    for turn in range(30):
        waiting, begun = [], []
        for number in range(chance.choice([1, 2, 80])):
            room = turn * 1000 + number
            wait = requests.get(room, max_wait=300).SerializeToString()
            kind = chance.choice(["answered", "cancelled", "given up", "refused"])
            if kind == "answered":
                waiting.append((room, get.future(wait, timeout=PATIENCE)))
            elif kind == "cancelled":
                begun.append(get.future(wait, timeout=PATIENCE))
            elif kind == "given up":
                begun.append(get.future(wait, timeout=chance.choice([0.001, 0.01])))
            else:
                begun.append(get.future(b"\xff", timeout=PATIENCE))
        for call in begun:
            call.cancel()
        for room, _ in waiting[:40]:
            one = requests.put_once(room, records.numbered(room))
            begun.append(put.future(one.SerializeToString(), timeout=PATIENCE))
            begun.append(put.future(b"", timeout=PATIENCE))
        for room, call in waiting[:40]:
            assert pb.GetResponse.FromString(call.result()).record == records.numbered(room)
            store.core.abort(("", room, 0), FAILURE, b"", None, at_once)
        for _, call in waiting[40:]:
            call.cancel()
    server: Any = store.app.server
    eventually(lambda: not server._loop.alive(), "no call is left")
    assert store.waiting == 0
    assert server._front.unread.held == 0
    assert store.core.census().waiting_bytes == 0
