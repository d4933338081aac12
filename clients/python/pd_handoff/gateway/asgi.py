"""The ASGI class."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from pd_handoff.aio import DecodeClient
from pd_handoff.errors import HandoffError
from pd_handoff.gateway import fields, relay, topology
from pd_handoff.gateway._types import App, Message, Receive, Scope, Send
from pd_handoff.gateway.admission import Admission, Admitted, parse
from pd_handoff.gateway.answers import Refused
from pd_handoff.gateway.body import Body, Budget, ClientLeft
from pd_handoff.gateway.limits import Limits
from pd_handoff.gateway.settings import Settings, settings
from pd_handoff.model import Failure
from pd_handoff.retries import Retries

log = logging.getLogger(__name__)

ROOMS = "pd_handoff.rooms"
"""Where the rooms of a request lie in the ASGI scope."""

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_START_WAIT = 2.0  # seconds that the start of a server waits for the first answer of its stores
_MOST_MODELS = 4 << 20  # bytes of a list of models that are read


class Gateway:
    """Wraps an ASGI app. The package's docstring says what it does and lists the settings.

    Args:
        app: what is wrapped.
        connection: further arguments for the clients (`credentials`, `token`, `namespace`, ...), instead of those from
            the environment.

    Raises ValueError, naming the variable, for a bad setting.
    """

    def __init__(
        self,
        app: App,
        *,
        target: str | Sequence[str] | None = None,
        role: str | None = None,
        policy: str | None = None,
        engine_limit: int | None = None,
        room_from_request_id: bool | None = None,
        bootstrap: str | None = None,
        max_body_bytes: int | None = None,
        max_buffered_bytes: int | None = None,
        refresh: float | None = None,
        connection: dict[str, Any] | None = None,
    ) -> None:
        self.app = app
        self.settings: Settings = settings(
            target=target,
            role=role,
            policy=policy,
            engine_limit=engine_limit,
            room_from_request_id=room_from_request_id,
            bootstrap=bootstrap,
            max_body_bytes=max_body_bytes,
            max_buffered_bytes=max_buffered_bytes,
            refresh=refresh,
            connection=connection,
        )
        self._engine_limit = self.settings.engine_limit
        self._admission = Admission(self.limit, policy=self.settings.policy, bootstrap=self.settings.bootstrap)
        self._budget = Budget(self.settings.max_body_bytes, self.settings.max_buffered_bytes)
        self._running: _Running | None = None
        self._known: dict[str, int] = {}  # outlives the event loop

    def limit(self) -> int | None:
        """The largest number of top logprobs at the moment: the smallest of the stores' limits and the engine's. None
        while no store has answered."""
        running = self._running
        known = None if running is None else running.limits.top_logprobs
        if known is None or self._engine_limit is None:
            return known
        return min(known, self._engine_limit)

    async def close(self) -> None:
        """Ends the background work and the connections to the stores. A server that sends ASGI's lifespan does it by
        itself; the next request begins them again."""
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # Background work belongs to one event loop, and begins with the server or with its first request.

    def _run(self) -> _Running:
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.loop is not loop:
            self._running = _Running(loop, self.settings, self._known)
        return self._running

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = self._run()

        async def sending(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await running.limits.wait(_START_WAIT)  # so that the first request finds them
            elif message["type"] == "lifespan.shutdown.complete":
                await self.close()
            await send(message)

        await self.app(scope, receive, sending)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        running = self._run()
        if self._engine_limit is None:
            self._engine_limit = _engine_limit(scope)
        if scope["method"] == "GET" and (path.endswith("/v1/models") or "/v1/models/" in path):
            await self._models(scope, receive, send)
        elif scope["method"] in _WITHOUT_BODY or fields.fields_of(path) is None:
            await self.app(scope, receive, send)
        else:
            await self._generate(running, path, scope, receive, send)

    async def _generate(self, running: _Running, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _without_addresses(scope)
        body = Body(scope, receive, self._budget)
        try:
            try:
                await body.read()
                admitted = self._admit(path, scope, body)
            except ClientLeft:
                return
            except Refused as refused:
                await refused.answer(send)
                if self.settings.role == "prefill" and refused.rooms:
                    failure = Failure(refused.http_status, relay.reason_of(refused.code) or "REFUSED", refused.message)
                    await relay.report(running.clients, refused.rooms, failure)
                return
            scope, receive = body.replay({**scope, ROOMS: admitted.rooms})
            if admitted.notes:
                send = relay.with_headers(send, {b"x-pd-handoff-clamped": ", ".join(admitted.notes).encode()})
            await self._serve(running, admitted, scope, receive, send)
        finally:
            body.close()

    def _admit(self, path: str, scope: Scope, body: Body) -> Admitted:
        parsed, twice = parse(body.raw)
        if parsed is None:
            return Admitted()
        request_id = None
        if self.settings.room_from_request_id:
            request_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode(
                "latin-1"
            )
        admitted = self._admission.admit(path, parsed, request_id=request_id or None)
        if admitted.changed or twice:
            body.raw = json.dumps(parsed, separators=(",", ":")).encode()
        return admitted

    async def _serve(self, running: _Running, admitted: Admitted, scope: Scope, receive: Receive, send: Send) -> None:
        rooms = admitted.rooms
        outcome = relay.Outcome(send)
        try:
            if self.settings.role == "decode" and rooms:
                await relay.serve_until_aborted(self.app, scope, receive, outcome.send, running.clients, rooms)
            else:
                await self.app(scope, receive, outcome.send)
        except HandoffError as error:  # of a proxy that talks to the store itself
            if outcome.status:
                raise
            await Refused.of_error(error).answer(outcome.send)
        except Exception as error:
            if self.settings.role == "prefill" and rooms:
                failure = Failure(500, "PREFILL_FAILED", f"prefill failed: {type(error).__name__}")
                await relay.report(running.clients, rooms, failure)
            raise
        failed = outcome.failure()
        if failed is not None and self.settings.role == "prefill" and rooms:
            await relay.report(running.clients, rooms, failed)

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds the limit to each model."""
        limit = self.limit()
        if limit is None:
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        listing = _Listing(send, limit)
        await self.app({**scope, "headers": headers}, receive, listing.send)


class _Running:
    """Clients and background work in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chosen: Settings, known: dict[str, int]) -> None:
        self.loop = loop
        options: dict[str, Any] = {"retries": Retries(total_seconds=2.0), **chosen.connection}
        stores = {target: DecodeClient(target, **options) for target in chosen.targets}
        self.clients = tuple(stores.values())
        self.limits = Limits(stores, chosen.refresh, known)
        self.limits.start()

    async def close(self) -> None:
        await self.limits.stop()
        for client in self.clients:
            await client.close()


class _Listing:
    """Collects a list of models, and sends it with the limit in each."""

    def __init__(self, send: Send, limit: int) -> None:
        self._send = send
        self._limit = limit
        self._start: Message | None = None
        self._text = b""

    async def send(self, message: Message) -> None:
        """In place of the app's `send`."""
        if message["type"] == "http.response.start" and message["status"] == 200 and _is_plain_json(message):
            self._start = message
            return
        if self._start is None or message["type"] != "http.response.body":
            await self._send(message)
            return
        self._text += message.get("body", b"")
        if message.get("more_body", False) and len(self._text) <= _MOST_MODELS:
            return
        start, self._start = self._start, None
        whole = not message.get("more_body", False)
        text = self._marked() if whole else None
        if text is not None:
            headers = [
                (name, value) for name, value in start["headers"] if name.lower() not in (b"content-length", b"etag")
            ]
            start = {**start, "headers": [*headers, (b"content-length", str(len(text)).encode())]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": text or self._text, "more_body": not whole})

    def _marked(self) -> bytes | None:
        try:
            listing = json.loads(self._text)
        except (ValueError, RecursionError):
            return None
        models = listing.get("data", [listing]) if isinstance(listing, dict) else None
        if not isinstance(models, list):
            return None
        for model in models:
            if isinstance(model, dict):
                model["max_top_logprobs"] = self._limit
        return json.dumps(listing).encode()


def _is_plain_json(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return headers.get(b"content-type", b"").startswith(b"application/json") and b"content-encoding" not in headers


def _path(scope: Scope) -> str:
    """The path within the app."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _without_addresses(scope: Scope) -> Scope:
    """Without a request id that names addresses of engines."""
    headers = [
        (name, value) for name, value in scope["headers"] if name != b"x-request-id" or not topology.has_address(value)
    ]
    return {**scope, "headers": headers}


def _engine_limit(scope: Scope) -> int | None:
    """What vLLM's own server takes (`--max-logprobs`); None elsewhere, and where vLLM has no limit (-1)."""
    state = getattr(scope.get("app"), "state", None)
    model = getattr(getattr(state, "vllm_config", None), "model_config", None)
    limit = getattr(model, "max_logprobs", None)
    return limit if isinstance(limit, int) and limit >= 0 else None
