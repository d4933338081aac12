"""What a request may go on with; no HTTP, so that a gateway of another make can use it, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pd_handoff.gateway import fields, topology
from pd_handoff.gateway.answers import Refused
from pd_handoff.gateway.fields import Policy
from pd_handoff.gateway.topology import Bootstrap, Room

_NAMES = tuple(name.encode() for name in sorted(fields.NAMES | topology.NAMES)) + topology.ADDRESSES
UNKNOWN_LIMIT_RETRY = 1.0  # seconds after which a user may try again while no store has answered yet


@dataclass(frozen=True)
class Admitted:
    """A request that may go on.

    Attributes:
        rooms: the hand-offs that it takes part in; none for an ordinary request.
        notes: one per clamped parameter, such as `top_logprobs=200->128`.
        changed: whether the body differs from what came.
    """

    rooms: tuple[Room, ...] = ()
    notes: tuple[str, ...] = ()
    changed: bool = False


class Admission:
    """Checks the bodies of requests.

    Args:
        limit: returns the largest number of top logprobs at the moment, None while it is not known. Called per request,
            so it must not wait.
        policy: what to do with too many: "reject", or "clamp".
        bootstrap: whether SGLang's `bootstrap_host` and `bootstrap_port` stay in the body.
    """

    def __init__(
        self, limit: Callable[[], int | None], *, policy: Policy = "reject", bootstrap: Bootstrap = "strip"
    ) -> None:
        """Raises ValueError for another policy or bootstrap."""
        if policy not in ("reject", "clamp"):
            raise ValueError(f'policy is "reject" or "clamp", not {policy!r}')
        if bootstrap not in ("keep", "strip"):
            raise ValueError(f'bootstrap is "keep" or "strip", not {bootstrap!r}')
        self._limit = limit
        self._policy = policy
        self._bootstrap = bootstrap

    def admit(self, path: str, body: dict[str, Any], *, request_id: str | None = None) -> Admitted:
        """Cleans and clamps the body in place.

        Args:
            path: of the endpoint, such as `/v1/chat/completions`; one that generates nothing is admitted as it is.
            body: the request as parsed from JSON.
            request_id: makes the room of a request that asks for a hand-off without naming one.

        Raises Refused: 400 for too many top logprobs or a bad room, 503 while no limit is known. Its `rooms` are those
        of the request."""
        known = fields.fields_of(path)
        if known is None:
            return Admitted()
        rooms, changed = topology.clean(body, self._bootstrap, request_id)
        try:
            notes = self._check(known, body)
        except Refused as refused:
            refused.rooms = rooms
            raise
        return Admitted(rooms, tuple(notes), changed or bool(notes))

    def _check(self, known: tuple[fields.Field, ...], body: dict[str, Any]) -> list[str]:
        limit = self._limit()
        if limit is not None:
            return fields.check(known, body, limit, self._policy)
        for found in fields.asked(known, body):
            if found.number not in (0, None):
                raise Refused(
                    503,
                    f"{found.param} cannot be checked yet: no metadata store has answered since this server started",
                    param=found.param,
                    code="limits_unknown",
                    retry_after=UNKNOWN_LIMIT_RETRY,
                )
        return []


def parse(raw: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The body of a request, and whether it has to be written anew even if nothing in it changes (names given twice:
    engines differ in which one counts). None for a body that holds nothing to look at.

    Raises Refused (400) for what is no JSON object: an engine's parser may be more lenient than this one, so what
    cannot be read here does not go on."""
    if b"\\u" not in raw and b"\x00" not in raw and not any(name in raw for name in _NAMES):
        # Without \\u escapes and UTF-16 no name can hide. The engine refuses what is no JSON.
        return None, False
    twice = False

    def gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        made = dict(pairs)
        twice = twice or len(made) != len(pairs)
        return made

    try:
        body = json.loads(raw, object_pairs_hook=gather)
    except RecursionError:
        raise Refused(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {str(error)[:200]}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object", code="invalid_json")
    return body, twice
