"""Refusals in the shape of OpenAI's API."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from pd_handoff.errors import HandoffAborted, HandoffError
from pd_handoff.gateway._types import Send
from pd_handoff.model import Failure

if TYPE_CHECKING:
    from pd_handoff.gateway.topology import Room

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_OVERLOAD = (429, 503)


class Refused(Exception):  # noqa: N818  # as with the errors of the client, the name says what happened
    """A request that goes no further, and what its user is answered.

    Attributes:
        http_status: of the answer.
        message: one sentence for people.
        param: the user's own field, in the form `name` or `name[index]`; None where it is no field's fault.
        code: for programs, in snake_case.
        retry_after: seconds, for the header Retry-After; None for none.
        rooms: the hand-offs of the request, as far as they could be read.
    """

    rooms: tuple[Room, ...] = ()

    def __init__(
        self, http_status: int, message: str, *, param: str | None = None, code: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.http_status, self.message, self.param, self.code, self.retry_after)

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return openai_error(self.http_status, self.message, param=self.param, code=self.code)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer beside its type and length."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, math.ceil(self.retry_after))).encode())]

    async def answer(self, send: Send) -> None:
        """Sends the whole response."""
        body = json.dumps(self.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self.headers(),
        ]
        await send({"type": "http.response.start", "status": self.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    @classmethod
    def of_error(cls, error: HandoffError) -> Refused:
        """For an error of the store or of its client: its `http_status`; overload gets a Retry-After. An aborted
        hand-off is answered in the words of whoever aborted it."""
        if isinstance(error, HandoffAborted):
            return cls.of_failure(error.failure)
        if error.http_status in _OVERLOAD:
            return cls(error.http_status, error.message, code=error.reason.lower(), retry_after=error.retry_after or 1)
        return cls(error.http_status, error.message, code=error.reason.lower())

    @classmethod
    def of_failure(cls, failure: Failure) -> Refused:
        """For a hand-off that the other side ended: its status, where that is one of an error, else 502."""
        status = failure.http_status if 400 <= failure.http_status <= 599 else 502
        message = failure.message or f"the prefill of this request ended: {failure.reason}"
        retry_after = 1.0 if status in _OVERLOAD else None
        return cls(status, message, code=failure.reason.lower(), retry_after=retry_after)


def _restore(status: int, message: str, param: str | None, code: str, retry_after: float | None) -> Refused:
    return Refused(status, message, param=param, code=code, retry_after=retry_after)


def openai_error(http_status: int, message: str, *, param: str | None, code: str) -> dict[str, Any]:
    """The JSON body of an error as OpenAI's API and its client libraries have it."""
    kind = _KINDS.get(http_status, "invalid_request_error" if http_status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
