"""What is handed over, as plain dataclasses, and their way to and from the wire.

Each class has the fields of the message of its name. Lists of numbers may be lists, tuples, numpy arrays or torch
tensors; they are read once, when the record is put. What comes back from a store holds plain lists. Two parts are equal
when they are the same on the wire, bit for bit.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from pd_handoff._values import arrays, record_json
from pd_handoff._values.arrays import Float, Floats, Int, Ints, UnfitError, WrongTypeError, kind_of, unfit_of
from pd_handoff._values.integers import shown
from pd_handoff._values.sizes import size_of
from pd_handoff._values.wire_format import varint
from pd_handoff.errors import InvalidRecordType, invalid_record
from pd_handoff.tensor import Tensor
from pd_handoff.v1 import record_pb2 as pb

T = TypeVar("T")
Attachable: TypeAlias = "Tensor | Floats | Ints | bytes | bytearray | memoryview"

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
        """The message. Raises InvalidRecord for values that it cannot hold; its subclass InvalidRecordType, which is a
        TypeError, too, for values of another Python type than the field takes."""
        message = self._message()
        self.write_to(message)
        return message

    def write_to(self, message: Any) -> None:
        """Fills an empty message, and marks it present in its parent. Raises as `to_proto` does."""
        try:
            self._write(message)
        except Exception as error:  # whatever a foreign value raises while it is read
            unfit = unfit_of(error)
            kind = InvalidRecordType if isinstance(unfit, WrongTypeError) else None
            raise invalid_record(unfit.path or "record", unfit.description, kind) from None

    @abstractmethod
    def _write(self, message: Any) -> None:
        """Fills the message. Raises UnfitError."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine: Any = self.to_proto().SerializeToString(deterministic=True)
        return bool(mine == other.to_proto().SerializeToString(deterministic=True))

    def __repr__(self) -> str:
        """What is present and how large it is; never the contents, which belong to a user."""
        names: tuple[str, ...] = self.__slots__
        values = ((name, getattr(self, name)) for name in names)
        parts = (f"{name}={size_of(value)}" for name, value in values if value is not None)
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(slots=True, eq=False, repr=False)
class Logprobs(Part):
    """Natural-log probabilities and the token ids they belong to, position by position.

    Attributes:
        values: natural-log probabilities, shape (n,), float32 on the wire; wider floats are narrowed once.
        token_ids: vocabulary ids, shape (n,), int32, none negative; as many as `values`.
        ranks: of each id in the vocabulary, from 1, shape (0,) or (n,), uint32.
    """

    values: Floats = ()
    token_ids: Ints = ()
    ranks: Ints = ()
    _message = pb.Logprobs

    def _write(self, message: pb.Logprobs) -> None:
        message.SetInParent()  # present and empty is not absent
        _put_floats(message, _VALUES, "values", self.values)
        _put_ints(message, "token_ids", self.token_ids)
        _put_ints(message, "ranks", self.ranks)

    @classmethod
    def from_proto(cls, message: pb.Logprobs) -> Logprobs:
        """From the message."""
        return cls(list(message.values), list(message.token_ids), list(message.ranks))


@dataclass(slots=True, eq=False, repr=False)
class Token(Part):
    """One sampled token; the message `SampledToken`.

    Attributes:
        token_id: vocabulary id, one int32, not negative; 0 is a token like any other.
        logprob: its natural-log probability, one float32; None is unknown.
        top_logprobs: of the most likely tokens at this position, up to the store's `limits.top_logprobs`.
        token_ids_logprobs: of tokens that the request named, up to `limits.token_ids_logprobs`.
        rank: of the token in the vocabulary, one uint32, from 1, which is the likeliest; None is unknown.
    """

    token_id: Int
    logprob: Float | None = None
    top_logprobs: Logprobs | None = None
    token_ids_logprobs: Logprobs | None = None
    rank: Int | None = None
    _message = pb.SampledToken

    def _write(self, message: pb.SampledToken) -> None:
        _set_int(message, "token_id", self.token_id)
        if self.logprob is not None:
            try:
                message.MergeFromString(_LOGPROB + arrays.float32_of(self.logprob))
            except Exception as error:
                raise unfit_of(error).within("logprob") from None
        if self.top_logprobs is not None:
            _write_part(self.top_logprobs, message, "top_logprobs", Logprobs)
        if self.token_ids_logprobs is not None:
            _write_part(self.token_ids_logprobs, message, "token_ids_logprobs", Logprobs)
        if self.rank is not None:
            _set_int(message, "rank", self.rank)

    @classmethod
    def from_proto(cls, message: pb.SampledToken) -> Token:
        """From the message. Raises InvalidRecord where it has no token_id, which would read as token 0."""
        if not message.HasField("token_id"):
            raise invalid_record("token_id", "is required; 0 is a token")
        return cls(
            message.token_id,
            message.logprob if message.HasField("logprob") else None,
            _optional(Logprobs.from_proto, message, "top_logprobs"),
            _optional(Logprobs.from_proto, message, "token_ids_logprobs"),
            message.rank if message.HasField("rank") else None,
        )


@dataclass(slots=True, eq=False, repr=False)
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


@dataclass(slots=True, eq=False, repr=False)
class CachedTokens(_Counters):
    """Prompt tokens that came from a cache. None is unknown; nothing is ever added up.

    Attributes:
        total: tokens, uint64, from any cache.
        device: tokens, uint64, from memory of the accelerator.
        host: tokens, uint64, from memory of the machine.
        storage: tokens, uint64, from disks or a remote cache.
    """

    total: Int | None = None
    device: Int | None = None
    host: Int | None = None
    storage: Int | None = None
    _message = pb.CachedTokens

    @classmethod
    def from_proto(cls, message: pb.CachedTokens) -> CachedTokens:
        """From the message."""
        return cls(**cls._read(message))


@dataclass(slots=True, eq=False, repr=False)
class ModalityTokens(_Counters):
    """Prompt tokens by what they stand for. None is unknown.

    Attributes:
        image: tokens, uint64.
        audio: tokens, uint64.
        video: tokens, uint64.
    """

    image: Int | None = None
    audio: Int | None = None
    video: Int | None = None
    _message = pb.ModalityTokens

    @classmethod
    def from_proto(cls, message: pb.ModalityTokens) -> ModalityTokens:
        """From the message."""
        return cls(**cls._read(message))


@dataclass(slots=True, eq=False, repr=False)
class SamplingMask(Part):
    """The tokens that survived the sampler's filters.

    Attributes:
        token_ids: vocabulary ids, shape (n,), int32, none negative; up to `limits.sampling_mask_tokens`.
        logprobs: natural-log probabilities, shape (0,) or (n,), float32.
        truncated: whether the sampler kept more tokens than are listed.
    """

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


@dataclass(slots=True, eq=False, repr=False)
class SpeculativeState(Part):
    """What a draft model needs to go on.

    Attributes:
        topk_p: probabilities of the draft's candidates, shape (k,), float32; up to `limits.speculative_topk`.
        topk_index: their token ids, shape (k,), int64.
        hidden_states: of the target model, any shape, of an element type of DataType; up to
            `limits.hidden_state_bytes` bytes. May be given as an array (float64 is narrowed to float32 once); comes
            back as a Tensor.
        dsa_topk_indices: positions that sparse attention chose, shape (m,), int32; -1 is a value. Up to
            `limits.dsa_topk_indices`.
        draft_token_ids: tokens that the draft proposed and the target has not accepted, shape (d,), int32, none
            negative; up to `limits.draft_tokens`.
    """

    topk_p: Floats = ()
    topk_index: Ints = ()
    hidden_states: Tensor | Floats | None = None
    dsa_topk_indices: Ints = ()
    draft_token_ids: Ints = ()
    _message = pb.SpeculativeState

    def _write(self, message: pb.SpeculativeState) -> None:
        message.SetInParent()
        _put_floats(message, _TOPK_P, "topk_p", self.topk_p)
        _put_ints(message, "topk_index", self.topk_index)
        _put_ints(message, "dsa_topk_indices", self.dsa_topk_indices)
        _put_ints(message, "draft_token_ids", self.draft_token_ids)
        states = self.hidden_states
        if states is None:
            return
        try:
            tensor = states if isinstance(states, Tensor) else Tensor.of(states)
            tensor.write_to(message.hidden_states)
        except Exception as error:
            raise unfit_of(error).within("hidden_states") from None

    @classmethod
    def from_proto(cls, message: pb.SpeculativeState) -> SpeculativeState:
        """From the message."""
        return cls(
            list(message.topk_p),
            list(message.topk_index),
            _optional(Tensor.from_proto, message, "hidden_states"),
            list(message.dsa_topk_indices),
            list(message.draft_token_ids),
        )


@dataclass(slots=True, eq=False, repr=False)
class KvChecksum(Part):
    """What the KV cache must look like once it has arrived.

    Attributes:
        digest: the engine's checksum of the cache, one uint64.
        layout_signature: the engine's number for the cache's layout, one uint64.
    """

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


@dataclass(slots=True, eq=False, repr=False)
class EngineState(Part):
    """Opaque state of one engine, which another instance of that engine reads.

    Attributes:
        type: what `data` is, and in which version, such as `vllm/NixlConnector;v=1`: 1 to 64 of letters, digits and
            `._/;=+-`. Refuse a type that you do not know.
        data: the state, up to `limits.engine_state_bytes` bytes.
    """

    type: str
    data: bytes | bytearray | memoryview = b""
    _message = pb.EngineState

    def _write(self, message: pb.EngineState) -> None:
        message.SetInParent()
        _set_text(message, "type", self.type)
        message.data = _bytes_of(self.data, "data")

    @classmethod
    def from_proto(cls, message: pb.EngineState) -> EngineState:
        """From the message."""
        return cls(message.type, message.data)


@dataclass(slots=True, eq=False, repr=False)
class Record(Part):
    """What prefill knows and decode needs; the message `HandoffRecord`. None leaves a part out, which is not the same
    as empty.

    Attributes:
        tokens: the hand-off token first, then those of multi-token prediction; up to `limits.tokens`. May be empty
            beside an `engine_state`.
        cached_tokens: prompt tokens that came from a cache.
        modality_tokens: prompt tokens of images, audio and video.
        sampling_mask: which tokens the sampler kept for the hand-off token.
        speculative: a draft model's state.
        kv_checksum: what the KV cache must look like.
        finish_reason: set when the hand-off token already ends the request.
        reasoning_tokens: tokens counted as reasoning so far, one uint32.
        customized_info: opaque bytes of the engine, up to `limits.customized_info_bytes`.
        engine_state: what the engine's KV connector needs on the decode side.
        prompt_tokens: tokens of the prompt as the engine counts them, one uint32.
        traceparent: W3C trace context of the prefill, up to 64 bytes.
        attachments: large parts by name, which is 1 to 64 of letters, digits and `._/;=+-`; at most 16, together up to
            `limits.attachment_bytes`. Each is bytes, or an array of any shape and of an element type of DataType
            (float64 is narrowed to float32 once), which comes back as a Tensor.
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
    engine_state: EngineState | None = None
    prompt_tokens: Int | None = None
    traceparent: str | None = None
    attachments: Mapping[str, Attachable] | None = None
    _message = pb.HandoffRecord

    def _write(self, message: pb.HandoffRecord) -> None:
        message.SetInParent()
        for index, token in enumerate(_tokens(self.tokens)):
            try:
                if not isinstance(token, Token):
                    raise WrongTypeError(f"must be a Token, is {kind_of(token)}")
                token._write(message.tokens.add())
            except Exception as error:
                raise unfit_of(error).within(f"tokens[{index}]") from None
        for name, kind in _PARTS:
            part: Part | None = getattr(self, name)
            if part is not None:
                _write_part(part, message, name, kind)
        if self.finish_reason is not None:
            if isinstance(self.finish_reason, str):
                raise WrongTypeError("must be a FinishReason, is a str", "finish_reason")
            _set_int(message, "finish_reason", self.finish_reason)
        if self.reasoning_tokens is not None:
            _set_int(message, "reasoning_tokens", self.reasoning_tokens)
        if self.customized_info is not None:
            message.customized_info = _bytes_of(self.customized_info, "customized_info")
        if self.prompt_tokens is not None:
            _set_int(message, "prompt_tokens", self.prompt_tokens)
        if self.traceparent is not None:
            _set_text(message, "traceparent", self.traceparent)
        if self.attachments is not None:
            _write_attachments(message, self.attachments)

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
            _optional(EngineState.from_proto, message, "engine_state"),
            message.prompt_tokens if message.HasField("prompt_tokens") else None,
            message.traceparent if message.HasField("traceparent") else None,
            {one.name: _content(one) for one in message.attachments} if message.attachments else None,
        )

    def to_json(self, *, indent: int | None = 2) -> str:
        """Readable JSON: protobuf's own form with the proto's field names; bytes as base64, 64-bit integers as strings,
        NaN and infinities as strings (a NaN loses its payload)."""
        return json_format.MessageToJson(self.to_proto(), preserving_proto_field_name=True, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """From what `to_json` wrote, or a person. Raises InvalidRecord, saying where, for anything else."""
        return cls.from_proto(record_json.record_of(text))


_PARTS: tuple[tuple[str, type[Part]], ...] = (
    ("cached_tokens", CachedTokens),
    ("modality_tokens", ModalityTokens),
    ("sampling_mask", SamplingMask),
    ("speculative", SpeculativeState),
    ("kv_checksum", KvChecksum),
    ("engine_state", EngineState),
)


def _write_attachments(message: pb.HandoffRecord, attachments: Mapping[str, Attachable]) -> None:
    if not isinstance(attachments, Mapping):
        raise WrongTypeError(f"must be a dict of arrays or bytes, is {kind_of(attachments)}", "attachments")
    for name, content in attachments.items():
        try:
            one = message.attachments.add()
            _set_text(one, "name", name)
            if isinstance(content, (bytes, bytearray, memoryview)):
                one.data = bytes(content)
            else:
                tensor = content if isinstance(content, Tensor) else Tensor.of(content)
                tensor.write_to(one.tensor)
        except Exception as error:
            raise unfit_of(error).within(f"attachments[{name!r}]") from None


def _content(attachment: pb.Attachment) -> Tensor | bytes:
    return Tensor.from_proto(attachment.tensor) if attachment.HasField("tensor") else attachment.data


def _tokens(tokens: Any) -> Iterator[Any]:
    try:
        if isinstance(tokens, (str, bytes, dict)):
            raise TypeError
        return iter(tokens)
    except TypeError:
        raise WrongTypeError(f"must be a list of Token, is {kind_of(tokens)}", "tokens") from None


def _bytes_of(value: object, path: str) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise WrongTypeError(f"must be bytes, is {kind_of(value)}", path)
    return bytes(value)


def _set_text(message: Any, name: str, value: object) -> None:
    if not isinstance(value, str):
        raise WrongTypeError(f"must be text, is {kind_of(value)}", name)
    try:
        setattr(message, name, value)
    except ValueError:  # a surrogate, which UTF-8 cannot carry
        raise UnfitError("must be text that UTF-8 can carry", name) from None


def _optional(read: Callable[[Any], T], message: Any, name: str) -> T | None:
    return read(getattr(message, name)) if message.HasField(name) else None


def _finish_reason(number: int) -> FinishReason:
    try:
        return FinishReason(number)
    except ValueError:
        raise invalid_record("finish_reason", f"unknown value {number}") from None


def _write_part(part: Part, message: Any, name: str, kind: type[Part]) -> None:
    try:
        if not isinstance(part, kind):
            raise WrongTypeError(f"must be {kind.__name__}, is {kind_of(part)}")
        part._write(getattr(message, name))
    except Exception as error:
        raise unfit_of(error).within(name) from None


def _put_floats(message: Any, tag: bytes, name: str, values: Floats) -> None:
    try:
        data = arrays.float32_bytes(values)
    except Exception as error:
        raise unfit_of(error).within(name) from None
    if data:
        message.MergeFromString(tag + varint(len(data)) + data)


def _put_ints(message: Any, name: str, values: Ints) -> None:
    try:
        numbers = arrays.int_list(values)
    except Exception as error:
        raise unfit_of(error).within(name) from None
    try:
        getattr(message, name).extend(numbers)
    except ValueError as error:
        for index, number in enumerate(numbers):
            _check_range(message, name, number, f"{name}[{index}]")
        raise UnfitError(str(error), name) from None


def _set_int(message: Any, name: str, value: Int) -> None:
    try:
        number = arrays.int_of(value)
    except Exception as error:
        raise unfit_of(error).within(name) from None
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
