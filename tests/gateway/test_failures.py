"""A prefill that fails, and what the user of decode sees of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from pd_handoff import DecodeClient, Failure, HandoffAborted, HandoffNotFound, Key, PrefillClient, Record, Token
from pd_handoff.admin import HandoffState
from pd_handoff.client import AdminClient

from tests.gateway.conftest import Serve, Server
from tests.gateway.engine import Engine
from tests.support.process import ProcessStore
from tests.support.waits import PATIENCE, eventually

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def prefill_client(store: ProcessStore) -> Iterator[PrefillClient]:
    with PrefillClient(store.target) as client:
        yield client


@pytest.fixture
def decode_client(store: ProcessStore) -> Iterator[DecodeClient]:
    with DecodeClient(store.target) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def _body(room: int, **more: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "kv_transfer_params": {"handoff": {"room": str(room)}}, **more}


def _post(server: Server, body: dict[str, Any], path: str = "/v1/chat/completions") -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=PATIENCE, trust_env=False)


REFUSALS = [
    # what the engine of prefill answers, in the forms of vLLM, OpenAI, SGLang and FastAPI -> status, code, message
    (400, {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, "prefill_refused", "too long"),
    (400, {"error": {"message": "long", "code": "context_length_exceeded"}}, "context_length_exceeded", "long"),
    (400, {"object": "error", "message": "no such", "code": 400}, "prefill_refused", "no such"),
    (422, {"detail": [{"loc": ["body"]}]}, "prefill_refused", '[{"loc": ["body"]}]'),
    (500, {"error": "it broke"}, "prefill_refused", "it broke"),
    (503, {"error": {"message": "busy", "code": "overloaded"}}, "overloaded", "busy"),
]


@pytest.mark.parametrize(("status", "body", "code", "message"), REFUSALS)
def test_prefills_refusal_reaches_decodes_user(
    serve: Serve, room: int, pool: ThreadPoolExecutor, status: int, body: Any, code: str, message: str
) -> None:
    engine = Engine()
    prefill, decode = serve(role="prefill"), serve(engine.app, role="decode")
    waiting = pool.submit(_post, decode, _body(room, hold=True))
    eventually(lambda: len(engine.seen) == 1, "decode has the request")
    refused = _post(prefill, _body(room, fail={"status": status, "body": body}))
    assert (refused.status_code, refused.json()) == (status, body)
    answer = waiting.result(PATIENCE)
    assert answer.status_code == status
    assert answer.json()["error"] | {"type": ""} == {"message": message, "type": "", "param": None, "code": code}
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
    eventually(lambda: engine.disconnects == 1, "the engine saw its client leave")


def test_the_gateways_own_refusal_reaches_decodes_user(serve: Serve, room: int, pool: ThreadPoolExecutor) -> None:
    prefill, decode = serve(role="prefill"), serve(role="decode")
    waiting = pool.submit(_post, decode, _body(room, hold=True))
    refused = _post(prefill, _body(room, logprobs=True, top_logprobs=9))
    answer = waiting.result(PATIENCE)
    assert refused.status_code == answer.status_code == 400
    assert answer.json()["error"]["message"] == refused.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "top_logprobs_overflow"


def test_prefill_may_fail_before_decode_comes(serve: Serve, room: int) -> None:
    prefill, decode = serve(role="prefill"), serve(role="decode")
    body = {"error": {"message": "too long", "code": "too_long"}}
    assert _post(prefill, _body(room, fail={"status": 400, "body": body})).status_code == 400
    with pytest.raises(openai.BadRequestError) as refused:
        decode.openai().chat.completions.create(model="m", messages=MESSAGES, extra_body=_body(room, hold=True))
    assert refused.value.code == "too_long"
    assert "too long" in refused.value.message


def test_a_stream_that_has_not_begun_gets_the_status_too(serve: Serve, room: int, pool: ThreadPoolExecutor) -> None:
    engine = Engine()
    decode = serve(engine.app, role="decode")
    waiting = pool.submit(_post, decode, _body(room, stream=True, hold_stream=True))
    eventually(lambda: len(engine.seen) == 1, "decode has the request")
    _post(serve(role="prefill"), _body(room, fail={"status": 429, "body": {"error": {"message": "slow down"}}}))
    answer = waiting.result(PATIENCE)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_an_abort_by_the_client_reaches_decodes_user(
    serve: Serve, room: int, pool: ThreadPoolExecutor, prefill_client: PrefillClient
) -> None:
    waiting = pool.submit(_post, serve(role="decode"), _body(room, hold=True))
    prefill_client.reserve(room)
    prefill_client.abort(room, Failure(418, "TEAPOT", "no coffee"))
    answer = waiting.result(PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (418, "teapot")


def test_a_status_that_is_no_error_becomes_502(serve: Serve, room: int, prefill_client: PrefillClient) -> None:
    prefill_client.abort(room, Failure(200, "ODD", ""), attempt=0)
    answer = _post(serve(role="decode"), _body(room, hold=True))
    assert (answer.status_code, answer.json()["error"]["message"]) == (502, "aborted: ODD")


def test_where_decode_is_to_compute_by_itself_its_answer_counts(
    serve: Serve, room: int, prefill_client: PrefillClient
) -> None:
    prefill_client.abort(room, Failure(200, "COMPUTE_LOCALLY", "prefill shut down"), attempt=0)
    assert _post(serve(role="decode"), _body(room)).status_code == 200


def test_of_a_batch_the_first_failure_counts(
    serve: Serve, room: int, pool: ThreadPoolExecutor, prefill_client: PrefillClient
) -> None:
    rooms = [room, room + 500_000]
    body = {"text": ["a", "b"], "bootstrap_room": rooms, "bootstrap_host": ["h", "h"], "hold": True}
    waiting = pool.submit(_post, serve(role="decode"), body, "/generate")
    prefill_client.abort(rooms[1], Failure(400, "TOO_LONG", "long"), attempt=0)
    assert waiting.result(PATIENCE).json()["error"]["code"] == "too_long"


def test_a_published_hand_off_is_served(serve: Serve, engine: Engine, room: int, prefill_client: PrefillClient) -> None:
    prefill_client.put_once(room, Record(tokens=[Token(1)]))
    server = serve(engine.app, role="decode")
    answer = server.openai().chat.completions.create(model="m", messages=MESSAGES, extra_body=_body(room))
    assert answer.choices[0].message.content == "abc"


def test_a_response_that_has_begun_goes_on(
    serve: Serve, room: int, servers: Any, prefill_client: PrefillClient
) -> None:
    engine = Engine()
    decode = serve(engine.app, role="decode")
    with httpx2.Client(base_url=decode.url, timeout=PATIENCE, trust_env=False) as client:
        body = _body(room, stream=True, hold_after=1)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts = answer.iter_bytes()
            first = next(parts)
            prefill_client.abort(room, Failure(400, "LATE", ""), attempt=0)
            servers.run(_set(engine))
            rest = b"".join(parts)
    assert answer.status_code == 200
    assert (first + rest).endswith(b"data: [DONE]\n\n")


async def _set(engine: Engine) -> None:
    engine.release.set()


def test_a_room_in_use_is_left_alone(
    serve: Serve, room: int, prefill_client: PrefillClient, decode_client: DecodeClient
) -> None:
    reservation = prefill_client.reserve(room)
    fail = {"status": 409, "body": {"error": {"message": "this room is in use"}}}
    assert _post(serve(role="prefill"), _body(room, fail=fail)).status_code == 409
    prefill_client.put(reservation, Record(tokens=[Token(7)]))
    assert _post(serve(role="prefill"), _body(room, fail=fail)).status_code == 409
    assert decode_client.get(room).record.tokens[0].token_id == 7


def test_an_engine_that_breaks_is_reported(serve: Serve, room: int, decode_client: DecodeClient) -> None:
    answer = _post(serve(role="prefill"), _body(room, **{"raise": True}))
    assert answer.status_code == 500
    with pytest.raises(HandoffAborted) as aborted:
        decode_client.get(room, max_wait=PATIENCE)
    assert aborted.value.failure == Failure(500, "PREFILL_FAILED", "prefill failed: RuntimeError")


@pytest.mark.parametrize("role", ["front", "decode"])
def test_only_prefill_reports(serve: Serve, store: ProcessStore, room: int, role: str) -> None:
    body = _body(room, fail={"status": 400, "body": {}})
    assert _post(serve(role=role), body).status_code == 400
    with AdminClient(store.target) as admin, pytest.raises(HandoffNotFound):
        admin.get_handoff(room)


def test_attempts_are_kept_apart(serve: Serve, room: int, decode_client: DecodeClient) -> None:
    body = _body(room, fail={"status": 400, "body": {}})
    body["kv_transfer_params"]["handoff"] |= {"attempt": 1, "sample": 2}
    assert _post(serve(role="prefill"), body).status_code == 400
    with pytest.raises(HandoffAborted):  # which the store may learn after the user has prefill's answer
        decode_client.get(Key(room, sample=2), attempt=1, max_wait=PATIENCE)
    with pytest.raises(HandoffNotFound):
        decode_client.get(Key(room, sample=2), attempt=2)
    with pytest.raises(HandoffNotFound):
        decode_client.get(room)


def test_nothing_is_left_in_the_store(serve: Serve, store: ProcessStore, room: int) -> None:
    _post(serve(role="prefill"), _body(room))
    with AdminClient(store.target) as admin:
        assert [info for info in admin.list_handoffs(states=[HandoffState.RESERVED]) if info.key.room == room] == []


def test_decode_is_left_to_its_engine_when_the_store_is_away(serve: Serve, engine: Engine, room: int) -> None:
    server = serve(engine.app, role="decode", target="unix:/nonexistent/store")
    answer = _post(server, _body(room))
    assert (answer.status_code, json.loads(engine.seen[0])["kv_transfer_params"]) == (
        200,
        {"handoff": {"room": str(room)}},
    )
