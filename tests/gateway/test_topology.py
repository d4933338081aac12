"""What a client says about the engines: nothing but the room gets through."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import pytest
from pd_handoff.gateway import Room
from pd_handoff.gateway.topology import room_of

from tests.gateway.conftest import Serve
from tests.gateway.engine import Engine
from tests.support.waits import PATIENCE

TOPOLOGY = {
    "do_remote_prefill": True,
    "do_remote_decode": True,
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_engine_id": "e",
    "remote_block_ids": [[1, 2]],
    "remote_request_id": "r",
    "remote_bootstrap_addr": "http://10.0.0.1:1",
    "tp_size": 8,
    "transfer_id": "x",
}
PROMPT = {"model": "m", "prompt": "hi"}


@pytest.mark.parametrize("role", ["front", "prefill", "decode"])
def test_a_clients_topology_never_arrives(serve: Serve, engine: Engine, role: str) -> None:
    body = {**PROMPT, "kv_transfer_params": TOPOLOGY, "ec_transfer_params": {"remote_host": "h"}}
    assert serve(engine.app, role=role).http.post("/v1/completions", json=body).status_code == 200
    assert engine.bodies == [PROMPT]
    assert engine.scopes[0]["pd_handoff.rooms"] == ()


@pytest.mark.parametrize("given", [True, [TOPOLOGY], "text", 7, None, {}])
def test_nor_does_it_in_another_shape(serve: Serve, engine: Engine, given: Any) -> None:
    serve(engine.app).http.post("/v1/completions", json={**PROMPT, "kv_transfer_params": given})
    assert engine.bodies == [PROMPT]


NESTED: list[dict[str, Any]] = [
    {"vllm_xargs": {"kv_transfer_params": TOPOLOGY, "kept": 1}},
    {"sampling_params": {"extra_args": {"kv_transfer_params": TOPOLOGY}, "kept": 1}},
    {"extra_body": {"kv_transfer_params": TOPOLOGY, "vllm_xargs": {"kv_transfer_params": TOPOLOGY}}, "kept": 1},
    {"instances": [{"kv_transfer_params": TOPOLOGY}, {"kept": 1}]},
    {"parameters": {"ec_transfer_params": TOPOLOGY, "kept": 1}},
]


@pytest.mark.parametrize("nested", NESTED)
def test_nor_does_it_nested(serve: Serve, engine: Engine, nested: dict[str, Any]) -> None:
    serve(engine.app).http.post("/v1/completions", json={**PROMPT, **nested})
    assert b"remote" not in engine.seen[0]
    assert b"transfer_params" not in engine.seen[0]
    assert b"kept" in engine.seen[0]


def test_a_text_that_speaks_of_it_stays(serve: Serve, engine: Engine) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": 'set "kv_transfer_params" \U0001f600 \u4f60'}]}
    serve(engine.app).http.post("/v1/chat/completions", json=body)
    assert engine.bodies == [body]


ROOMS = [
    ({"room": "17"}, {"room": "17"}, Room(17)),
    ({"room": 17}, {"room": "17"}, Room(17)),
    ({"room": "0"}, {"room": "0"}, Room(0)),
    ({"room": str(2**64 - 1)}, {"room": str(2**64 - 1)}, Room(2**64 - 1)),
    (
        {"room": "17", "attempt": 3, "sample": 2, "remote_host": "h"},
        {"room": "17", "sample": 2, "attempt": 3},
        Room(17, 2, 3),
    ),
]


@pytest.mark.parametrize(("handoff", "arrives", "room"), ROOMS)
def test_the_room_alone_stays(serve: Serve, engine: Engine, handoff: Any, arrives: Any, room: Room) -> None:
    body = {**PROMPT, "kv_transfer_params": {**TOPOLOGY, "handoff": handoff}}
    assert serve(engine.app).http.post("/v1/completions", json=body).status_code == 200
    assert engine.bodies == [{**PROMPT, "kv_transfer_params": {"handoff": arrives}}]
    assert engine.scopes[0]["pd_handoff.rooms"] == (room,)


BAD_ROOMS = [
    ({"room": "-1"}, "room"),
    ({"room": str(2**64)}, "room"),
    ({"room": 1.5}, "room"),
    ({"room": True}, "room"),
    ({"room": "9" * 5000}, "room"),
    ({"room": "1", "attempt": "x"}, "attempt"),
    ({"room": "1", "sample": 2**32}, "sample"),
    ({}, "room"),
    ("17", None),
]


@pytest.mark.parametrize(("handoff", "part"), BAD_ROOMS)
def test_a_room_that_is_none_is_refused(serve: Serve, engine: Engine, handoff: Any, part: str | None) -> None:
    body = {**PROMPT, "kv_transfer_params": {"handoff": handoff}}
    answer = serve(engine.app).http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_room")
    assert answer.json()["error"]["param"] == "kv_transfer_params.handoff" + (f".{part}" if part else "")
    assert engine.seen == []


def test_a_request_id_makes_a_room_only_where_that_is_wanted(serve: Serve, engine: Engine) -> None:
    asks = {**PROMPT, "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "h"}}
    opted, plain = serve(engine.app, room_from_request_id=True), serve()
    headers = {"x-request-id": "abc"}
    opted.http.post("/v1/completions", json=asks, headers=headers)
    opted.http.post("/v1/completions", json=PROMPT, headers=headers)
    opted.http.post("/v1/completions", json=asks)
    assert plain.http.post("/v1/completions", json=asks, headers=headers).status_code == 200
    handoff = {"handoff": {"room": str(room_of("abc"))}}
    assert engine.bodies == [{**PROMPT, "kv_transfer_params": handoff}, PROMPT, PROMPT]


@pytest.mark.parametrize(
    ("role", "bootstrap", "stays"),
    [("front", None, False), ("decode", None, True), ("prefill", None, True), ("decode", "strip", False)],
)
def test_sglangs_addresses(serve: Serve, engine: Engine, role: str, bootstrap: str | None, stays: bool) -> None:
    addresses = {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998}
    room = {"text": "hi", "bootstrap_room": 2**63 + 5}
    server = serve(engine.app, role=role, bootstrap=bootstrap, target="unix:/nonexistent/store")
    assert server.http.post("/generate", json={**room, **addresses}).status_code == 200
    assert engine.bodies == [{**room, **(addresses if stays else {})}]
    assert engine.scopes[0]["pd_handoff.rooms"] == (Room(2**63 + 5),)


def test_addresses_in_a_request_id_do_not_arrive(serve: Serve, engine: Engine) -> None:
    mark = "x___prefill_addr_10.0.0.1:1___decode_addr_10.0.0.2:2"
    body = {**PROMPT, "request_id": mark}
    server = serve(engine.app)
    server.http.post("/v1/completions", json=body, headers={"X-Request-Id": mark})
    server.http.post("/v1/completions", json=PROMPT, headers={"X-Request-Id": "mine"})
    assert engine.bodies == [PROMPT, PROMPT]
    ids = [dict(scope["headers"]).get(b"x-request-id") for scope in engine.scopes]
    assert ids == [None, b"mine"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_of_any_size_are_read_as_one_body(serve: Serve, engine: Engine, size: int) -> None:
    raw = json.dumps({**PROMPT, "kv_transfer_params": {**TOPOLOGY, "handoff": {"room": "5"}}}).encode()
    pieces = (raw[at : at + size] for at in range(0, len(raw), size))
    answer = serve(engine.app).http.post("/v1/completions", content=pieces)
    assert answer.request.headers["transfer-encoding"] == "chunked"
    assert engine.bodies == [{**PROMPT, "kv_transfer_params": {"handoff": {"room": "5"}}}]


def test_a_large_body_is_cleaned_too(serve: Serve, engine: Engine) -> None:
    body = {"model": "m", "prompt": "x" * (20 << 20), "kv_transfer_params": TOPOLOGY}
    assert serve(engine.app).http.post("/v1/completions", json=body).status_code == 200
    assert engine.bodies == [{"model": "m", "prompt": body["prompt"]}]


def test_a_body_of_another_type_is_cleaned_too(serve: Serve, engine: Engine) -> None:
    raw = json.dumps({**PROMPT, "kv_transfer_params": TOPOLOGY}).encode()
    serve(engine.app).http.post("/v1/completions", content=raw, headers={"content-type": "text/plain"})
    assert engine.bodies == [PROMPT]


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "x"])
def test_an_encoded_body_is_refused(serve: Serve, engine: Engine, encoding: str) -> None:
    raw = gzip.compress(json.dumps({**PROMPT, "kv_transfer_params": TOPOLOGY}).encode())
    answer = serve(engine.app).http.post("/v1/completions", content=raw, headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_content_encoding")
    assert engine.seen == []


def test_identity_is_no_encoding(serve: Serve, engine: Engine) -> None:
    server = serve(engine.app)
    server.http.post("/v1/completions", json=PROMPT, headers={"content-encoding": "identity"})
    assert engine.bodies == [PROMPT]


UNREADABLE = [
    b'{"kv_transfer_params": {"do_remote_prefill": true}',
    b'["kv_transfer_params"]',
    b'"kv_transfer_params"',
    b'{"top_logprobs": ' + b"9" * 5000 + b"}",
    b'{"a": ' + b"[" * 100_000 + b', "kv_transfer_params": 1}',
    b'{"a": "\\ud8"}',
    b"\xff\xfekv_transfer_params",
]


@pytest.mark.parametrize("raw", UNREADABLE)
def test_what_cannot_be_read_and_might_matter_goes_no_further(serve: Serve, engine: Engine, raw: bytes) -> None:
    answer = serve(engine.app).http.post("/v1/completions", content=raw)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert engine.seen == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\x80abc", b'{"prompt": "hi"', b'{"a": 1}  x'])
def test_other_malformed_bodies_reach_the_engine_unchanged(serve: Serve, engine: Engine, raw: bytes) -> None:
    serve(engine.app).http.post("/v1/completions", content=raw)
    assert engine.seen == [raw]


def test_a_body_in_which_nothing_changes_arrives_byte_by_byte(serve: Serve, engine: Engine) -> None:
    raw = b'{ "model":"m",  "prompt": "\\u4f60", "logprobs": 1e0, "x": 1.10 }'
    serve(engine.app).http.post("/v1/completions", content=raw)
    assert engine.seen == [raw]


def test_values_survive_a_body_that_is_written_anew(serve: Serve, engine: Engine) -> None:
    kept = {"a": 2**70, "b": 0.1, "c": -0.0, "d": "\ud800 é \u0000", "e": [None, True], "f": 1e-320}
    raw = json.dumps({**kept, "kv_transfer_params": TOPOLOGY}).encode()
    serve(engine.app).http.post("/v1/completions", content=raw)
    assert repr(engine.bodies) == repr([kept])


def test_too_large_a_body_is_refused(serve: Serve, engine: Engine) -> None:
    server = serve(engine.app, max_body_bytes=100)
    for content in (b"x" * 101, iter([b"x" * 60, b"x" * 60])):
        answer = httpx2.post(f"{server.url}/v1/completions", content=content, timeout=PATIENCE, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert server.http.post("/v1/completions", content=b"x" * 100).status_code == 400  # from the engine
    assert engine.seen == [b"x" * 100]


def test_too_much_of_all_bodies_is_overload(serve: Serve, servers: Any, engine: Engine) -> None:
    server = serve(engine.app, max_body_bytes=1000, max_buffered_bytes=1000)
    body = json.dumps({**PROMPT, "hold": True, "x": "x" * 500}).encode()
    with httpx2.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:

        def others() -> Any:
            yield body[:600]
            answer = server.http.post("/v1/completions", content=b'{"x": "' + b"x" * 600 + b'"}')
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "overloaded"
            servers.run(_release(engine))
            yield body[600:]

        assert client.post("/v1/completions", content=others()).status_code == 200
    assert server.http.post("/v1/completions", json={**PROMPT, "x": "x" * 600}).status_code == 200


async def _release(engine: Engine) -> None:
    engine.release.set()
