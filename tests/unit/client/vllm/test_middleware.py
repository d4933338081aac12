"""The ASGI pair around apps that answer as vLLM's server does, with a real store between them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from pd_handoff import DecodeClient, Failure, HandoffAborted, PrefillClient, errors
from pd_handoff.engines.vllm import DecodeHandoff, PrefillHandoff
from pd_handoff.engines.vllm.payload import params_of, record_of
from pd_handoff.gateway.relay import COMPUTE_LOCALLY
from pd_handoff.model import digest_of_prompt

from tests.support.waits import PATIENCE

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARAMS = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 5600, "remote_block_ids": [[1]]}
TOKEN_IDS = [104, 105]


class Engine:
    """vLLM's server: tokenizes, computes, and answers as the test says.

    Attributes:
        seen: bodies that were computed, with their paths.
        tokenized, computing: set by the first request for token ids, and to compute.
        status, answer: what it answers.
        hold: while it is set, requests wait for the client to leave.
    """

    def __init__(self, module: str | None = None) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.tokenized = asyncio.Event()
        self.status = 200
        self.answer: dict[str, Any] = {"choices": [{"index": 0, "token_ids": [7]}]}
        self.tokenizer_status = 200
        self.hold = False
        self.computing = asyncio.Event()
        self.left = 0
        transfer = SimpleNamespace(kv_connector="NixlConnector", kv_connector_module_path=module)
        self.state = SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=transfer, model_config=None))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        body = json.loads((await receive())["body"])
        if scope["path"] == "/tokenize":
            self.tokenized.set()
            await reply(send, self.tokenizer_status, {"count": len(TOKEN_IDS), "tokens": TOKEN_IDS})
            return
        self.seen.append((scope["path"], body))
        self.computing.set()
        if self.hold:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left += 1
            return
        await reply(send, self.status, self.answer)

    @property
    def params(self) -> Any:
        """The parameters that the last request was computed with."""
        return self.seen[-1][1].get("kv_transfer_params")


async def reply(send: Any, status: int, body: Any) -> None:
    raw = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


class Side:
    """An engine with one of the pair before it.

    Attributes:
        engine: the app within.
    """

    def __init__(self, kind: Any, engine: Engine) -> None:
        self.engine = engine
        self._app = kind(engine)
        self._lifespan: asyncio.Queue[str] = asyncio.Queue()
        self._ended: asyncio.Queue[str] = asyncio.Queue()

    async def start(self) -> None:
        async def receive() -> Any:
            return {"type": await self._lifespan.get()}

        async def send(message: Any) -> None:
            await self._ended.put(message["type"])

        self._serving = asyncio.ensure_future(self._app({"type": "lifespan"}, receive, send))
        await self._lifespan.put("lifespan.startup")
        assert await self._ended.get() == "lifespan.startup.complete"

    async def stop(self) -> None:
        await self._lifespan.put("lifespan.shutdown")
        assert await asyncio.wait_for(self._ended.get(), PATIENCE) == "lifespan.shutdown.complete"
        await self._serving

    async def post(
        self, body: dict[str, Any], path: str = COMPLETIONS, leaving: asyncio.Event | None = None
    ) -> tuple[int, Any]:
        """Status and answer; status 0 where there was none."""
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "app": self.engine, "query_string": b""}
        sent: list[Any] = []
        requests = iter([{"type": "http.request", "body": json.dumps(body).encode()}])

        async def receive() -> Any:
            for message in requests:
                return message
            await (leaving or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self._app(scope, receive, send), PATIENCE)
        raw = b"".join(message.get("body", b"") for message in sent)
        return (sent[0]["status"], json.loads(raw)) if sent else (0, None)


Start = Callable[..., Any]


@pytest_asyncio.fixture
async def start(environment: Callable[..., None]) -> AsyncIterator[Start]:
    """Starts a side."""
    started: list[Side] = []

    async def start_(kind: Any, module: str | None = None, **settings: object) -> Side:
        environment(**{"lease": 5, "decode_wait": 30, **settings})
        started.append(Side(kind, Engine(module)))
        await started[-1].start()
        return started[-1]

    yield start_
    for side in started:
        await side.stop()


def asked(room: int | None, **more: Any) -> dict[str, Any]:
    """A request of a router, the same for both sides."""
    params = {} if room is None else {"kv_transfer_params": {"handoff": {"room": str(room)}}}
    return {"prompt": "hi", "max_tokens": 12, **params, **more}


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def test_prefill_publishes_what_its_connector_returned(start: Start, decode: DecodeClient, room: int) -> None:
    side = await start(PrefillHandoff)
    side.engine.answer["kv_transfer_params"] = PARAMS
    status, answer = await side.post(asked(room, stream=True, n=1))
    assert status == 200
    assert answer["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "handoff": {"room": str(room)},
    }
    computed = side.engine.seen[-1][1]
    assert (computed["max_tokens"], computed["stream"]) == (1, False)
    assert side.engine.params == {"do_remote_decode": True, "do_remote_prefill": False}
    handoff = await in_thread(lambda: decode.get(room, request_digest=digest_of_prompt(TOKEN_IDS)))
    assert params_of("NixlConnector", handoff) == PARAMS
    assert handoff.record.tokens[0].token_id == 7


async def test_the_digest_is_of_the_prompts_token_ids(start: Start, decode: DecodeClient, room: int) -> None:
    side = await start(PrefillHandoff)
    side.engine.answer["kv_transfer_params"] = PARAMS
    await side.post(asked(room))
    with pytest.raises(errors.RequestMismatch):
        await in_thread(lambda: decode.get(room, request_digest=digest_of_prompt([1])))


async def test_decode_gets_what_prefill_published(start: Start, room: int) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    prefill.engine.answer["kv_transfer_params"] = PARAMS
    for path, more in ((COMPLETIONS, {}), (CHAT, {"messages": [{"role": "user", "content": "hi"}]})):
        waiting = asyncio.ensure_future(decode.post(asked(room, **more), path))
        await prefill.post(asked(room, **more), path)
        assert (await waiting)[0] == 200
        assert decode.engine.params == {**PARAMS, "do_remote_decode": False}
        assert decode.engine.seen[-1][1]["max_tokens"] == 12


@pytest.mark.parametrize("status", [400, 413, 422, 429, 503])
async def test_prefills_refusal_reaches_decodes_user(start: Start, room: int, status: int) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    prefill.engine.status, prefill.engine.answer = status, {"error": {"message": "not this", "code": status}}
    waiting = asyncio.ensure_future(decode.post(asked(room)))
    assert (await prefill.post(asked(room)))[0] == status
    decode_status, answer = await waiting
    assert (decode_status, answer["error"]["message"]) == (status, "not this")
    assert decode.engine.seen == []


async def test_what_cannot_be_tokenized_is_refused_without_a_reservation(start: Start, room: int) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    prefill.engine.tokenizer_status = prefill.engine.status = 400
    prefill.engine.answer = {"error": {"message": "too long", "code": 400}}
    waiting = asyncio.ensure_future(decode.post(asked(room)))
    assert (await prefill.post(asked(room)))[0] == 400
    assert (await waiting)[1]["error"]["message"] == "too long"


@pytest.mark.parametrize("fault", ["status", "raise", "no parameters"])
async def test_a_prefill_that_breaks_is_computed_by_decode(start: Start, room: int, fault: str) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    waiting = asyncio.ensure_future(decode.post(asked(room)))
    if fault == "raise":
        prefill.engine.answer = {"broken": object()}  # no JSON
        with pytest.raises(TypeError):
            await prefill.post(asked(room))
    else:
        prefill.engine.status = 500 if fault == "status" else 200
        await prefill.post(asked(room))
    assert (await waiting)[0] == 200
    assert decode.engine.params is None


async def test_a_lost_prefill_is_computed_by_decode(start: Start, prefill: PrefillClient, room: int) -> None:
    side = await start(DecodeHandoff, decode_wait=0.2)
    assert (await side.post(asked(room)))[0] == 200  # none ever reserved
    await in_thread(lambda: prefill.reserve(room, lease=1.0))
    assert (await side.post(asked(room)))[0] == 200  # one did, and fell silent
    assert [body.get("kv_transfer_params") for _, body in side.engine.seen] == [None, None]


async def test_decode_computes_while_the_store_is_away(start: Start, room: int) -> None:
    side = await start(DecodeHandoff, target="127.0.0.1:1")
    assert (await side.post(asked(room)))[0] == 200
    assert side.engine.params is None
    other = await start(PrefillHandoff, target="127.0.0.1:1")
    assert (await other.post(asked(room)))[0] == 503
    assert other.engine.seen == []


async def test_a_client_that_leaves_decode(start: Start, room: int) -> None:
    decode, leaving = await start(DecodeHandoff), asyncio.Event()
    waiting = asyncio.ensure_future(decode.post(asked(room), leaving=leaving))
    leaving.set()
    assert (await waiting)[0] in (0, 499)  # nobody reads it; the Gateway may hear of the abort and answer
    assert decode.engine.seen == []
    prefill = await start(PrefillHandoff)
    assert (await prefill.post(asked(room)))[0] == 499
    assert prefill.engine.seen == []  # nothing is computed that no user waits for


async def test_a_client_that_leaves_prefill(start: Start, room: int) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    prefill.engine.hold = True
    waiting, leaving = asyncio.ensure_future(decode.post(asked(room))), asyncio.Event()
    leaving.set()
    assert await prefill.post(asked(room), leaving=leaving) == (0, None)
    assert prefill.engine.left == 1
    assert (await waiting)[0] == 200
    assert decode.engine.params is None


async def test_a_client_that_leaves_later_is_seen_by_the_engine(
    start: Start, prefill: PrefillClient, room: int
) -> None:
    decode, leaving = await start(DecodeHandoff), asyncio.Event()
    decode.engine.hold = True
    await in_thread(lambda: prefill.put_once(room, record_of("NixlConnector", PARAMS, 1)))
    waiting = asyncio.ensure_future(decode.post(asked(room), leaving=leaving))
    await decode.engine.computing.wait()
    leaving.set()
    assert await waiting == (0, None)
    assert decode.engine.left == 1


async def test_a_room_in_use(start: Start, prefill: PrefillClient, room: int) -> None:
    side = await start(PrefillHandoff)
    await in_thread(lambda: prefill.reserve(room))
    status, answer = await side.post(asked(room))
    assert (status, answer["error"]["code"]) == (409, "handoff_exists")
    assert side.engine.seen == []


async def test_two_requests_of_decode_in_one_room(start: Start, prefill: PrefillClient, room: int) -> None:
    side = await start(DecodeHandoff)
    waiting = asyncio.ensure_future(side.post(asked(room)))
    await side.engine.tokenized.wait()
    assert (await side.post(asked(room)))[0] == 200
    assert side.engine.params is None  # computed there
    await in_thread(lambda: prefill.put_once(room, record_of("NixlConnector", PARAMS, 1)))
    assert (await waiting)[0] == 200
    assert side.engine.params is not None
    assert (await side.post(asked(room)))[0] == 200  # within the time that the store serves the record again
    assert side.engine.params is None


async def test_many_prompts_are_computed_by_decode(start: Start, room: int) -> None:
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    for more in ({"prompt": ["a", "b"]}, {"n": 2}):
        for side in (prefill, decode):
            assert (await side.post(asked(room, **more)))[0] == 200
            assert side.engine.params is None


async def test_what_a_client_says_of_where_prefill_is_goes_no_further(start: Start, room: int) -> None:
    evil = {**PARAMS, "remote_host": "192.0.2.1", "remote_port": 1, "remote_block_ids": [[9]]}
    prefill, decode = await start(PrefillHandoff), await start(DecodeHandoff)
    prefill.engine.answer["kv_transfer_params"] = PARAMS
    for params in ({"do_remote_prefill": True}, evil):
        for side in (prefill, decode):
            assert (await side.post({"prompt": "hi", "kv_transfer_params": params}))[0] == 200
            assert side.engine.params is None
    body = {"prompt": "hi", "kv_transfer_params": {**evil, "handoff": {"room": str(room)}}}
    await prefill.post(body)
    assert prefill.engine.params == {"do_remote_decode": True, "do_remote_prefill": False}
    await decode.post(body)
    assert decode.engine.params == {**PARAMS, "do_remote_decode": False}  # prefill's own


async def test_with_this_projects_connector_the_engine_goes_to_the_store(start: Start, room: int) -> None:
    module = "pd_handoff.engines.vllm"
    prefill, decode = await start(PrefillHandoff, module), await start(DecodeHandoff, module)
    await decode.post(asked(room))
    assert decode.engine.params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "handoff": {"room": str(room), "answers": True},
    }
    await prefill.post(asked(room))
    assert prefill.engine.params == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "handoff": {"room": str(room)},
    }


async def test_a_refusal_ends_a_request_that_waits_in_the_engine(start: Start, room: int) -> None:
    module = "pd_handoff.engines.vllm"
    prefill, decode = await start(PrefillHandoff, module), await start(DecodeHandoff, module)
    decode.engine.hold = True
    prefill.engine.status, prefill.engine.answer = 400, {"error": {"message": "not this", "code": 400}}
    waiting = asyncio.ensure_future(decode.post(asked(room)))
    await prefill.post(asked(room))
    assert (await waiting)[0] == 400
    assert decode.engine.left == 1


async def test_a_server_without_a_connector_hands_nothing_over(start: Start, room: int) -> None:
    for kind in (PrefillHandoff, DecodeHandoff):
        side = await start(kind)
        side.engine.state = SimpleNamespace()
        assert (await side.post(asked(room)))[0] == 200
        assert side.engine.params is None


async def test_a_full_store(start: Start, prefill: PrefillClient, room: int) -> None:
    held = [prefill.reserve(10_000 + number) for number in range(prefill.capabilities().slots_free)]
    try:
        prefilling, decoding = await start(PrefillHandoff), await start(DecodeHandoff)
        waiting = asyncio.ensure_future(decoding.post(asked(room)))
        assert (await prefilling.post(asked(room)))[0] == 503
        assert (await waiting)[0] == 200  # at once, not after its own longest wait
        assert decoding.engine.params is None
    finally:
        for reservation in held:
            prefill.release(reservation)


async def test_an_abort_of_another_kind_is_no_error(start: Start, prefill: PrefillClient, room: int) -> None:
    side = await start(DecodeHandoff)
    await in_thread(lambda: prefill.abort(room, Failure(200, COMPUTE_LOCALLY, "gone"), attempt=0))
    assert (await side.post(asked(room)))[0] == 200
    with pytest.raises(HandoffAborted):
        await in_thread(lambda: prefill.reserve(room))
