"""A FastAPI server with the endpoints of vLLM and SGLang, which answers in their forms and notes what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """Read as vLLM reads: extra fields are taken, and "20" is a number."""

    model_config = ConfigDict(extra="allow")
    model: str = "m"
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = False


class Engine:
    """The server.

    Attributes:
        app: for uvicorn.
        seen: the bodies of all requests, as they arrived.
        scopes: their ASGI scopes.
        release: lets requests with `"hold": true` go on.
        disconnects: how many requests saw their client leave.
    """

    def __init__(self) -> None:
        self.app = FastAPI()
        self.seen: list[bytes] = []
        self.scopes: list[dict[str, Any]] = []
        self.release = asyncio.Event()
        self.disconnects = 0
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/inference/v1/generate"):
            self.app.post(path)(self._handler(path))
        self.app.put("/generate")(self._handler("/generate"))
        self.app.post("/v1/embeddings")(self._embed)
        self.app.get("/v1/models")(self._models)
        self.app.websocket("/v1/realtime")(self._echo)

    @property
    def bodies(self) -> list[Any]:
        """What arrived, parsed."""
        return [json.loads(raw) for raw in self.seen]

    def _handler(self, path: str) -> Any:
        async def handle(request: Request) -> Any:
            raw = await request.body()
            self.seen.append(raw)
            self.scopes.append(dict(request.scope))
            try:
                asked = json.loads(raw)
            except ValueError:
                return JSONResponse({"error": {"message": "the engine cannot read this"}}, 400)
            if asked.get("hold"):
                await self._hold(request)
            if "fail" in asked:
                return JSONResponse(asked["fail"]["body"], asked["fail"]["status"])
            if "raise" in asked:
                raise RuntimeError("the engine broke")
            if asked.get("stream"):
                return StreamingResponse(self._chunks(asked), media_type="text/event-stream")
            return JSONResponse(ANSWERS[path])

        return handle

    async def _hold(self, request: Request) -> None:
        leaving = asyncio.ensure_future(self._left(request))
        going = asyncio.ensure_future(self.release.wait())
        await asyncio.wait({leaving, going}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        going.cancel()

    async def _left(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.disconnects += 1

    async def _chunks(self, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        if asked.get("hold_stream"):
            await self.release.wait()
        for index, text in enumerate(("a", "b", "c")):
            if asked.get("hold_after") == index:
                await self.release.wait()
            yield b"data: " + json.dumps(CHUNK | {"choices": [_delta(text)]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def _embed(self, request: Request) -> Any:
        self.seen.append(await request.body())
        return {"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    async def _models(self) -> Any:
        return {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "us"}]}

    async def _echo(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()


def _delta(text: str) -> dict[str, Any]:
    return {"index": 0, "delta": {"content": text}, "finish_reason": None}


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_CHOICE = {"index": 0, "finish_reason": "stop", "logprobs": None}
ANSWERS: dict[str, Any] = {
    "/v1/chat/completions": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": _USAGE,
        "choices": [{**_CHOICE, "message": {"role": "assistant", "content": "abc"}}],
    },
    "/v1/completions": {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "usage": _USAGE,
        "choices": [{**_CHOICE, "text": "abc"}],
    },
    "/v1/responses": {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    },
    "/generate": {"text": "abc", "meta_info": {"id": "g"}},
    "/inference/v1/generate": {"choices": [{"index": 0, "token_ids": [1]}]},
}
