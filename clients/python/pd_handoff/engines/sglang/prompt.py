"""What both sides know of a request: its prompt. Two requests that share a room by mistake differ in it."""

from __future__ import annotations

import hashlib
import sys
from array import array
from typing import Any

DIGEST = 16  # bytes


class Prompt:
    """A prompt's token ids, digested when the digest is asked for: a long prompt takes a millisecond, which is not the
    scheduler's."""

    def __init__(self, *parts: Any) -> None:
        self._parts: tuple[Any, ...] | None = parts
        self._digest = b""

    def digest(self) -> bytes:
        """DIGEST bytes, equal for equal token ids, whichever types hold them; equal to `digest_of_prompt`."""
        parts = self._parts
        if parts is not None:
            state = hashlib.blake2b(digest_size=DIGEST, person=b"pd-handoff")
            for part in parts:
                ids = part if isinstance(part, array) and part.typecode == "q" else array("q", part)
                if sys.byteorder == "big":
                    ids = array("q", ids)
                    ids.byteswap()
                state.update(ids)
            self._digest, self._parts = state.digest(), None
        return self._digest


def prompt_of(req: Any) -> Prompt | None:
    """The prompt as prefill gets it. A request that decode retracted is prefilled with the tokens that it has put out,
    too. None for a request with images, sound or video, whose sides may pad it differently."""
    if getattr(req, "multimodal_inputs", None) is not None:
        return None
    ids = getattr(req, "origin_input_ids", None)
    if ids is None:
        return None
    if getattr(req, "pd_rebootstrap_in_progress", False):
        return Prompt(ids, array("q", req.output_ids))
    return Prompt(ids)
