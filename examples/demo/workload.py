"""What is asked of the two processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CONTEXT = 256
"""Longest prompt plus output, in tokens."""

NEW_TOKENS = 16
"""Tokens generated a request, the first one included."""


@dataclass(frozen=True)
class Request:
    """One request as a gateway sends it to both sides, which meet in its room."""

    room: int
    prompt: str
    top_logprobs: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Request:
        """From plain values."""
        return cls(**values)


PLAIN = [
    Request(0, "The quick brown fox jumps over the lazy dog.", 0),
    Request(41, "In prefill/decode disaggregation the first token is sampled by one process,", 5),
    Request(2**63 + 11, "and every token after it by another. Größe, 中文, emoji: 🦊", 20),
    Request(2**64 - 1, "def fibonacci(n):\n    return n if n < 2 else", 128),
]
"""Handed over as they are. Rooms are any 64-bit numbers, 0 included."""

GREEDY = Request(50, "A user who asks for more alternatives than a row holds is served as many as it does hold.", 200)
"""Asks for more top logprobs than the store's limit; its gateway clamps it."""

STUBBORN = Request(51, "One whose gateway did not ask is refused before its prefill is paid for.", 129)
"""The same without a gateway that clamps."""

TOO_LONG = Request(52, "far too long " * (CONTEXT // 13 + 1), 5)
"""Its prompt does not fit the model; prefill notices after it has reserved."""
