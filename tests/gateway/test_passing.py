"""What passes through untouched, and how the gateway lives with its server and its stores."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pd_handoff import ArenaFull, Failure, HandoffAborted
from pd_handoff.gateway import Gateway
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from websockets.sync.client import connect

from tests.gateway.conftest import LIMIT, Serve
from tests.gateway.engine import Engine
from tests.support.local import Loop
from tests.support.process import ProcessStore
from tests.support.waits import PATIENCE, eventually

OVER = {"messages": [], "logprobs": True, "top_logprobs": LIMIT + 1}
CHAT = "/v1/chat/completions"


def test_a_stream_is_the_engines_own_chunk_by_chunk(serve: Serve, engine: Engine, servers: Loop) -> None:
    server = serve(engine.app)
    stream = server.openai().chat.completions.create(model="m", messages=[], stream=True, extra_body={"hold_after": 1})
    texts = iter(chunk.choices[0].delta.content for chunk in stream)
    assert next(texts) == "a"  # before the engine has made the rest
    servers.run(_set(engine.release))
    assert list(texts) == ["b", "c"]


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_messages_of_a_response_are_passed_on_as_they_are(serve: Serve, servers: Loop, store: ProcessStore) -> None:
    sent: list[Any] = []
    messages: list[dict[str, Any]] = [
        {"type": "http.response.start", "status": 200, "headers": [(b"x", b"1")], "trailers": True},
        {"type": "http.response.body", "body": b"", "more_body": True},
        {"type": "http.response.body", "body": b"ab", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False},
        {"type": "http.response.trailers", "headers": []},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    servers.run(_call(Gateway(app, target=store.target), b"{}", send))
    assert all(one is other for one, other in zip(sent, messages, strict=True))


def test_back_pressure_reaches_the_engine(servers: Loop, store: ProcessStore) -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1

    async def check() -> None:
        gate = asyncio.Event()

        async def slow(message: Any) -> None:
            if message["type"] == "http.response.body":
                await gate.wait()

        for role in ("front", "decode"):
            nonlocal sent
            sent = 0
            gate.clear()
            body = b'{"kv_transfer_params": {"handoff": {"room": "999"}}}'
            call = asyncio.ensure_future(_call(Gateway(app, target=store.target, role=role), body, slow))
            for _ in range(50):
                await asyncio.sleep(0)
            assert sent == 0
            gate.set()
            await call
            assert sent == 3

    servers.run(check())


async def _call(gateway: Gateway, body: bytes, send: Any) -> None:
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    never = asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await never.wait()
        return None

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "root_path": ""}
    try:
        await gateway(scope, receive, send)
    finally:
        await gateway.close()


@pytest.mark.parametrize("role", ["front", "prefill", "decode"])
def test_a_client_that_leaves_is_seen_by_the_engine(serve: Serve, engine: Engine, room: int, role: str) -> None:
    server = serve(engine.app, role=role)
    body = {"hold": True, "kv_transfer_params": {"handoff": {"room": str(room)}}}
    client = httpx2.Client(base_url=server.url, trust_env=False)
    with pytest.raises(httpx2.ReadTimeout):
        client.post(CHAT, json=body, timeout=httpx2.Timeout(PATIENCE, read=1.0))
    client.close()
    eventually(lambda: engine.disconnects == 1, "the engine saw its client leave")


def test_a_client_that_leaves_in_its_request_never_reaches_the_engine(serve: Serve, engine: Engine) -> None:
    server = serve(engine.app)

    def broken() -> Any:
        yield b'{"model"'
        raise ConnectionError

    with pytest.raises(ConnectionError):
        httpx2.post(server.url + CHAT, content=broken(), trust_env=False)
    assert server.http.post(CHAT, json={"a": 1}).status_code == 200
    assert engine.bodies == [{"a": 1}]


def test_a_websocket_passes(serve: Serve) -> None:
    server = serve()
    with connect(server.url.replace("http", "ws") + "/v1/realtime") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"


def test_the_servers_own_lifespan_runs(serve: Serve, servers: Loop) -> None:
    ran = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ran.append("start")
        yield
        ran.append("stop")

    before = servers.run(_tasks())
    server = serve(FastAPI(lifespan=lifespan))
    assert ran == ["start"]
    assert len(servers.run(_tasks())) == len(before) + 1
    server.close()
    assert ran == ["start", "stop"]
    assert servers.run(_tasks()) == before


async def _tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "limits of" in task.get_name()]


def test_starlette_and_a_mounted_app(serve: Serve) -> None:
    seen: list[Any] = []

    async def chat(request: Request) -> JSONResponse:
        seen.append(await request.json())
        return JSONResponse({})

    inner = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    server = serve(Starlette(routes=[Mount("/inner", inner)]))
    assert server.http.post("/inner" + CHAT, json=OVER).status_code == 400
    assert server.http.post("/inner" + CHAT, json={"kv_transfer_params": {"x": 1}}).status_code == 200
    assert seen == [{}]


def test_models_show_the_limit(serve: Serve) -> None:
    server = serve()
    model = server.openai().models.list().data[0]
    assert model.id == "m"
    assert model.max_top_logprobs == LIMIT  # type: ignore[attr-defined]
    assert server.http.get("/v1/models", headers={"accept-encoding": "gzip"}).json()["data"][0]["owned_by"] == "us"


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'{"data": 3}', b'{"data": ["x"]}'])
def test_another_list_of_models_passes(serve: Serve, body: bytes) -> None:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> Any:
        return Response(body, media_type="application/json")

    answer = serve(app).http.get("/v1/models")
    assert (answer.status_code, answer.content.replace(b" ", b"")) == (200, body.replace(b" ", b""))


def test_one_model_shows_the_limit(serve: Serve) -> None:
    app = FastAPI()

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Any:
        return {"id": name, "object": "model"}

    assert serve(app).http.get("/v1/models/x").json() == {"id": "x", "object": "model", "max_top_logprobs": LIMIT}


def test_errors_of_a_proxy_that_talks_to_the_store(serve: Serve) -> None:
    app = FastAPI()

    @app.post(CHAT)
    async def chat(request: Request) -> None:
        if (await request.json()).get("full"):
            raise ArenaFull("no free slot", retry_after=2.5)
        raise HandoffAborted("too long", metadata={"http_status": "400", "failure_reason": "TOO_LONG"})

    server = serve(app)
    full = server.http.post(CHAT, json={"full": True})
    assert (full.status_code, full.headers["retry-after"]) == (503, "3")
    assert full.json()["error"] == {
        "message": "no free slot",
        "type": "server_error",
        "param": None,
        "code": "arena_full",
    }
    aborted = server.http.post(CHAT, json={})
    assert (aborted.status_code, aborted.json()["error"]["code"]) == (400, "too_long")
    assert Failure(400, "TOO_LONG", "too long").http_status == 400


def test_no_request_waits_for_a_store(serve: Serve, engine: Engine, launch: Any, sockets: Any) -> None:
    """A store that never answered: what asks for logprobs is refused at once, all else is served; then it comes."""
    where = f"unix:{sockets}/late"
    server = serve(engine.app, target=where)
    refused = server.http.post(CHAT, json={**OVER, "top_logprobs": 1})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "server_error",
        "param": "top_logprobs",
        "code": "limits_unknown",
    }
    assert server.http.post(CHAT, json={"logprobs": True, "top_logprobs": 0}).status_code == 200
    assert server.http.get("/v1/models").json()["data"][0].get("max_top_logprobs") is None
    launch(where, max_top_logprobs=5)
    eventually(lambda: _status(server.http, 5) == 200, "the limit is known")
    assert _status(server.http, 6) == 400


def _status(http: httpx2.Client, count: int) -> int:
    return http.post(CHAT, json={**OVER, "top_logprobs": count}).status_code


def test_the_last_known_limit_is_served_while_the_store_is_away_and_refreshed_when_it_is_back(
    serve: Serve, engine: Engine, launch: Any, sockets: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pd_handoff.gateway")
    where = f"unix:{sockets}/away"
    first = launch(where, max_top_logprobs=5)
    server = serve(engine.app, target=where, refresh=0.05)
    assert (_status(server.http, 5), _status(server.http, 6)) == (200, 400)
    first.stop()
    eventually(lambda: "cannot be read" in caplog.text, "the gateway noticed")
    assert "5 top logprobs, known from before, are served" in caplog.text
    assert (_status(server.http, 5), _status(server.http, 6)) == (200, 400)
    launch(where, max_top_logprobs=7)
    eventually(lambda: _status(server.http, 6) == 200, "the new limit is known")
    assert _status(server.http, 8) == 400
    assert caplog.text.count("cannot be read") == 1


def test_of_several_stores_the_smallest_limit_counts(
    serve: Serve, engine: Engine, launch: Any, store: ProcessStore
) -> None:
    other = launch(max_top_logprobs=3)
    server = serve(engine.app, target=f"{store.target},{other.target}")
    assert (_status(server.http, 3), _status(server.http, 4)) == (200, 400)
    other.stop()
    assert (_status(server.http, 3), _status(server.http, 4)) == (200, 400)
    assert server.http.get("/v1/models").json()["data"][0]["max_top_logprobs"] == 3


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PD_HANDOFF_ROLE", "router", "PD_HANDOFF_ROLE must be one of decode, front, prefill, is 'router'"),
        ("PD_HANDOFF_ADMISSION", "drop", "PD_HANDOFF_ADMISSION must be one of clamp, reject"),
        ("PD_HANDOFF_TARGET", "a:1,b", "PD_HANDOFF_TARGET: target 'b'"),
        ("PD_HANDOFF_ENGINE_TOP_LOGPROBS", "-1", "PD_HANDOFF_ENGINE_TOP_LOGPROBS must be a whole number from 0"),
        ("PD_HANDOFF_MAX_BODY_BYTES", "0", "PD_HANDOFF_MAX_BODY_BYTES must be a whole number from 1"),
        ("PD_HANDOFF_MAX_BUFFERED_BYTES", "5", "PD_HANDOFF_MAX_BUFFERED_BYTES must be a whole number from"),
        ("PD_HANDOFF_LIMITS_REFRESH", "never", "PD_HANDOFF_LIMITS_REFRESH must be a positive number of seconds"),
        ("PD_HANDOFF_BOOTSTRAP", "x", "PD_HANDOFF_BOOTSTRAP must be one of keep, strip"),
        ("PD_HANDOFF_ROOM_FROM_REQUEST_ID", "maybe", "PD_HANDOFF_ROOM_FROM_REQUEST_ID must be yes or no"),
        ("PD_HANDOFF_BEARER_FILE", "/nonexistent", "PD_HANDOFF_BEARER_FILE: "),
        ("PD_HANDOFF_TLS_CA", "/nonexistent", "PD_HANDOFF_TLS_CA: "),
    ],
)
def test_a_bad_setting_ends_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        Gateway(_never)


def test_settings_come_from_the_environment_and_keywords_win(
    monkeypatch: pytest.MonkeyPatch, servers: Loop, store: ProcessStore, tmp_path: Any
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token-of-this-node\n")
    given = {
        "TARGET": store.target,
        "ROLE": "decode",
        "ADMISSION": "clamp",
        "ENGINE_TOP_LOGPROBS": "4",
        "MAX_BODY_BYTES": "1000",
        "MAX_BUFFERED_BYTES": "2000",
        "LIMITS_REFRESH": "2.5",
        "ROOM_FROM_REQUEST_ID": "yes",
        "BOOTSTRAP": "strip",
        "BEARER_FILE": str(token),
        "NAMESPACE": "llama",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"PD_HANDOFF_{name}", value)
    chosen = Gateway(_never).settings
    assert (chosen.targets, chosen.role, chosen.policy, chosen.engine_limit) == ((store.target,), "decode", "clamp", 4)
    assert (chosen.max_body_bytes, chosen.max_buffered_bytes, chosen.refresh) == (1000, 2000, 2.5)
    assert (chosen.room_from_request_id, chosen.bootstrap) == (True, "strip")
    assert chosen.connection["namespace"] == "llama"
    token_of: Callable[[], str] = chosen.connection["token"]
    assert token_of() == "secret-token-of-this-node"
    assert Gateway(_never, role="prefill", policy="reject", target="a:1").settings.role == "prefill"


async def _never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(json.dumps(str(scope)))
