"""Runs the hook for LiteLLM in a real proxy, before a stand-in for an engine, with a real store.

tools/test-litellm.sh makes its environment."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.gateway.conftest import LIMIT, Server
from tests.gateway.engine import Engine
from tests.support.local import Loop
from tests.support.process import ProcessStore
from tests.support.waits import eventually

HOOK = Path(__file__).parents[2] / "examples" / "litellm_hook.py"
KEY = "sk-" + secrets.token_hex(24)
CONFIG = """\
model_list:
  - model_name: m
    litellm_params: {{model: hosted_vllm/m, api_base: "{url}/v1", api_key: none}}
litellm_settings:
  callbacks: litellm_hook.handoff
  num_retries: 0
"""


@contextlib.contextmanager
def proxy(command: str, directory: Path, url: str, target: str) -> Iterator[str]:
    """LiteLLM with the hook; gives its address."""
    shutil.copy(HOOK, directory)
    (directory / "config.yaml").write_text(CONFIG.format(url=url))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "PD_HANDOFF_TARGET": target, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
    environment["LITELLM_MASTER_KEY"] = KEY
    log = (directory / "log").open("w")
    process = subprocess.Popen(
        [command, "--config", str(directory / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)],
        cwd=directory,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: _is_up(address, process), "LiteLLM serves", patience=300)
        yield address
    except BaseException:
        print((directory / "log").read_text()[-8000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _is_up(address: str, process: Any) -> bool:
    assert process.poll() is None, "LiteLLM has ended"
    try:
        return httpx2.get(f"{address}/health/liveliness", timeout=5, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def main() -> None:
    """Asks at the limit and over it, by chat and completions."""
    loop, engine = Loop(), Engine()
    server = Server(loop, engine.app)
    messages: Any = [{"role": "user", "content": "hi"}]
    with tempfile.TemporaryDirectory(prefix="pdh") as name:
        directory = Path(name)
        store = ProcessStore(f"unix:{directory}/s", slots=8, max_top_logprobs=LIMIT)
        with store, proxy(sys.argv[1], directory, server.url, store.wait().target) as address:
            client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=120)
            asks: dict[str, Any] = {
                "top_logprobs": lambda count: client.chat.completions.create(
                    model="m",
                    messages=messages,
                    logprobs=True,
                    top_logprobs=count,
                    extra_body={"kv_transfer_params": {"do_remote_prefill": True, "handoff": {"room": "7"}}},
                ),
                "logprobs": lambda count: client.completions.create(model="m", prompt="hi", logprobs=count),
            }
            for field, ask in asks.items():
                engine.seen.clear()
                ask(LIMIT)
                assert engine.bodies[0][field] == LIMIT, engine.bodies
                assert b"do_remote_prefill" not in engine.seen[0], engine.seen
                with pytest.raises(openai.BadRequestError) as refused:
                    ask(LIMIT + 1)
                assert refused.value.param == field, refused.value.body
                assert f"capacity {LIMIT}; ask for at most {LIMIT}" in refused.value.message
                assert len(engine.seen) == 1
                print(f"LiteLLM: {field} {LIMIT} served, {LIMIT + 1} refused")
    server.close()
    loop.close()


if __name__ == "__main__":
    main()
