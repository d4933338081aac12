"""Too many top logprobs, asked for by the clients that people use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.gateway.conftest import LIMIT, Serve, Server
from tests.gateway.engine import Engine

MESSAGES: Any = [{"role": "user", "content": "hi"}]
Ask = Callable[[openai.OpenAI, int], Any]


def _chat(client: openai.OpenAI, count: int) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, logprobs=True, top_logprobs=count)


def _completions(client: openai.OpenAI, count: int) -> Any:
    return client.completions.create(model="m", prompt="hi", logprobs=count)


def _responses(client: openai.OpenAI, count: int) -> Any:
    return client.responses.create(model="m", input="hi", top_logprobs=count)


def _prompt(client: openai.OpenAI, count: int) -> Any:
    return client.completions.create(model="m", prompt="hi", extra_body={"prompt_logprobs": count})


def _generate(client: openai.OpenAI, count: int) -> Any:
    body = {"text": "hi", "return_logprob": True, "top_logprobs_num": count}
    root = client.with_options(base_url=str(client.base_url).removesuffix("v1/"))
    return root.post("/generate", body=body, cast_to=object)


FIVE: dict[str, Ask] = {
    "top_logprobs": _chat,
    "logprobs": _completions,
    "top_logprobs of responses": _responses,
    "prompt_logprobs": _prompt,
    "top_logprobs_num": _generate,
}


@pytest.fixture(params=list(FIVE))
def field(request: pytest.FixtureRequest) -> tuple[str, Ask]:
    """Each of the five fields, and how it is asked for."""
    return str(request.param).split()[0], FIVE[request.param]


def test_the_limit_itself_is_served(serve: Serve, engine: Engine, field: tuple[str, Ask]) -> None:
    name, ask = field
    ask(serve(engine.app).openai(), LIMIT)
    assert engine.bodies[0][name] == LIMIT


@pytest.mark.parametrize("count", [LIMIT + 1, -1])
def test_more_is_refused_in_the_users_own_words(
    serve: Serve, engine: Engine, field: tuple[str, Ask], count: int
) -> None:
    name, ask = field
    with pytest.raises(openai.BadRequestError) as refused:
        ask(serve(engine.app).openai(), count)
    assert refused.value.status_code == 400
    assert refused.value.param == name
    assert refused.value.code == "top_logprobs_overflow"
    assert refused.value.type == "invalid_request_error"
    assert refused.value.body is not None
    message = refused.value.body["message"]  # type: ignore[index]
    assert message.startswith(f"{name} {count} ")
    assert f"exceeds disaggregation metadata capacity {LIMIT}; ask for at most {LIMIT}" in message.replace(
        " (the whole vocabulary)", ""
    )
    assert engine.seen == []


@pytest.mark.parametrize("count", [LIMIT + 1, 10_000, -1])
def test_more_is_clamped_where_that_is_the_policy(
    serve: Serve, engine: Engine, field: tuple[str, Ask], count: int
) -> None:
    name, ask = field
    ask(serve(engine.app, policy="clamp").openai(), count)
    assert engine.bodies[0][name] == LIMIT


def test_a_clamped_request_says_so(serve: Serve, engine: Engine) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 9, "prompt_logprobs": -1}
    answer = serve(engine.app, policy="clamp").http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-pd-handoff-clamped"] == "top_logprobs=9->8, prompt_logprobs=-1->8"
    assert engine.bodies[0] == {**body, "top_logprobs": 8, "prompt_logprobs": 8}


GENERATE = [
    ({"top_logprobs_num": [1, 8, 9], "return_logprob": True}, "top_logprobs_num[2]"),
    ({"top_logprobs_num": [9, 9, 1], "return_logprob": [False, True, True]}, "top_logprobs_num[1]"),
    ({"top_logprobs_num": [1, -1], "return_logprob": True}, "top_logprobs_num[1]"),
    ({"top_logprobs_num": 9, "return_logprob": [False, True]}, "top_logprobs_num"),
    ({"top_logprobs_num": [8, 8], "return_logprob": True}, None),
    ({"top_logprobs_num": [9, 9], "return_logprob": [False, False]}, None),
    ({"top_logprobs_num": 9}, None),
    ({"top_logprobs_num": 9, "return_logprob": False}, None),
]


@pytest.mark.parametrize(("body", "param"), GENERATE)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_sglangs_batches(serve: Serve, engine: Engine, body: dict[str, Any], param: str | None, method: str) -> None:
    answer = serve(engine.app).http.request(method, "/generate", json={"text": ["a", "b", "c"], **body})
    if param is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


def test_a_batch_is_clamped_item_by_item(serve: Serve, engine: Engine) -> None:
    body = {"text": ["a", "b", "c"], "return_logprob": True, "top_logprobs_num": [9, 3, -1]}
    answer = serve(engine.app, policy="clamp").http.post("/generate", json=body)
    assert engine.bodies[0]["top_logprobs_num"] == [8, 3, 8]
    assert answer.headers["x-pd-handoff-clamped"] == "top_logprobs_num[0]=9->8, top_logprobs_num[2]=-1->8"


DISGUISES = ["9", " 9 ", "9.0", 9.0, "-1", "1e3", [9]]


@pytest.mark.parametrize("value", DISGUISES)
def test_what_an_engine_would_read_as_a_number_is_one(serve: Serve, engine: Engine, value: Any) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": value}
    assert serve(engine.app).http.post("/v1/chat/completions", json=body).status_code == 400
    assert engine.seen == []


@pytest.mark.parametrize("value", ["many", {}, None, [], "nan", 0, "0", "8", False])
def test_what_is_no_number_is_left_to_the_engine(serve: Serve, engine: Engine, value: Any) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": value}
    assert serve(engine.app).http.post("/v1/chat/completions", json=body).status_code == 200
    assert engine.bodies == [body]


RAW = [
    b'{"logprobs": true, "\\u0074op_logprobs": 9}',
    b'{"logprobs": true, "top_logprobs": 1, "top_logprobs": 9}',
    '{"logprobs": true, "top_logprobs": 9}'.encode("utf-16"),
    '{"logprobs": true, "top_logprobs": 9}'.encode("utf-32-be"),
    b'\xef\xbb\xbf{"logprobs": true, "top_logprobs": 9}',
]


@pytest.mark.parametrize("raw", RAW)
def test_spelling_a_field_otherwise_is_no_way_around(serve: Serve, engine: Engine, raw: bytes) -> None:
    answer = serve(engine.app).http.post("/v1/chat/completions", content=raw)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")


def test_a_name_given_twice_reaches_the_engine_once(serve: Serve, engine: Engine) -> None:
    raw = b'{"logprobs": true, "top_logprobs": 9, "top_logprobs": 1}'
    assert serve(engine.app).http.post("/v1/chat/completions", content=raw).status_code == 200
    assert engine.seen == [b'{"logprobs":true,"top_logprobs":1}']


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/openai/deployments/x/chat/completions", {"logprobs": True, "top_logprobs": 9}, "top_logprobs"),
        ("/chat/completions", {"logprobs": True, "top_logprobs": 9}, "top_logprobs"),
        ("/inference/v1/generate", {"sampling_params": {"logprobs": 9}}, "sampling_params.logprobs"),
        ("/inference/v1/generate", {"sampling_params": {"prompt_logprobs": -1}}, "sampling_params.prompt_logprobs"),
        ("/invocations", {"logprobs": True, "top_logprobs": 9}, "top_logprobs"),
        ("/invocations", {"logprobs": 9}, "logprobs"),
        ("/vertex_generate", {"parameters": {"return_logprob": True, "top_logprobs_num": 9}}, None),
        ("/v1/completions", {"logprobs": 9, "echo": True}, "logprobs"),
    ],
)
def test_every_way_to_the_engine_is_guarded(serve: Serve, path: str, body: Any, param: str | None) -> None:
    answer = serve().http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == (param or "parameters.top_logprobs_num")


def test_a_mounted_app_is_guarded(serve: Serve, engine: Engine) -> None:
    server = serve(engine.app, uvicorn_options={"root_path": "/prefix"})
    body = {"return_logprob": True, "top_logprobs_num": 9}
    assert server.http.post("/generate", json=body).status_code == 400


def test_other_endpoints_are_not_looked_at(serve: Serve, engine: Engine) -> None:
    body = b'{"top_logprobs": 99, "kv_transfer_params": {"do_remote_prefill": true}'
    serve(engine.app).http.post("/v1/embeddings", content=body)
    assert engine.seen == [body]


class _Config:
    def __init__(self, max_logprobs: int) -> None:
        self.model_config = self
        self.max_logprobs = max_logprobs


@pytest.mark.parametrize(
    ("engine_limit", "of_vllm", "limit"),
    [(None, None, 8), (5, None, 5), (20, None, 8), (None, 5, 5), (None, 20, 8), (None, -1, 8), (6, 5, 6)],
)
def test_the_smaller_limit_of_store_and_engine_counts(
    serve: Serve, engine: Engine, engine_limit: int | None, of_vllm: int | None, limit: int
) -> None:
    if of_vllm is not None:
        engine.app.state.vllm_config = _Config(of_vllm)
    server: Server = serve(engine.app, engine_limit=engine_limit)
    client = server.openai()
    _chat(client, limit)
    with pytest.raises(openai.BadRequestError, match=f"capacity {limit};"):
        _chat(client, limit + 1)
    assert client.models.list().data[0].max_top_logprobs == limit  # type: ignore[attr-defined]
