"""What a user is told, and whose fault it is."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pd_handoff._values.failure_text import text_of
from pd_handoff.errors import (
    FieldOverflow,
    HandoffAborted,
    HandoffError,
    HandoffExists,
    InvalidRequest,
    RequestMismatch,
    StaleReservation,
    TopLogprobsOverflow,
)
from pd_handoff.model import Failure, Key


class Unworkable(HandoffError):  # noqa: N818  # as with the other errors of the client
    """A call failed in this process, by a setting or a fault of its own: nothing that the store or a user did."""

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message, **{"reason": "INTERNAL", "code": "INTERNAL", **details})


# Parts of a record that are as long as a user's parameters make them; the others follow from the engines' settings.
_USERS_OWN = ("token_ids_logprobs", "sampling_mask_tokens")


def failure_of(error: HandoffError, prefix: str = "") -> Failure:
    """An error of the store or of the client as a request's end. 4xx is for what the user or whoever made up the room
    can change; where the two sides, or an engine and its store, do not agree among themselves, it is 500."""
    if isinstance(error, HandoffAborted):
        return error.failure
    return Failure(_status(error), error.reason, f"{prefix}{error}")


def _status(error: HandoffError) -> int:
    if isinstance(error, RequestMismatch):
        return 409
    theirs = isinstance(error, (TopLogprobsOverflow, HandoffExists, StaleReservation, InvalidRequest)) or (
        isinstance(error, FieldOverflow) and error.field in _USERS_OWN
    )
    return error.http_status if theirs or error.http_status >= 500 else 500


def fault_of(error: BaseException) -> Failure:
    """What is neither a refusal of the store's nor the user's doing. The log has the details, the user their kind."""
    return Failure(500, "INTERNAL", f"the hand-off between prefill and decode failed: {type(error).__name__}")


def failure_from_sglang(message: Any, status_code: Any) -> Failure:
    """SGLang's abort as the store keeps it: `message` may be an exception. An abort without a status is one that
    somebody asked for."""
    text = text_of(message)
    try:
        status = int(status_code or 0)
    except (TypeError, ValueError):
        status = 0
    if not 100 <= status <= 599:
        return Failure(500, "ABORTED", text)
    try:
        return Failure(status, HTTPStatus(status).name, text)
    except ValueError:
        return Failure(status, "ABORTED", text)


def reason_of(finished: Any) -> tuple[str, int | None] | None:
    """(message, HTTP status) of SGLang's FINISH_ABORT, as the object or as the dictionary that goes to the tokenizer;
    None for another end, such as a length reached."""
    if finished is None:
        return "Aborted", None
    if isinstance(finished, dict):
        if finished.get("type", "abort") != "abort":
            return None
        return text_of(finished.get("message") or "Aborted"), finished.get("status_code")
    if not hasattr(finished, "status_code"):
        return None
    return text_of(finished.message or "Aborted"), finished.status_code


def shared(key: Key) -> str:
    """What a request is told that came second."""
    return (
        f"room {key.room}, sample {key.sample} belongs to another request that is still live here; each needs a room "
        "or a handoff_sample of its own"
    )
