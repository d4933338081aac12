"""Telling the other side of a hand-off what became of a request here, and hearing what became of it there."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pd_handoff.aio import DecodeClient
from pd_handoff.errors import HandoffAborted, HandoffError, HandoffNotFound, PermissionDenied, RecordNotReady
from pd_handoff.gateway._types import App, Message, Receive, Scope, Send
from pd_handoff.gateway.answers import Refused
from pd_handoff.gateway.topology import Room
from pd_handoff.model import Failure

log = logging.getLogger(__name__)

COMPUTE_LOCALLY = "COMPUTE_LOCALLY"
"""Reason of an abort that is no error for a user: decode's engine, which can, goes on without the hand-off."""

_MOST_TEXT = 64 << 10  # bytes of an error response that are read for its words
_LONGEST_WAIT = 600.0  # seconds of one waiting Get; another follows
_WIND_DOWN = 5.0  # seconds that an app gets to end a request by itself
_not_in_reasons = re.compile("[^A-Z0-9]+")


class Outcome:
    """Watches a response, and keeps its status and the words of an error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.text = b""

    async def send(self, message: Message) -> None:
        """Passes everything on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status >= 400 and len(self.text) < _MOST_TEXT:
            self.text += message.get("body", b"")
        await self._send(message)

    def failure(self) -> Failure | None:
        """What to tell decode; None where the request went well."""
        if self.status < 400:
            return None
        reason, message = _words(self.text)
        return Failure(self.status, reason or "PREFILL_REFUSED", message or f"prefill answered {self.status}")


def _words(text: bytes) -> tuple[str | None, str | None]:
    """Reason and message in the error forms of OpenAI, vLLM, SGLang and FastAPI."""
    try:
        body: Any = json.loads(text)
    except ValueError:
        return None, text.decode("utf-8", "replace").strip()[:1024]
    error: Any = body.get("error", body) if isinstance(body, dict) else {}
    if isinstance(error, str):
        return None, error
    if not isinstance(error, dict):
        return None, None
    code, message = error.get("code"), error.get("message", error.get("detail"))
    if message is not None and not isinstance(message, str):
        message = json.dumps(message)
    return (reason_of(code) if isinstance(code, str) else None), message


def reason_of(code: str) -> str | None:
    """A code such as `context_length_exceeded` as a failure's reason; None for what makes none."""
    reason = _not_in_reasons.sub("_", code.upper()).strip("_")[:63]
    return reason if reason and reason[0].isalpha() else None


async def report(clients: Sequence[DecodeClient], rooms: Sequence[Room], failure: Failure) -> None:
    """Ends hand-offs that the engine never began, so that decode learns at once that none will come.

    A room that is in use is left alone: it may be another request's, and the engine that reserved it ends it itself."""
    for client in clients:
        for room in rooms:
            try:
                if await _is_free(client, room):
                    await client.abort(room.key(), failure, attempt=room.attempt)
            except HandoffError as error:
                log.warning("room %d: the failure could not be reported to the store: %s", room.room, error)


async def _is_free(client: DecodeClient, room: Room) -> bool:
    try:
        await client.get(room.key(), attempt=room.attempt, consume=False)
    except (HandoffNotFound, PermissionDenied):  # a token for prefill alone may not look, but may abort
        return True
    except RecordNotReady as error:
        return error.state == "NONE"
    except HandoffError:
        return False  # it has ended, and its outcome is known
    return False


async def first_abort(clients: Sequence[DecodeClient], rooms: Sequence[Room]) -> Failure | None:
    """Returns the failure of the first of the hand-offs that is aborted; None once all are published or not to be
    heard of."""
    tasks = [asyncio.create_task(_abort_of(client, room)) for client in clients for room in rooms]
    try:
        for next_one in asyncio.as_completed(tasks):
            failure = await next_one
            if failure is not None:
                return failure
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _abort_of(client: DecodeClient, room: Room) -> Failure | None:
    while True:
        try:
            await client.get(room.key(), attempt=room.attempt, max_wait=_LONGEST_WAIT, consume=False)
        except HandoffAborted as aborted:
            return None if aborted.failure.reason == COMPUTE_LOCALLY else aborted.failure
        except RecordNotReady:
            continue
        except HandoffError as error:
            log.debug("room %d: not heard of any more: %s", room.room, error)
        return None


class HeldStart:
    """Keeps the start of a response back until its first bytes come: until then another answer can be given."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self.begun = False
        self.closed = False

    async def send(self, message: Message) -> None:
        """In place of the app's `send`."""
        if self.closed:
            return
        if self.begun:
            await self._send(message)
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] == "http.response.body" and message.get("more_body", False) and not message.get("body"):
            return  # nothing to see yet
        self.begun = True
        if self._start is not None:
            await self._send(self._start)
        await self._send(message)


async def serve_until_aborted(
    app: App, scope: Scope, receive: Receive, send: Send, clients: Sequence[DecodeClient], rooms: Sequence[Room]
) -> None:
    """Serves a request of decode. When prefill aborts before the response has begun, the user gets prefill's status
    and words, and the app sees its client disconnect."""
    held = HeldStart(send)
    gone = asyncio.Event()
    serving = asyncio.ensure_future(app(scope, _until(gone, receive), held.send))
    hearing = asyncio.ensure_future(first_abort(clients, rooms))
    try:
        await asyncio.wait({serving, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            failure = _heard(hearing)
            if failure is not None and not held.begun:
                held.closed = True
                gone.set()
                await Refused.of_failure(failure).answer(send)
                await asyncio.wait({serving}, timeout=_WIND_DOWN)
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                return
        await serving
    finally:
        hearing.cancel()
        serving.cancel()
        await asyncio.gather(hearing, serving, return_exceptions=True)


def _heard(hearing: asyncio.Future[Failure | None]) -> Failure | None:
    try:
        return hearing.result()
    except Exception:  # must not end a request that is served
        log.exception("what became of a prefill could not be heard")
        return None


def _until(gone: asyncio.Event, receive: Receive) -> Receive:
    """`receive`, which says that the client disconnected once `gone` is set."""

    async def received() -> Message:
        if gone.is_set():
            return {"type": "http.disconnect"}
        waiting = asyncio.ensure_future(receive())
        ending = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            return {"type": "http.disconnect"}
        finally:
            ending.cancel()
            waiting.cancel()

    return received


def with_headers(send: Send, headers: Mapping[bytes, bytes]) -> Send:
    """`send`, which adds headers to the response."""
    if not headers:
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers.items()]}
        await send(message)

    return sending
