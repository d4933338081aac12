"""Which hand-off a request of SGLang's is."""

from __future__ import annotations

from typing import Any

from pd_handoff.errors import invalid_request
from pd_handoff.model import Key

FAKE_HOST = "2.2.2.2"  # the bootstrap host by which SGLang marks warm-ups and health checks, which have no peer


def key_of(req: Any, *, namespace: str | None = None) -> Key:
    """The key of a request: its `bootstrap_room`, and which of n samples it is.

    SGLang gives all n samples of one prompt the same room. The engine tells them apart by an attribute
    `handoff_sample` of the request; without it, it is 0. None as `namespace` is the client's own.

    Raises InvalidRequest when the request has no room.
    """
    if req.bootstrap_room is None:
        raise invalid_request("bootstrap_room", "a disaggregated request needs one; 0 is a room, None is not")
    return Key(int(req.bootstrap_room), int(getattr(req, "handoff_sample", 0)), namespace)


def sample_keys(room: int, n: int, *, namespace: str | None = None) -> list[Key]:
    """Keys of the n samples of one prompt. No two are equal, and none is equal to one of another room's, however
    close: SGLang counts rooms up from the first instead (rooms 5 and 6 with n = 2 meet in 6)."""
    return [Key(room, sample, namespace) for sample in range(n)]


def is_fake_transfer(req: Any) -> bool:
    """True for SGLang's warm-up and health-check requests: nothing of theirs is handed over."""
    return getattr(req, "bootstrap_host", None) == FAKE_HOST
