"""A request of vLLM's engine core: which hand-off it is a part of, and on which side. Nothing here imports vllm."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from pd_handoff.engines.vllm.http_request import further_digest
from pd_handoff.gateway.topology import room_of
from pd_handoff.model import Key, digest_of_prompt

log = logging.getLogger("vllm.pd_handoff")
Side = Literal["prefill", "decode"]

_SUFFIX = re.compile(r"-[0-9a-f]{8}$")  # vLLM's own, which makes each id unique
_SAMPLE = re.compile(r"^(\d+)_(?=(?:cmpl|chatcmpl|resp|generate-tokens)[-_])")
_KIND = re.compile(r"^(cmpl|chatcmpl|resp|generate-tokens)[-_]")
_OF_PROMPTS = re.compile(r"-(\d+)$")
_OF_PARTS = re.compile(r"_(\d+)$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine request stands in the HTTP request that it came with.

    Attributes:
        request_id: the id of the HTTP request, as `X-Request-Id` gave it.
        prompt: which of the prompts, or which turn, from 0.
        sample: which of n samples of the prompt, from 0.
    """

    request_id: str
    prompt: int
    sample: int


def place_of(request_id: str) -> Place:
    """Reads an internal request id of vLLM, such as `1_cmpl-abc-0-0123abcd`."""
    sample = 0
    found = _SAMPLE.match(request_id)
    if found:
        sample, request_id = int(found[1]), request_id[found.end() :]
    if not os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0").strip("0"):
        request_id = _SUFFIX.sub("", request_id)
    kind = _KIND.match(request_id)
    if kind is None:
        return Place(request_id, 0, sample)
    rest = request_id[kind.end() :]
    numbered = (_OF_PROMPTS if kind[1] == "cmpl" else _OF_PARTS).search(rest)
    if numbered is None:
        return Place(rest, 0, sample)
    return Place(rest[: numbered.start()], int(numbered[1]), sample)


@dataclass(frozen=True, slots=True)
class Leg:
    """One side of a hand-off.

    Attributes:
        side: "prefill" or "decode".
        key: of the hand-off. Each prompt of a list has a sample of its own.
        attempt: 0 is the first.
        place: of the engine request.
        answers: whether something before the engine answers the user when prefill refuses.
    """

    side: Side
    key: Key
    attempt: int
    place: Place
    answers: bool = False

    @property
    def fetches(self) -> bool:
        """Whether this engine request is the one whose KV cache crosses. Further samples of the same prompt compute it
        themselves: prefill's blocks can be fetched once."""
        return self.place.sample == 0


def leg_of(params: dict[str, Any], request_id: str, default_side: Side | None, by_request_id: bool) -> Leg | None:
    """The hand-off that `kv_transfer_params` ask for; None for none.

    Args:
        params: as they came with the request.
        request_id: vLLM's internal one.
        default_side: which side this engine is, for parameters that name a room and say nothing of a side.
        by_request_id: whether the request id makes the room of a request that names none.
    """
    handoff = params.get("handoff")
    if not isinstance(handoff, dict):
        handoff = {}
    named = handoff.get("room") is not None
    side: Side | None
    if params.get("do_remote_decode"):
        side = "prefill"
    elif params.get("do_remote_prefill"):
        side = "decode"
    else:
        side = default_side if named else None
    if side is None or not (named or by_request_id):
        return None
    place = place_of(request_id)
    if not named:
        return Leg(side, Key(room_of(place.request_id), place.prompt), 0, place)
    try:
        room, sample, attempt = (
            _unsigned(handoff.get(name, 0), bits) for name, bits in (("room", 64), ("sample", 32), ("attempt", 64))
        )
    except ValueError as error:
        log.warning("request %s: no hand-off, computed here: %s", request_id, error)
        return None
    key = Key(room, (sample + place.prompt) % (1 << 32))
    return Leg(side, key, attempt, place, answers=handoff.get("answers") is True)


def _unsigned(value: Any, bits: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise ValueError(f"kv_transfer_params.handoff holds {str(value)[:64]!r}, which is no number of {bits} bits")
    return value


def digest_of(request: Any) -> bytes | None:
    """The digest of what the KV cache of this prompt depends on: its token ids, and what of images and the like stands
    for them. None for a prompt of embeddings, which has no token ids."""
    token_ids = request.prompt_token_ids
    if token_ids is None:
        return None
    digest = digest_of_prompt(token_ids)
    features = [feature.identifier for feature in getattr(request, "mm_features", None) or ()]
    salt = getattr(request, "cache_salt", None)
    adapter = getattr(getattr(request, "lora_request", None), "lora_name", None)
    return further_digest(digest, features, salt, adapter) if features or salt or adapter else digest
