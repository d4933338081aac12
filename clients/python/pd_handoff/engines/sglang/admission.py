"""Refusing, before any compute, what could not be handed over after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pd_handoff.capabilities import Capabilities
from pd_handoff.engines.sglang.request import SELECTED_BYTES
from pd_handoff.errors import OVERFLOW_PHRASE
from pd_handoff.model import Widths

Policy = Literal["reject", "clamp"]


class RequestRefused(ValueError):  # noqa: N818  # as with the errors of the client, the name says what happened
    """What a user asked for does not fit. A ValueError, which SGLang's HTTP server answers with status 400 and the
    text.

    Attributes:
        http_status: what to answer; always the user's own doing, so 400.
        field: name of the request's parameter.
        requested, limit: both numbers, in the parameter's unit; None where it is not a matter of numbers.
        index: which request of a batch, from 0; None when it was none.
    """

    http_status = 400

    def __init__(
        self, text: str, field: str, requested: int | None = None, limit: int | None = None, index: int | None = None
    ) -> None:
        super().__init__(text if index is None else f"{text} (request {index} of the batch)")
        self.field = field
        self.requested = requested
        self.limit = limit
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (str(self), self.field, self.requested, self.limit, self.index)


def _restore(text: str, field: str, requested: int | None, limit: int | None, index: int | None) -> RequestRefused:
    error = RequestRefused(text, field, requested, limit)
    error.index = index
    return error


@dataclass(frozen=True)
class Admitted:
    """What a request may go on with.

    Attributes:
        changes: parameter -> value in its given form (number or list); empty when it fits as it is.
        notes: one sentence a clamped parameter, for the log or a response header.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def apply(self, params: Any) -> None:
        """Sets the changes, on an object's attributes or a dictionary's items."""
        for name, value in self.changes.items():
            if isinstance(params, dict):
                params[name] = value
            else:
                setattr(params, name, value)


class Admission:
    """Checks a request's parameters against what a store can hand over; costs no call.

    Takes SGLang's `GenerateReqInput` and `TokenizedGenerateReqInput`, or the JSON body of /generate as a dictionary;
    each parameter alone or as a list, one a request of the batch.

    Args:
        limits: the store's Capabilities, or its limits.
        policy: what to do with too many top logprobs and with hidden states for the user: "reject", or "clamp" (fewer
            of them; none). Lists of token ids that a user wrote out, and malformed values, are rejected in either
            case.
        hidden_states: let `return_hidden_states` pass. The prefill's states do not cross over (SGLang's class has no
            room for them either), so a user gets those of the decode steps alone.
    """

    def __init__(
        self, limits: Capabilities | Widths, policy: Policy = "reject", *, hidden_states: bool = False
    ) -> None:
        """Raises ValueError for another policy."""
        if policy not in ("reject", "clamp"):
            raise ValueError(f'policy is "reject" or "clamp", not {policy!r}')
        self.limits = limits.limits if isinstance(limits, Capabilities) else limits
        self.policy = policy
        self.hidden_states = hidden_states

    def check(self, params: Any) -> Admitted:
        """What to change, if anything. Raises RequestRefused, whose text and `http_status` are for the user."""
        changes: dict[str, Any] = {}
        notes: list[str] = []
        self._top_logprobs(params, changes, notes)
        self._token_ids(params)
        self._sampling_mask(params)
        self._hidden_states(params, changes, notes)
        return Admitted(changes, tuple(notes))

    def _top_logprobs(self, params: Any, changes: dict[str, Any], notes: list[str]) -> None:
        name, limit = "top_logprobs_num", self.limits.top_logprobs
        given = _get(params, name)
        kept = []
        for index, asked in _each(given):
            number = 0 if asked is None else asked
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise RequestRefused(f"{name} must be a whole number from 0, not {number!r}", name, index=index)
            # Without return_logprob SGLang computes none, and none are handed over.
            over = number > limit and _wants(_get(params, "return_logprob"), index)
            if over and self.policy == "reject":
                raise _too_many(name, number, limit, index)
            if over:
                notes.append(_clamped(name, number, limit, index))
            kept.append(limit if over else number)
        if notes:
            changes[name] = kept if isinstance(given, (list, tuple)) else kept[0]

    def _token_ids(self, params: Any) -> None:
        name, limit = "token_ids_logprob", self.limits.token_ids_logprobs
        given = _get(params, name)
        if given is None:
            return
        nested = isinstance(given, (list, tuple)) and any(hasattr(row, "__len__") for row in given)
        for index, row in enumerate(given) if nested else [(None, given)]:
            count = len(row) if hasattr(row, "__len__") else int(row is not None)
            if count > limit and _wants(_get(params, "return_logprob"), index):
                raise _too_many(name, count, limit, index)

    def _sampling_mask(self, params: Any) -> None:
        name, limit = "return_sampling_mask", self.limits.sampling_mask_tokens
        for index, wanted in _each(_get(params, name)):
            if not wanted:
                continue
            if not limit:
                raise RequestRefused(f"{name}: this deployment hands no sampling masks over", name, 1, 0, index)
            mode = _of(_get(params, "sampling_logprobs_mode"), index) or "selected"
            if mode == "selected" and self.limits.customized_info_bytes < SELECTED_BYTES:
                raise RequestRefused(
                    'sampling_logprobs_mode "selected": this deployment hands over only those of mode "support"',
                    "sampling_logprobs_mode",
                    SELECTED_BYTES,
                    self.limits.customized_info_bytes,
                    index,
                )
            sampling = _of(_get(params, "sampling_params"), index)
            top_k = None if sampling is None else _get(sampling, "top_k")
            if isinstance(top_k, int) and limit < top_k < 1 << 30:  # SGLang's "all of them"; its own check refuses that
                raise _too_many("top_k", top_k, limit, index)

    def _hidden_states(self, params: Any, changes: dict[str, Any], notes: list[str]) -> None:
        name = "return_hidden_states"
        given = _get(params, name)
        if self.hidden_states:
            return
        wanted = [index for index, mode in _each(given) if mode]
        if not wanted:
            return
        text = f"{name}: the prefill's hidden states are not handed over to decode in this deployment"
        if self.policy == "reject":
            raise RequestRefused(text, name, index=wanted[0])
        notes.append(text)
        changes[name] = [False] * len(given) if isinstance(given, (list, tuple)) else False


def model_info(limits: Capabilities | Widths) -> dict[str, int | bool]:
    """The limits in the shape of SGLang's /model_info: plain names and numbers, to be merged into its dictionary, so
    that a gateway clamps before it submits."""
    widths = limits.limits if isinstance(limits, Capabilities) else limits
    return {
        "max_top_logprobs_num": widths.top_logprobs,
        "max_token_ids_logprob": widths.token_ids_logprobs,
        "max_sampling_mask_tokens": widths.sampling_mask_tokens,
        "has_disaggregated_hidden_states": False,
    }


def _get(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def _each(value: Any) -> list[tuple[int | None, Any]]:
    return list(enumerate(value)) if isinstance(value, (list, tuple)) else [(None, value)]


def _of(value: Any, index: int | None) -> Any:
    if not isinstance(value, (list, tuple)):
        return value
    return value[index] if index is not None and index < len(value) else None


def _wants(return_logprob: Any, index: int | None) -> bool:
    """Whether the request has logprobs on; a number alone stands for every request of a batch."""
    if isinstance(return_logprob, (list, tuple)) and index is None:
        return any(return_logprob)
    return bool(_of(return_logprob, index))


def _too_many(name: str, requested: int, limit: int, index: int | None) -> RequestRefused:
    return RequestRefused(f"{name} {requested} {OVERFLOW_PHRASE} {limit}", name, requested, limit, index)


def _clamped(name: str, requested: int, limit: int, index: int | None) -> str:
    where = "" if index is None else f" of request {index}"
    return f"{name}{where} clamped from {requested} to {limit}"
