"""Which parameters of which endpoint ask for top logprobs, and how many they ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pd_handoff.errors import OVERFLOW_PHRASE
from pd_handoff.gateway.answers import Refused

Policy = Literal["reject", "clamp"]


class Field(NamedTuple):
    """One parameter that asks for top logprobs.

    Attributes:
        path: keys from the body down to it.
        switch: a parameter beside it without which the engine computes none; None where there is none.
        boolean: the same name may be a plain switch (chat's `logprobs`) that asks for no number.
    """

    path: tuple[str, ...]
    switch: str | None = None
    boolean: bool = False


_PROMPT = Field(("prompt_logprobs",))
_CHAT = (Field(("top_logprobs",), "logprobs"), _PROMPT)
_COMPLETIONS = (Field(("logprobs",)), _PROMPT)
_RESPONSES = (Field(("top_logprobs",)), _PROMPT)
_GENERATE = (Field(("top_logprobs_num",), "return_logprob"), _PROMPT)
_TOKENS = (Field(("sampling_params", "logprobs")), Field(("sampling_params", "prompt_logprobs")))
_ANY = (
    Field(("top_logprobs",), "logprobs"),
    Field(("logprobs",), boolean=True),
    Field(("top_logprobs_num",), "return_logprob"),
    _PROMPT,
    Field(("parameters", "top_logprobs_num"), "return_logprob"),
)

# The end of a path, so that a proxy's prefix (/openai/deployments/x/...) is no way around; longer ends first.
_BY_END: tuple[tuple[str, tuple[Field, ...]], ...] = (
    ("/chat/completions", _CHAT),
    ("/chat/completions/batch", _CHAT),
    ("/completions", _COMPLETIONS),
    ("/v1/responses", _RESPONSES),
    ("/v1/messages", _CHAT),
    ("/inference/v1/generate", _TOKENS),
)
_BY_PATH: dict[str, tuple[Field, ...]] = {
    "/responses": _RESPONSES,
    "/generate": _GENERATE,
    "/invocations": _ANY,
    "/vertex_generate": _ANY,
}


def fields_of(path: str) -> tuple[Field, ...] | None:
    """The parameters to look at for a path, without the root path of a mounted app; None for what generates nothing."""
    if path in _BY_PATH:
        return _BY_PATH[path]
    return next((fields for end, fields in _BY_END if path.endswith(end)), None)


NAMES = frozenset(name for fields in (_CHAT, _COMPLETIONS, _GENERATE) for field in fields for name in field.path[-1:])
"""Every parameter's own name: a body without any of them asks for nothing."""


class Asked(NamedTuple):
    """One number that a body asks for.

    Attributes:
        holder, key: where it stands: `holder[key]`.
        number: how many; -1 is the whole vocabulary.
        param: how its user knows it.
    """

    holder: Any
    key: Any
    number: int
    param: str


def asked(fields: tuple[Field, ...], body: dict[str, Any]) -> Iterator[Asked]:
    """Every number in the body that counts. What is no number is left to the engine's own validation."""
    for field in fields:
        holder: Any = body
        for name in field.path[:-1]:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        name = field.path[-1]
        param = ".".join(field.path)
        value = holder.get(name)
        if isinstance(value, list):
            for index, item in enumerate(value):
                number = number_of(item)
                if number is not None and _is_on(holder, field.switch, index):
                    yield Asked(value, index, number, f"{param}[{index}]")
            continue
        number = None if field.boolean and isinstance(value, bool) else number_of(value)
        if number is not None and _is_on(holder, field.switch, None):
            yield Asked(holder, name, number, param)


def number_of(value: Any) -> int | None:
    """The number that an engine would read, which takes "20", 20.0 and true for one, too; None for anything else."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        try:
            value = float(value.strip())
        except ValueError:
            return None
    if not isinstance(value, float) or math.isnan(value):
        return None
    if math.isinf(value):
        return 1 << 64
    return math.floor(value) if value < 0 else math.ceil(value)


def _is_on(holder: dict[str, Any], switch: str | None, index: int | None) -> bool:
    if switch is None:
        return True
    value = holder.get(switch)
    if isinstance(value, list):
        return any(value) if index is None else index >= len(value) or bool(value[index])
    return bool(value)


def check(fields: tuple[Field, ...], body: dict[str, Any], limit: int, policy: Policy) -> list[str]:
    """Clamps the body in place; returns one note per parameter. Raises Refused where the policy is to reject."""
    notes = []
    for found in asked(fields, body):
        if found.number != -1 and found.number <= limit:
            continue
        if policy == "reject":
            raise too_many(found, limit)
        found.holder[found.key] = limit
        notes.append(f"{found.param}={found.number}->{limit}")
    return notes


def too_many(found: Asked, limit: int) -> Refused:
    """What its user is answered."""
    number = "-1 (the whole vocabulary)" if found.number == -1 else str(found.number)
    return Refused(
        400,
        f"{found.param} {number} {OVERFLOW_PHRASE} {limit}; ask for at most {limit}",
        param=found.param,
        code="top_logprobs_overflow",
    )
