"""The ASGI pair for `vllm serve --middleware`: the gateway's class with a hand-off behind it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pd_handoff.aio import DecodeClient, PrefillClient
from pd_handoff.aio import PrefillHandoff as _Reserved
from pd_handoff.engines.payload import UnusableHandoff
from pd_handoff.engines.vllm import settings as vllm_settings
from pd_handoff.engines.vllm.ending import CLIENT_LEFT, for_user, no_handoff, of_answer
from pd_handoff.engines.vllm.getting import record_for
from pd_handoff.engines.vllm.http_request import (
    PARAMS,
    Kind,
    digest_of_body,
    digest_of_token_ids,
    for_prefill,
    given_token_ids,
    is_single,
    kind_of,
    tokenizing,
)
from pd_handoff.engines.vllm.payload import params_of, record_of
from pd_handoff.engines.vllm.settings import Settings
from pd_handoff.engines.vllm.taken import Taken
from pd_handoff.errors import ArenaFull, HandoffAborted, HandoffError, TooManyWaiters
from pd_handoff.gateway import Gateway, Refused, Room
from pd_handoff.gateway._types import App, Message, Receive, Scope, Send
from pd_handoff.gateway.asgi import ROOMS
from pd_handoff.gateway.relay import Outcome
from pd_handoff.handoff import Handoff
from pd_handoff.model import Failure, Key
from pd_handoff.retries import Retries

log = logging.getLogger("vllm.pd_handoff")
_MODULE = "pd_handoff.engines.vllm"
_SLOT_WAIT = 5.0  # seconds that a full store is waited for


class _Side:
    """What both sides have in common. Sits behind a Gateway, which reads the room and takes all else out."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _connect(self) -> Any:
        raise NotImplementedError

    def client(self) -> Any:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._connect(), loop
        return self._client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._closing(send))
            return
        rooms: tuple[Room, ...] = scope.get(ROOMS, ())
        if scope["type"] != "http" or not rooms:
            await self._app(scope, receive, send)
            return
        request = await _Request.read(scope, receive)
        connector, kind = _Connector.of(scope), kind_of(scope["path"])
        if connector is None:
            log.error("this server has no KV connector (--kv-transfer-config): nothing is handed over")
        if connector is None or kind is None:
            await self._compute(request, send)
        else:
            await self._serve(kind, request, rooms[0], connector, send)

    async def _serve(self, kind: Kind, request: _Request, room: Room, connector: _Connector, send: Send) -> None:
        raise NotImplementedError

    async def _compute(self, request: _Request, send: Send) -> None:
        """Serves a request that takes part in no hand-off."""
        request.body.pop(PARAMS, None)
        await self._app(*request.replay(), send)

    def _closing(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "lifespan.shutdown.complete" and self._client is not None:
                client, self._client = self._client, None
                await client.close()
            await send(message)

        return sending

    async def digest(self, kind: Kind, request: _Request) -> bytes:
        """The digest of the prompt, whose token ids vLLM's own tokenizer gives. Raises _NotTokenized where vLLM refuses
        the request."""
        body = request.body
        digest = digest_of_token_ids(given_token_ids(kind, body), body)
        asking = None if digest else tokenizing(kind, request.scope["path"], body)
        if asking is not None:
            status, said = await _ask(self._app, request.scope, *asking)
            if status not in (200, 404):  # 404: an engine without that endpoint
                raise _NotTokenized(status)
            digest = digest_of_token_ids(said.get("tokens"), body)
        return digest or digest_of_body(body)


class _Prefill(_Side):
    def _connect(self) -> PrefillClient:
        return PrefillClient(self._settings.target, retries=Retries(total_seconds=2.0), **self._settings.connection)

    async def _serve(self, kind: Kind, request: _Request, room: Room, connector: _Connector, send: Send) -> None:
        single = is_single(kind, request.body)
        request.body = for_prefill(kind, request.body)
        if connector.hands_over:
            request.body[PARAMS] = {"do_remote_decode": True, "do_remote_prefill": False, "handoff": _shown(room)}
            await self._app(*request.replay(), send)
            return
        if not single:
            await self._compute(request, send)
            return
        try:
            digest = await self.digest(kind, request)
        except _NotTokenized:
            await self._compute(request, send)  # vLLM answers it, and the gateway reports what it answers
            return
        client: PrefillClient = self.client()
        manager = client.prefill(
            room.key(),
            attempt=room.attempt,
            lease=self._settings.lease,
            max_wait=_SLOT_WAIT,
            request_digest=digest,
        )
        try:
            reserved = await manager.__aenter__()
        except HandoffError as error:
            await self._not_reserved(client, room, error, send)
            return
        async with _Leaving(manager):
            await self._compute_and_publish(request, room, connector, reserved, send)

    async def _not_reserved(self, client: PrefillClient, room: Room, error: HandoffError, send: Send) -> None:
        log.warning("room %d: not prefilled: %s: %s", room.room, type(error).__name__, error)
        if isinstance(error, HandoffAborted) and error.failure.http_status < 400:
            refused = Refused(409, f"decode needs no prefill: {error.failure.message}", code="not_needed")
        else:
            refused = Refused.of_error(error)
        await refused.answer(send)
        if isinstance(error, (ArenaFull, TooManyWaiters)):  # do not let decode wait for it
            failure = no_handoff(f"the store took no reservation: {error.reason}")
            try:
                await client.abort(room.key(), failure, attempt=room.attempt)
            except HandoffError as again:
                log.warning("room %d: decode was not told: %s", room.room, again)

    async def _compute_and_publish(
        self, request: _Request, room: Room, connector: _Connector, reserved: _Reserved, send: Send
    ) -> None:
        request.body[PARAMS] = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = _Answer()
        outcome = Outcome(answer.send)
        try:
            await self._app(*request.replay(), outcome.send)
        except BaseException as error:
            await _end(reserved, no_handoff(f"prefill failed: {type(error).__name__}"))
            raise
        if outcome.status != 200:
            failure = outcome.failure()
            left = no_handoff("the client of prefill disconnected")
            await _end(reserved, left if failure is None else of_answer(failure))
            await answer.pass_on(send)
            return
        said = answer.json()
        params = said.get(PARAMS) if said is not None else None
        if said is None or not isinstance(params, dict):
            await _end(reserved, no_handoff("prefill's engine returned no parameters for decode"))
            await answer.pass_on(send)
            return
        try:
            await reserved.put(record_of(connector.name, params, _first_token(said)))
        except HandoffError as error:
            log.error("room %d: not published: %s: %s", room.room, type(error).__name__, error)
            await _end(reserved, no_handoff(f"the record was not published: {error.reason}"))
        said[PARAMS] = {"do_remote_prefill": True, "do_remote_decode": False, "handoff": _shown(room)}
        await answer.pass_on(send, said)


class _Decode(_Side):
    def __init__(self, app: App, settings: Settings) -> None:
        super().__init__(app, settings)
        self._taken = Taken()

    def _connect(self) -> DecodeClient:
        return DecodeClient(self._settings.target, retries=Retries(total_seconds=2.0), **self._settings.connection)

    async def _serve(self, kind: Kind, request: _Request, room: Room, connector: _Connector, send: Send) -> None:
        if connector.hands_over:
            handoff = {**_shown(room), "answers": True}
            request.body[PARAMS] = {"do_remote_prefill": True, "do_remote_decode": False, "handoff": handoff}
            await self._app(*request.replay(), send)
            return
        if not is_single(kind, request.body):
            await self._compute(request, send)
            return
        key = room.key()
        if not self._taken.enter(key):
            log.warning("room %d is in use by another request: computed here", room.room)
            await self._compute(request, send)
            return
        try:
            fetched = await self._fetch(kind, request, room, connector, send)
        finally:
            self._taken.leave(key)
        if fetched is None:
            return
        if fetched:
            request.body[PARAMS] = {**fetched, "do_remote_prefill": True, "do_remote_decode": False}
        else:
            request.body.pop(PARAMS, None)
        await self._app(*request.replay(), send)

    async def _fetch(
        self, kind: Kind, request: _Request, room: Room, connector: _Connector, send: Send
    ) -> dict[str, Any] | None:
        """The connector's parameters, empty where decode computes by itself; None where the request is over."""
        key, attempt = room.key(), room.attempt
        client: DecodeClient = self.client()
        try:
            digest = await self.digest(kind, request)
        except _NotTokenized:
            await self._abort(client, key, attempt, no_handoff("decode's server refused the request"))
            return {}
        waiting = asyncio.ensure_future(
            record_for(client, key, attempt=attempt, digest=digest, max_wait=self._settings.max_wait)
        )
        try:
            if not await request.unless_left(waiting):
                await self._abort(client, key, attempt, CLIENT_LEFT)
                return None
            handoff: Handoff = waiting.result()
            if not self._taken.first(key, handoff):
                raise UnusableHandoff("another request of this server has had the record of this room")
            return params_of(connector.name, handoff)
        except UnusableHandoff as error:
            log.warning("room %d: computed here: %s", key.room, error)
        except HandoffError as error:
            failure = for_user(error)
            if failure is not None:
                await Refused.of_failure(failure).answer(send)
                return None
            log.warning("room %d: computed here: %s: %s", key.room, type(error).__name__, error)
        finally:
            waiting.cancel()
        return {}

    async def _abort(self, client: DecodeClient, key: Key, attempt: int, failure: Failure) -> None:
        try:
            await client.abort(key, failure, attempt=attempt)
        except HandoffError as error:
            log.warning("room %d: prefill was not told: %s", key.room, error)


class PrefillHandoff(Gateway):
    """For prefill: `vllm serve ... --middleware pd_handoff.engines.vllm.PrefillHandoff`.

    A Gateway with role "prefill" that also reserves before a request is computed and publishes vLLM's
    `kv_transfer_params` afterwards. Takes the arguments and settings of Gateway, and PD_HANDOFF_LEASE.

    Raises ValueError, naming the variable, for a bad setting."""

    def __init__(self, app: App, **given: Any) -> None:
        super().__init__(app, **{**given, "role": "prefill"})
        self.app = _Prefill(app, vllm_settings.of_gateway(self.settings))


class DecodeHandoff(Gateway):
    """For decode: `vllm serve ... --middleware pd_handoff.engines.vllm.DecodeHandoff`.

    A Gateway with role "decode" that also waits for the record of prefill, and gives vLLM the `kv_transfer_params` in
    it. Where prefill is lost, decode computes the prompt. Takes the arguments and settings of Gateway, and
    PD_HANDOFF_DECODE_WAIT.

    Raises ValueError, naming the variable, for a bad setting."""

    def __init__(self, app: App, **given: Any) -> None:
        super().__init__(app, **{**given, "role": "decode"})
        self.app = _Decode(app, vllm_settings.of_gateway(self.settings))


class _NotTokenized(Exception):  # noqa: N818
    """vLLM refused to tokenize the prompt; it will refuse the request as well."""


class _Connector:
    """The connector of the server that a scope belongs to."""

    def __init__(self, name: str, hands_over: bool) -> None:
        self.name = name
        self.hands_over = hands_over  # it is the one of this package, and goes to the store itself

    @classmethod
    def of(cls, scope: Scope) -> _Connector | None:
        """None where vLLM runs without one."""
        state = getattr(scope.get("app"), "state", None)
        config = getattr(getattr(state, "vllm_config", None), "kv_transfer_config", None)
        name = getattr(config, "kv_connector", None)
        if not name:
            return None
        return cls(str(name), getattr(config, "kv_connector_module_path", None) == _MODULE)


class _Request:
    """One request, whose body is read."""

    def __init__(self, scope: Scope, receive: Receive, body: dict[str, Any]) -> None:
        self.scope = scope
        self.body = body
        self._receive = receive
        self._next: asyncio.Future[Message] | None = None

    @classmethod
    async def read(cls, scope: Scope, receive: Receive) -> _Request:
        """From behind a Gateway, which gives the body in one piece and has parsed it once."""
        message = await receive()
        return cls(scope, receive, json.loads(message["body"]))

    async def unless_left(self, work: asyncio.Future[Any]) -> bool:
        """Waits for the work; False when the client disconnects before it is done."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._receive())
        await asyncio.wait({work, self._next}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()

    def replay(self) -> tuple[Scope, Receive]:
        """What the app is called with."""
        raw = json.dumps(self.body, separators=(",", ":")).encode()
        headers = [(name, value) for name, value in self.scope["headers"] if name != b"content-length"]
        scope = {**self.scope, "headers": [*headers, (b"content-length", str(len(raw)).encode())]}
        return scope, _replaying(raw, self._receive_next)

    async def _receive_next(self) -> Message:
        waiting, self._next = self._next, None
        return await (waiting if waiting is not None else self._receive())


class _Answer:
    """Keeps a response back."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    async def send(self, message: Message) -> None:
        """In place of the server's `send`."""
        self._messages.append(message)

    def json(self) -> dict[str, Any] | None:
        """Its body, where that is a JSON object."""
        text = b"".join(message.get("body", b"") for message in self._messages)
        try:
            said = json.loads(text)
        except ValueError:
            return None
        return said if isinstance(said, dict) else None

    async def pass_on(self, send: Send, said: dict[str, Any] | None = None) -> None:
        """Sends it, with another body where one is given."""
        if said is None:
            for message in self._messages:
                await send(message)
            return
        raw = json.dumps(said, separators=(",", ":")).encode()
        start = self._messages[0]
        headers = [(name, value) for name, value in start.get("headers", ()) if name.lower() != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(raw)).encode())]})
        await send({"type": "http.response.body", "body": raw, "more_body": False})


class _Leaving:
    """Leaves a manager that was entered by hand, so that a refused entry and a failure inside are told apart."""

    def __init__(self, manager: _Reserved) -> None:
        self._manager = manager

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *failure: Any) -> None:
        await self._manager.__aexit__(*failure)


async def _end(reserved: _Reserved, failure: Failure) -> None:
    try:
        await reserved.abort(failure)
    except HandoffError as error:
        log.warning("decode was not told of the end of a prefill: %s: %s", type(error).__name__, error)


async def _ask(app: App, scope: Scope, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """A request to another endpoint of the same app, with the headers of this one; its status, and the JSON object that
    it answered."""
    raw = json.dumps(body, separators=(",", ":")).encode()
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    headers.append((b"content-length", str(len(raw)).encode()))
    inner = {**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    answer = _Answer()
    outcome = Outcome(answer.send)
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    await app(inner, _replaying(raw, lambda: never), outcome.send)
    return outcome.status, answer.json() or {}


def _replaying(raw: bytes, then: Callable[[], Awaitable[Message]]) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await then()
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return replay


def _shown(room: Room) -> dict[str, Any]:
    shown: dict[str, Any] = {"room": str(room.room)}
    if room.sample:
        shown["sample"] = room.sample
    if room.attempt:
        shown["attempt"] = room.attempt
    return shown


def _first_token(said: dict[str, Any]) -> int | None:
    choices = said.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    token_ids = choice.get("token_ids") if isinstance(choice, dict) else None
    return token_ids[0] if isinstance(token_ids, list) and token_ids and type(token_ids[0]) is int else None
