"""The snippets of docs/gateway.md, run as they stand."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pd_handoff.gateway import settings

from tests.gateway.conftest import Server
from tests.support.local import Loop

TEXT = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[str]:
    return [body for kind, body in BLOCKS if kind == language]


def test_the_proxy_answers_as_shown(servers: Loop, launch: Any) -> None:
    proxy, _ = _blocks("python")
    store = launch()
    names: dict[str, Any] = {}
    exec(proxy.replace("127.0.0.1:50071", store.target), names)
    server = Server(servers, names["app"])
    body = {"messages": [], "logprobs": True, "top_logprobs": 200}
    try:
        refused = server.http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()) == (400, json.loads(_blocks("json")[0]))
        served = server.http.post("/v1/chat/completions", json={**body, "top_logprobs": 128})
        assert served.json() == {"forwarded": {**body, "top_logprobs": 128}}
        shown = json.loads(_blocks("json")[1])
        assert server.http.post("/v1/chat/completions", json=shown).json() == {"forwarded": shown}
    finally:
        server.close()


def test_the_check_without_http_prints_what_is_shown() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(_blocks("python")[1], {})
    assert [printed.getvalue()] == _blocks("text")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(PD_HANDOFF_[A-Z_]+)`", TEXT))))
def test_every_variable_that_is_named_exists(name: str) -> None:
    assert name in Path(settings.__file__).read_text()
