"""Bodies of requests: read whole within bounds, and handed on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pd_handoff.gateway._types import Message, Receive, Scope
from pd_handoff.gateway.answers import Refused

_OVERLOAD_RETRY = 1.0  # seconds


class ClientLeft(Exception):  # noqa: N818
    """The client disconnected before its request was whole."""


class Budget:
    """Bytes that may be buffered: per request, and by all requests together."""

    def __init__(self, each: int, total: int) -> None:
        self.each = each
        self.total = total
        self.used = 0

    def take(self, size: int) -> None:
        """Raises Refused (503) when it would be too much for all."""
        if self.used + size > self.total:
            raise Refused(
                503,
                "this server holds too many request bodies at the moment",
                code="overloaded",
                retry_after=_OVERLOAD_RETRY,
            )
        self.used += size

    def give_back(self, size: int) -> None:
        """What `take` took."""
        self.used -= size


class Body:
    """The body of one request. Counts against the budget until `close`."""

    def __init__(self, scope: Scope, receive: Receive, budget: Budget) -> None:
        self._receive = receive
        self._budget = budget
        self._taken = 0
        self._headers = list(scope["headers"])
        self.raw = b""

    async def read(self) -> None:
        """Reads it whole. Raises Refused (413, 415, 503), ClientLeft."""
        declared = 0
        for name, value in self._headers:
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise Refused(
                    415,
                    f"content-encoding {value.decode('latin-1')[:64]!r} is not taken here; send the body as it is",
                    code="unsupported_content_encoding",
                )
            if name == b"content-length" and value.isdigit() and len(value) <= 18:
                declared = int(value)
        if declared > self._budget.each:
            raise self._too_large()
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            if part:
                if self._taken + len(part) > self._budget.each:
                    raise self._too_large()
                self._budget.take(len(part))
                self._taken += len(part)
                parts.append(part)
            more = message.get("more_body", False)
        self.raw = parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(
            413, f"the body is larger than the {self._budget.each} bytes that are taken here", code="body_too_large"
        )

    def replay(self, scope: Scope) -> tuple[Scope, Receive]:
        """The scope and `receive` with which the app gets the body, in one piece, and then what else comes."""
        headers = [(name, value) for name, value in self._headers if name not in _LENGTHS]
        headers.append((b"content-length", str(len(self.raw)).encode()))
        return {**scope, "headers": headers}, self._replayed(self._receive)

    def _replayed(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        sent = False

        async def replayed() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            raw, self.raw = self.raw, b""
            message: dict[str, Any] = {"type": "http.request", "body": raw, "more_body": False}
            return message

        return replayed

    def close(self) -> None:
        """The request is over."""
        self._budget.give_back(self._taken)
        self._taken = 0


_LENGTHS = (b"content-length", b"transfer-encoding")
