"""A record on its way into a row: packed, measured, and checked for form and widths before a byte is written."""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet
from pd_handoff.v1 import record_pb2

from pd_handoff_server import refusal

from .layout import TRACEPARENT, WIDTHS, Layout, varint_size

MAX_RANK: Final = 8
MAX_ATTACHMENTS: Final = 16

ELEMENT_BYTES: Final = {
    record_pb2.DATA_TYPE_FLOAT32: 4,
    record_pb2.DATA_TYPE_FLOAT16: 2,
    record_pb2.DATA_TYPE_BFLOAT16: 2,
    record_pb2.DATA_TYPE_FLOAT8_E4M3: 1,
    record_pb2.DATA_TYPE_FLOAT8_E5M2: 1,
    record_pb2.DATA_TYPE_INT32: 4,
    record_pb2.DATA_TYPE_INT64: 8,
    record_pb2.DATA_TYPE_UINT8: 1,
    record_pb2.DATA_TYPE_UINT16: 2,
    record_pb2.DATA_TYPE_FLOAT8_E4M3FNUZ: 1,
    record_pb2.DATA_TYPE_FLOAT8_E5M2FNUZ: 1,
}
"""Bytes an element, by `DataType`."""

_FINISH_REASONS = frozenset(
    (record_pb2.FINISH_REASON_STOP, record_pb2.FINISH_REASON_LENGTH, record_pb2.FINISH_REASON_ABORT)
)

# Bits of the presence column, by part of the record.
PRESENCE: Final = {
    "cached_tokens": 1,
    "modality_tokens": 2,
    "sampling_mask": 4,
    "speculative": 8,
    "kv_checksum": 16,
    "finish_reason": 32,
    "reasoning_tokens": 64,
    "customized_info": 128,
    "engine_state": 256,
    "prompt_tokens": 512,
    "traceparent": 1024,
}

_ATTACHMENTS = 2048

_attachment_name = _state_type = re.compile(r"[A-Za-z0-9._/;=+-]{1,64}").fullmatch
_traceparent = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?").fullmatch

# The end of every negative int32 as varint. A non-negative id can end so too, hence a hit only asks for a closer look.
_NEGATIVE = b"\xff\xff\xff\xff\x01"

Violations = list[tuple[str, str]]
Shape = tuple[int, int, tuple[int, ...]]
"""Presence, the token with the widest top logprobs, and widths, as in `Draft`."""


class Attachments:
    """The attachments of a record, packed as the heap holds them.

    Attributes:
        data: the fields as they stand at the end of the serialized record.
        entries: (name, first byte, byte behind the last, CRC-32) of each, by its place in `data`.
        digest: SHA-256 of `data`.
    """

    __slots__ = ("data", "digest", "entries")

    def __init__(self, data: bytes, names_and_sizes: list[tuple[str, int]]) -> None:
        self.data = data
        self.digest = hashlib.sha256(data).digest()
        view, start, entries = memoryview(data), 0, []
        for name, size in names_and_sizes:
            end = start + size
            entries.append((name, start, end, zlib.crc32(view[start:end])))
            start = end
        self.entries = tuple(entries)


class Draft:
    """A well-formed record, packed as a row holds it.

    Attributes:
        image: the packed columns.
        attachments: what goes to the heap; None: nothing does.
        presence: which optional parts are there, as bits of PRESENCE.
        widths: tokens, top_logprobs, token_ids_logprobs (the widest token), sampling_mask_tokens, speculative_topk,
            dsa_topk_indices, customized_info_bytes, hidden_state_bytes, engine_state_bytes, draft_tokens,
            attachment_bytes.
    """

    __slots__ = ("attachments", "image", "presence", "widths")

    def __init__(
        self, image: bytes, presence: int, widths: tuple[int, ...], attachments: Attachments | None = None
    ) -> None:
        self.image = image
        self.presence = presence
        self.widths = widths
        self.attachments = attachments

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.image) + (0 if self.attachments is None else len(self.attachments.data))

    def digest(self) -> bytes:
        """A collision-resistant digest of the record."""
        return image_digest(self.image if self.attachments is None else self.image + self.attachments.digest)


def image_digest(image: bytes | memoryview) -> bytes:
    """16 bytes that tell records apart; SHA-256 cut short, for its speed with hardware support."""
    return hashlib.sha256(image).digest()[:16]


def measure(record: record_pb2.HandoffRecord, layout: Layout) -> Draft:
    """Check and pack a record.

    Raises:
        Refusal: INVALID_RECORD with one violation a field; else TOP_LOGPROBS_OVERFLOW or FIELD_OVERFLOW for the first
            width over its limit. Form comes before widths, as the contract orders it.
    """
    attached: list[tuple[str, int]] = []
    if record.attachments:
        attached = [(one.name, _size_in_record(one)) for one in record.attachments]
        image, suffix = _split(record, sum(size for _, size in attached))
    else:
        image, suffix = record.SerializeToString(), b""
    shape = None if attached else _glance(record, image)
    if shape is None:
        shape = _examine(record, image, len(suffix))
    presence, top_index, widths = shape
    tokens, top, listed, mask, topk, dsa, info, hidden, state, draft, attachments = widths
    limits = layout.widths
    if (
        top > limits[1]
        or tokens > limits[0]
        or listed > limits[2]
        or mask > limits[3]
        or topk > limits[4]
        or dsa > limits[5]
        or info > limits[6]
        or hidden > limits[7]
        or state > limits[8]
        or draft > limits[9]
        or attachments > limits[10]
    ):
        check_widths(widths, layout, token_index=top_index)
    if len(image) > layout.image_bytes:
        what = (
            f"has {len(image)} bytes and a row holds {layout.image_bytes}: upgrade the store for newer fields; "
            "for ranks, draft tokens and a traceparent beside full lists start it with --max-engine-state-bytes"
        )
        raise refusal.invalid("INVALID_RECORD", [("record", what)])
    return Draft(image, presence, widths, Attachments(suffix, attached) if attached else None)


def _size_in_record(attachment: record_pb2.Attachment) -> int:
    """Bytes of an attachment as a field of a record."""
    size = attachment.ByteSize()
    return 1 + varint_size(size) + size


def _split(record: record_pb2.HandoffRecord, size: int) -> tuple[bytes, bytes]:
    """A record serialized without its attachments, and these, of so many bytes in all."""
    if len(UnknownFieldSet(record)):  # which a serializer may write behind the attachments
        core, attached = record_pb2.HandoffRecord(), record_pb2.HandoffRecord(attachments=record.attachments)
        core.CopyFrom(record)
        core.ClearField("attachments")
        return core.SerializeToString(), attached.SerializeToString()
    image = record.SerializeToString()
    return image[:-size], image[-size:]


def _glance(record: record_pb2.HandoffRecord, image: bytes) -> Shape | None:
    """The shape of a record with which nothing is wrong; None when that takes `_examine`, which finds the words for it.

    Every Put pays for this: one look at each part, in the order of the fields, and no list of violations.
    """
    presence = tokens = top = top_index = listed = mask = topk = dsa = info = hidden = state = draft = 0
    for token in record.tokens:
        if not token.HasField("token_id") or (token.HasField("rank") and not token.rank):
            return None
        if token.HasField("top_logprobs"):
            logprobs = token.top_logprobs
            width = len(logprobs.token_ids)
            if width != len(logprobs.values) or logprobs.ranks:
                return None
            if width > top:
                top, top_index = width, tokens
        if token.HasField("token_ids_logprobs"):
            logprobs = token.token_ids_logprobs
            width = len(logprobs.token_ids)
            if width != len(logprobs.values) or logprobs.ranks:
                return None
            listed = width if width > listed else listed
        tokens += 1
    has = record.HasField
    if has("cached_tokens"):
        presence = 1
    if has("modality_tokens"):
        presence |= 2
    if has("sampling_mask"):
        presence |= 4
        part = record.sampling_mask
        mask = len(part.token_ids)
        if len(part.logprobs) not in {0, mask}:
            return None
    if has("speculative"):
        presence |= 8
        found: Violations = []
        topk, dsa, hidden, draft = _check_speculative(record.speculative, found)
        if found:
            return None
    if has("kv_checksum"):
        presence |= 16
    if has("finish_reason"):
        presence |= 32
        if record.finish_reason not in _FINISH_REASONS:
            return None
    if has("reasoning_tokens"):
        presence |= 64
    if has("customized_info"):
        presence |= 128
        info = len(record.customized_info)
    if has("prompt_tokens"):
        presence |= 512
    if has("engine_state") or has("traceparent"):
        found = []
        more, state = _check_engine_parts(record, found)
        if found:
            return None
        presence |= more
    # Ids come before the opaque bytes, of which any combination is legal; draft tokens come behind the hidden states.
    end = len(image) if draft else len(image) - hidden - state
    if not (tokens or presence & 256) or image.find(_NEGATIVE, 0, end) >= 0:
        return None
    return presence, top_index, (tokens, top, listed, mask, topk, dsa, info, hidden, state, draft, 0)


def _check_engine_parts(record: record_pb2.HandoffRecord, found: Violations) -> tuple[int, int]:
    """(presence of the engine's state and the traceparent, bytes of the state)."""
    presence = state = 0
    if record.HasField("engine_state"):
        presence = PRESENCE["engine_state"]
        state = len(record.engine_state.data)
        if not _state_type(record.engine_state.type):
            found.append(("record.engine_state.type", "must be 1 to 64 of letters, digits and '._/;=+-'"))
    if record.HasField("traceparent"):
        presence |= PRESENCE["traceparent"]
        text = record.traceparent
        if len(text) > TRACEPARENT or not _traceparent(text):
            what = f"must be a W3C traceparent of at most {TRACEPARENT} bytes; leave it out when there is no trace"
            found.append(("record.traceparent", what))
    return presence, state


def _examine(record: record_pb2.HandoffRecord, image: bytes, attached: int) -> Shape:
    """The closer look; `attached` is bytes of the attachments.

    Raises Refusal INVALID_RECORD with one violation a field.
    """
    found: Violations = []
    top, top_index, listed = _check_tokens(record, found)
    mask_width = topk = dsa = info = hidden = state = draft = 0
    presence = 0
    for name, bit in PRESENCE.items():
        if record.HasField(name):  # type: ignore[arg-type]
            presence |= bit
    if presence & PRESENCE["sampling_mask"]:
        mask = record.sampling_mask
        mask_width = len(mask.token_ids)
        if mask.logprobs and len(mask.logprobs) != mask_width:
            found.append(("record.sampling_mask", _unequal(len(mask.logprobs), mask_width)))
    if presence & PRESENCE["speculative"]:
        topk, dsa, hidden, draft = _check_speculative(record.speculative, found)
    if presence & PRESENCE["finish_reason"] and record.finish_reason not in _FINISH_REASONS:
        found.append(("record.finish_reason", "must be STOP, LENGTH or ABORT; leave it out when the request goes on"))
    if presence & PRESENCE["customized_info"]:
        info = len(record.customized_info)
    _, state = _check_engine_parts(record, found)
    if attached:
        presence |= _ATTACHMENTS
        _check_attachments(record, found)
    if _NEGATIVE in image:
        _check_ids(record, found)
    if found:
        raise refusal.invalid("INVALID_RECORD", found)
    widths = (len(record.tokens), top, listed, mask_width, topk, dsa, info, hidden, state, draft, attached)
    return presence, top_index, widths


def _check_attachments(record: record_pb2.HandoffRecord, found: Violations) -> None:
    if len(record.attachments) > MAX_ATTACHMENTS:
        found.append(
            ("record.attachments", f"{len(record.attachments)} attachments; at most {MAX_ATTACHMENTS} are legal")
        )
        return
    seen: dict[str, int] = {}
    for index, attachment in enumerate(record.attachments):
        where = f"record.attachments[{index}]"
        if not _attachment_name(attachment.name):
            found.append((f"{where}.name", "must be 1 to 64 of letters, digits and '._/;=+-'"))
        first = seen.setdefault(attachment.name, index)
        if first != index:
            found.append((f"{where}.name", f"is that of attachments[{first}]; names must differ"))
        content = attachment.WhichOneof("content")
        if content is None:
            found.append((f"{where}.content", "is required: a tensor, or data"))
        elif content == "tensor":
            _check_tensor(attachment.tensor, f"{where}.tensor", found)


def check_widths(widths: tuple[int, ...], layout: Layout, *, token_index: int | None = None) -> None:
    """Refuse the first of these widths that is over its limit, top logprobs before the others. Raises Refusal."""
    if widths[1] > layout.limits.top_logprobs:
        raise refusal.overflow("top_logprobs", widths[1], layout.limits.top_logprobs, token_index=token_index)
    for name, requested, limit in zip(WIDTHS, widths, layout.widths, strict=True):
        if requested > limit:
            raise refusal.overflow(name, requested, limit)


def _check_tokens(record: record_pb2.HandoffRecord, found: Violations) -> tuple[int, int, int]:
    """(widest top logprobs, which token has them, widest token-id logprobs)."""
    top = top_index = listed = 0
    tokens = record.tokens
    if not tokens and not record.HasField("engine_state"):
        what = "at least one token is required, the hand-off token first, unless there is an engine_state"
        found.append(("record.tokens", what))
    for index, token in enumerate(tokens):
        if not token.HasField("token_id"):
            found.append((f"record.tokens[{index}].token_id", "is required; 0 is a token"))
        if token.HasField("rank") and not token.rank:
            found.append((f"record.tokens[{index}].rank", _NO_RANK))
        for name, part in (("top_logprobs", token.top_logprobs), ("token_ids_logprobs", token.token_ids_logprobs)):
            _check_ranks(part, f"record.tokens[{index}].{name}.ranks", found)
        if token.HasField("top_logprobs"):
            logprobs = token.top_logprobs
            width = len(logprobs.token_ids)
            if width != len(logprobs.values):
                found.append((f"record.tokens[{index}].top_logprobs", _unequal(len(logprobs.values), width)))
            if width > top:
                top, top_index = width, index
        if token.HasField("token_ids_logprobs"):
            logprobs = token.token_ids_logprobs
            width = len(logprobs.token_ids)
            if width != len(logprobs.values):
                found.append((f"record.tokens[{index}].token_ids_logprobs", _unequal(len(logprobs.values), width)))
            listed = max(listed, width)
    return top, top_index, listed


_NO_RANK = "ranks count from 1; leave it out where there is none"


def _check_ranks(part: record_pb2.Logprobs, field: str, found: Violations) -> None:
    if part.ranks and len(part.ranks) != len(part.token_ids):
        found.append((field, f"{len(part.ranks)} ranks for {len(part.token_ids)} token ids; give none, or one an id"))
    elif 0 in part.ranks:
        found.append((field, _NO_RANK))


def _check_speculative(state: record_pb2.SpeculativeState, found: Violations) -> tuple[int, int, int, int]:
    """(candidates, sparse-attention indices, bytes of hidden states, draft tokens)."""
    topk = len(state.topk_index)
    if topk != len(state.topk_p):
        found.append(("record.speculative.topk_p", _unequal(len(state.topk_p), topk)))
    hidden = 0
    if state.HasField("hidden_states"):
        hidden = len(state.hidden_states.data)
        _check_tensor(state.hidden_states, "record.speculative.hidden_states", found)
    return topk, len(state.dsa_topk_indices), hidden, len(state.draft_token_ids)


def _unequal(values: int, ids: int) -> str:
    return f"{values} values for {ids} token ids; the lists must have equal lengths"


def _check_tensor(tensor: record_pb2.Tensor, field: str, found: Violations) -> None:
    size = ELEMENT_BYTES.get(tensor.dtype)
    if size is None:
        found.append((f"{field}.dtype", "must be one of the element types that Capabilities lists"))
        return
    if len(tensor.shape) > MAX_RANK:
        found.append((f"{field}.shape", f"has {len(tensor.shape)} dimensions; at most {MAX_RANK} are legal"))
        return
    expected = size
    for dimension in tensor.shape:
        expected *= dimension
    if expected != len(tensor.data):
        found.append((f"{field}.data", f"has {len(tensor.data)} bytes where dtype and shape need {expected}"))


def _check_ids(record: record_pb2.HandoffRecord, found: Violations) -> None:
    for index, token in enumerate(record.tokens):
        where = f"record.tokens[{index}]"
        if token.token_id < 0:
            found.append((f"{where}.token_id", "must not be negative"))
        if any(token_id < 0 for token_id in token.top_logprobs.token_ids):
            found.append((f"{where}.top_logprobs.token_ids", "must not be negative"))
        if any(token_id < 0 for token_id in token.token_ids_logprobs.token_ids):
            found.append((f"{where}.token_ids_logprobs.token_ids", "must not be negative"))
    if any(token_id < 0 for token_id in record.speculative.draft_token_ids):
        found.append(("record.speculative.draft_token_ids", "must not be negative"))
    if any(token_id < 0 for token_id in record.sampling_mask.token_ids):
        found.append(("record.sampling_mask.token_ids", "must not be negative"))
