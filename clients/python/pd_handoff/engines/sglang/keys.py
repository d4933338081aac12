"""Which hand-off a request of SGLang's is."""

from __future__ import annotations

import operator
from math import lcm
from typing import Any

from pd_handoff.engines.sglang.runtime import transfers_are_fake
from pd_handoff.errors import InvalidRequest, invalid_request
from pd_handoff.model import Key

FAKE_HOST = "2.2.2.2"  # the bootstrap host by which SGLang marks warm-ups and health checks, which have no peer
ROOMS = 1 << 64

# From one sample's room to the next. A multiple of every usual number of data-parallel ranks, since SGLang picks the
# rank by `room % ranks`; far more than a router that counts its rooms up ever gets through.
SAMPLE_STEP = lcm(*range(1, 17)) << 20


def key_of(req: Any, *, namespace: str | None = None) -> Key:
    """The key of a request: its `bootstrap_room`, and which of n samples it is.

    SGLang's own n samples have a room each (see `give_sample_room`). An engine that runs samples under one room tells
    them apart by an attribute `handoff_sample` of the request; without it, it is 0. None as `namespace` is the client's
    own.

    Raises InvalidRequest when the request has no room, or what it has is none.
    """
    room = _number("bootstrap_room", req.bootstrap_room, ROOMS)
    return Key(room, _number("handoff_sample", getattr(req, "handoff_sample", 0), 1 << 32), namespace)


def _number(name: str, value: Any, end: int) -> int:
    if value is None:
        raise invalid_request(name, "a disaggregated request needs one; 0 is a room, None is not")
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < end:
        raise invalid_request(name, f"must be a whole number from 0 to {end - 1}, is {value!r}")
    return number


def sample_room(room: int, sample: int) -> int:
    """The room of one of n samples, from 0, of a request in `room`. Never `room` itself: SGLang prefills the prompt
    there once, before the samples. Raises InvalidRequest for what is no room."""
    return (_number("bootstrap_room", room, ROOMS) + (sample + 1) * SAMPLE_STEP) % ROOMS


def give_sample_room(request: Any, sample: int) -> None:
    """For the loop in SGLang's tokenizer that sends a request n times: gives the copy a room of its own. Prefill and
    decode do this each for themselves and come to the same rooms; the KV cache, too, is transferred by room. Leaves
    alone what is not disaggregated, and what is no room: that fails where it is used."""
    try:
        request.bootstrap_room = sample_room(request.bootstrap_room, sample)
    except InvalidRequest:
        return


def sample_keys(room: int, n: int, *, namespace: str | None = None) -> list[Key]:
    """Keys of n samples that share a room. No two are equal, and none is equal to one of another room's, however
    close: SGLang counts rooms up from the first instead (rooms 5 and 6 with n = 2 meet in 6)."""
    return [Key(room, sample, namespace) for sample in range(n)]


def is_fake_transfer(req: Any) -> bool:
    """True for requests that SGLang hands over to nobody: warm-ups and health checks, and with the transfer backend
    "fake" all that name no bootstrap host."""
    host = getattr(req, "bootstrap_host", None)
    return host == FAKE_HOST or (host is None and transfers_are_fake())
