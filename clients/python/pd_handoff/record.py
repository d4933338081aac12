"""What is handed over, as plain dataclasses, and their way to and from the wire.

Each class has the fields of the message of its name. Lists of numbers may be lists, tuples, numpy arrays or torch
tensors; they are read once, when the record is put. What comes back from a store holds plain lists. Two parts are equal
when they are the same on the wire, bit for bit.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from pd_handoff import _arrays, _json
from pd_handoff._arrays import Float, Floats, Int, Ints, UnfitError
from pd_handoff._integers import shown
from pd_handoff.errors import invalid_record
from pd_handoff.tensor import Tensor
from pd_handoff.v1 import record_pb2 as pb

T = TypeVar("T")

# The first byte of a field on the wire: (number << 3) | type, 2 = length-delimited, 5 = four bytes.
_VALUES = b"\x0a"  # Logprobs.values
_LOGPROB = b"\x15"  # SampledToken.logprob
_MASK_LOGPROBS = b"\x12"  # SamplingMask.logprobs
_TOPK_P = b"\x0a"  # SpeculativeState.topk_p
# A field's kind -> bits, signed.
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
    FieldDescriptor.CPPTYPE_ENUM: (32, True),
}


class FinishReason(enum.IntEnum):
    """How a request ended."""

    STOP = 1
    LENGTH = 2
    ABORT = 3


class Part:
    """What the record and its parts have in common."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # mutable
    _message: ClassVar[type[Any]]

    def to_proto(self) -> Any:
        """The message. Raises InvalidRecord for values that it cannot hold."""
        message = self._message()
        self.write_to(message)
        return message

    def write_to(self, message: Any) -> None:
        """Fills an empty message, and marks it present in its parent. Raises InvalidRecord for values that it cannot
        hold."""
        try:
            self._write(message)
        except UnfitError as unfit:
            raise invalid_record(unfit.path, unfit.description) from None

    @abstractmethod
    def _write(self, message: Any) -> None:
        """Fills the message. Raises UnfitError."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine: Any = self.to_proto().SerializeToString(deterministic=True)
        return bool(mine == other.to_proto().SerializeToString(deterministic=True))


@dataclass(slots=True, eq=False)
class Logprobs(Part):
    """Natural-log probabilities and the token ids they belong to, position by position."""

    values: Floats = ()
    token_ids: Ints = ()
    _message = pb.Logprobs

    def _write(self, message: pb.Logprobs) -> None:
        message.SetInParent()  # present and empty is not absent
        _put_floats(message, _VALUES, "values", self.values)
        _put_ints(message, "token_ids", self.token_ids)

    @classmethod
    def from_proto(cls, message: pb.Logprobs) -> Logprobs:
        """From the message."""
        return cls(list(message.values), list(message.token_ids))


@dataclass(slots=True, eq=False)
class Token(Part):
    """One sampled token; the message `SampledToken`."""

    token_id: Int
    logprob: Float | None = None
    top_logprobs: Logprobs | None = None
    token_ids_logprobs: Logprobs | None = None
    _message = pb.SampledToken

    def _write(self, message: pb.SampledToken) -> None:
        _set_int(message, "token_id", self.token_id)
        if self.logprob is not None:
            try:
                message.MergeFromString(_LOGPROB + _arrays.float32_of(self.logprob))
            except UnfitError as unfit:
                raise unfit.within("logprob") from None
        if self.top_logprobs is not None:
            _write_part(self.top_logprobs, message, "top_logprobs")
        if self.token_ids_logprobs is not None:
            _write_part(self.token_ids_logprobs, message, "token_ids_logprobs")

    @classmethod
    def from_proto(cls, message: pb.SampledToken) -> Token:
        """From the message."""
        return cls(
            message.token_id,
            message.logprob if message.HasField("logprob") else None,
            _optional(Logprobs.from_proto, message, "top_logprobs"),
            _optional(Logprobs.from_proto, message, "token_ids_logprobs"),
        )


@dataclass(slots=True, eq=False)
class _Counters(Part):
    def _write(self, message: Any) -> None:
        message.SetInParent()
        names: tuple[str, ...] = self.__slots__
        for name in names:
            value = getattr(self, name)
            if value is not None:
                _set_int(message, name, value)

    @classmethod
    def _read(cls, message: Any) -> dict[str, int]:
        return {field.name: value for field, value in message.ListFields()}


@dataclass(slots=True, eq=False)
class CachedTokens(_Counters):
    """Prompt tokens that came from a cache. None is unknown; nothing is ever added up."""

    total: Int | None = None
    device: Int | None = None
    host: Int | None = None
    storage: Int | None = None
    _message = pb.CachedTokens

    @classmethod
    def from_proto(cls, message: pb.CachedTokens) -> CachedTokens:
        """From the message."""
        return cls(**cls._read(message))


@dataclass(slots=True, eq=False)
class ModalityTokens(_Counters):
    """Prompt tokens by what they stand for. None is unknown."""

    image: Int | None = None
    audio: Int | None = None
    video: Int | None = None
    _message = pb.ModalityTokens

    @classmethod
    def from_proto(cls, message: pb.ModalityTokens) -> ModalityTokens:
        """From the message."""
        return cls(**cls._read(message))


@dataclass(slots=True, eq=False)
class SamplingMask(Part):
    """The tokens that survived the sampler's filters; `logprobs` has none, or one an id."""

    token_ids: Ints = ()
    logprobs: Floats = ()
    truncated: bool = False
    _message = pb.SamplingMask

    def _write(self, message: pb.SamplingMask) -> None:
        message.SetInParent()
        _put_ints(message, "token_ids", self.token_ids)
        _put_floats(message, _MASK_LOGPROBS, "logprobs", self.logprobs)
        message.truncated = bool(self.truncated)

    @classmethod
    def from_proto(cls, message: pb.SamplingMask) -> SamplingMask:
        """From the message."""
        return cls(list(message.token_ids), list(message.logprobs), message.truncated)


@dataclass(slots=True, eq=False)
class SpeculativeState(Part):
    """What a draft model needs to go on. `hidden_states` may be given as an array; it comes back as a Tensor."""

    topk_p: Floats = ()
    topk_index: Ints = ()
    hidden_states: Tensor | Floats | None = None
    dsa_topk_indices: Ints = ()
    _message = pb.SpeculativeState

    def _write(self, message: pb.SpeculativeState) -> None:
        message.SetInParent()
        _put_floats(message, _TOPK_P, "topk_p", self.topk_p)
        _put_ints(message, "topk_index", self.topk_index)
        _put_ints(message, "dsa_topk_indices", self.dsa_topk_indices)
        states = self.hidden_states
        if states is None:
            return
        try:
            tensor = states if isinstance(states, Tensor) else Tensor.of(states)
            tensor.write_to(message.hidden_states)
        except UnfitError as unfit:
            raise unfit.within("hidden_states") from None
        except (ValueError, TypeError) as error:
            raise UnfitError(str(error), "hidden_states.shape") from None

    @classmethod
    def from_proto(cls, message: pb.SpeculativeState) -> SpeculativeState:
        """From the message."""
        return cls(
            list(message.topk_p),
            list(message.topk_index),
            _optional(Tensor.from_proto, message, "hidden_states"),
            list(message.dsa_topk_indices),
        )


@dataclass(slots=True, eq=False)
class KvChecksum(Part):
    """What the KV cache must look like once it has arrived; two unsigned 64-bit numbers of the engine."""

    digest: Int = 0
    layout_signature: Int = 0
    _message = pb.KvChecksum

    def _write(self, message: pb.KvChecksum) -> None:
        message.SetInParent()
        _set_int(message, "digest", self.digest)
        _set_int(message, "layout_signature", self.layout_signature)

    @classmethod
    def from_proto(cls, message: pb.KvChecksum) -> KvChecksum:
        """From the message."""
        return cls(message.digest, message.layout_signature)


@dataclass(slots=True, eq=False)
class Record(Part):
    """What prefill knows and decode needs; the message `HandoffRecord`. None leaves a part out, which is not the same
    as empty.

    Attributes:
        tokens: the hand-off token first, then those of multi-token prediction.
        cached_tokens, modality_tokens: counters of prompt tokens.
        sampling_mask: which tokens the sampler kept for the hand-off token.
        speculative: a draft model's state.
        kv_checksum: what the KV cache must look like.
        finish_reason: set when the hand-off token already ends the request.
        reasoning_tokens: tokens counted as reasoning so far.
        customized_info: opaque bytes of the engine.
    """

    tokens: Sequence[Token] = ()
    cached_tokens: CachedTokens | None = None
    modality_tokens: ModalityTokens | None = None
    sampling_mask: SamplingMask | None = None
    speculative: SpeculativeState | None = None
    kv_checksum: KvChecksum | None = None
    finish_reason: FinishReason | None = None
    reasoning_tokens: Int | None = None
    customized_info: bytes | bytearray | memoryview | None = None
    _message = pb.HandoffRecord

    def _write(self, message: pb.HandoffRecord) -> None:
        message.SetInParent()
        for index, token in enumerate(self.tokens):
            try:
                token._write(message.tokens.add())
            except UnfitError as unfit:
                raise unfit.within(f"tokens[{index}]") from None
        for name in ("cached_tokens", "modality_tokens", "sampling_mask", "speculative", "kv_checksum"):
            part: Part | None = getattr(self, name)
            if part is not None:
                _write_part(part, message, name)
        if self.finish_reason is not None:
            _set_int(message, "finish_reason", self.finish_reason)
        if self.reasoning_tokens is not None:
            _set_int(message, "reasoning_tokens", self.reasoning_tokens)
        if self.customized_info is not None:
            if not isinstance(self.customized_info, (bytes, bytearray, memoryview)):
                raise UnfitError(f"must be bytes, is a {type(self.customized_info).__name__}", "customized_info")
            message.customized_info = bytes(self.customized_info)

    @classmethod
    def from_proto(cls, message: pb.HandoffRecord) -> Record:
        """From the message. Raises InvalidRecord for an enum value that this version does not know."""
        return cls(
            [Token.from_proto(token) for token in message.tokens],
            _optional(CachedTokens.from_proto, message, "cached_tokens"),
            _optional(ModalityTokens.from_proto, message, "modality_tokens"),
            _optional(SamplingMask.from_proto, message, "sampling_mask"),
            _optional(SpeculativeState.from_proto, message, "speculative"),
            _optional(KvChecksum.from_proto, message, "kv_checksum"),
            _finish_reason(message.finish_reason) if message.HasField("finish_reason") else None,
            message.reasoning_tokens if message.HasField("reasoning_tokens") else None,
            message.customized_info if message.HasField("customized_info") else None,
        )

    def to_json(self, *, indent: int | None = 2) -> str:
        """Readable JSON: protobuf's own form with the proto's field names; bytes as base64, 64-bit integers as strings,
        NaN and infinities as strings (a NaN loses its payload)."""
        return json_format.MessageToJson(self.to_proto(), preserving_proto_field_name=True, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """From what `to_json` wrote, or a person. Raises InvalidRecord, saying where, for anything else."""
        return cls.from_proto(_json.record_of(text))


def _optional(read: Callable[[Any], T], message: Any, name: str) -> T | None:
    return read(getattr(message, name)) if message.HasField(name) else None


def _finish_reason(number: int) -> FinishReason:
    try:
        return FinishReason(number)
    except ValueError:
        raise invalid_record("finish_reason", f"unknown value {number}") from None


def _write_part(part: Part, message: Any, name: str) -> None:
    try:
        part._write(getattr(message, name))
    except UnfitError as unfit:
        raise unfit.within(name) from None


def _put_floats(message: Any, tag: bytes, name: str, values: Floats) -> None:
    try:
        data = _arrays.float32_bytes(values)
    except UnfitError as unfit:
        raise unfit.within(name) from None
    if data:
        message.MergeFromString(tag + _varint(len(data)) + data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _put_ints(message: Any, name: str, values: Ints) -> None:
    try:
        numbers = _arrays.int_list(values)
    except UnfitError as unfit:
        raise unfit.within(name) from None
    try:
        getattr(message, name).extend(numbers)
    except ValueError as error:
        for index, number in enumerate(numbers):
            _check_range(message, name, number, f"{name}[{index}]")
        raise UnfitError(str(error), name) from None


def _set_int(message: Any, name: str, value: Int) -> None:
    try:
        number = _arrays.int_of(value)
    except UnfitError as unfit:
        raise unfit.within(name) from None
    try:
        setattr(message, name, number)
    except ValueError as error:
        _check_range(message, name, number, name)
        raise UnfitError(str(error), name) from None


def _check_range(message: Any, name: str, number: int, path: str) -> None:
    bits, signed = _INTEGERS[message.DESCRIPTOR.fields_by_name[name].cpp_type]
    least, end = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not least <= number < end:
        words = f"-2**{bits - 1} to 2**{bits - 1} - 1" if signed else f"0 to 2**{bits} - 1"
        raise UnfitError(f"must be an integer from {words}, not {shown(number)}", path)
