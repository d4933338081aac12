"""How a row is laid out, computed from the limits before anything is allocated.

A row is one contiguous, 64-byte aligned piece: a header of typed length and presence columns at fixed offsets, then the
columns of the record, packed one after the other. Columns hold their elements as the wire does - float32 and tensor
bytes little endian and in place, token ids as varints - so that a row goes in and out in one copy (docs/adr/0002).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

ALIGNMENT = 64

HEADER = struct.Struct("<QIIHHIIIIIIIIHxxQ")
"""generation, image bytes, checksum, presence, then the record's widths in the order of `Limits`.

The checksum is the CRC-32 of the image that begins with the slot's number.
"""

HEADER_START = struct.Struct("<QII")
"""Its first three."""

TRACEPARENT = 64
"""The most bytes of a trace context."""

SHARED_DRAFT_TOKENS = 16
"""Up to so many draft tokens have no room of their own."""

_TYPE = 64  # bytes of an engine state's type
_TAG = 1  # every field number of the record is below 16
_ID = 5  # a non-negative int32 as varint
_INT = 10  # any int32, int64 or uint64 as varint


def varint_size(value: int) -> int:
    """Bytes of a non-negative number as varint."""
    return max(1, (value.bit_length() + 6) // 7)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a record may hold; the fields are those of the message `Widths`. 0 switches a part off."""

    tokens: int = 8
    top_logprobs: int = 128
    token_ids_logprobs: int = 128
    sampling_mask_tokens: int = 1024
    speculative_topk: int = 16
    dsa_topk_indices: int = 2048
    customized_info_bytes: int = 4096
    hidden_state_bytes: int = 32768
    engine_state_bytes: int = 0
    draft_tokens: int = 16
    attachment_bytes: int = 0


WIDTHS = tuple(field.name for field in fields(Limits))
"""Names of the limits, in order."""


@dataclass(frozen=True, slots=True)
class Column:
    """One field of the record in a row: its path, element type, most elements, and the most bytes that they take."""

    name: str
    dtype: str
    elements: int
    bytes: int


def _framed(payload: int) -> int:
    """A tag and a length before this many bytes; nothing where the part is switched off."""
    return _TAG + varint_size(payload) + payload if payload else 0


_LEAST_PAGE, _LARGEST_PAGE = 4 << 10, 1 << 20
_PAGES_A_SLOT = 8


@dataclass(frozen=True, slots=True)
class HeapShape:
    """The pages that attachments are kept in: how many, and bytes of each. Without pages there is no heap."""

    pages: int = 0
    page_bytes: int = _LEAST_PAGE

    @classmethod
    def of(cls, size: int, slots: int) -> HeapShape:
        """For a heap of `size` bytes, rounded up to pages, beside so many rows.

        Pages are a power of two from 4 KiB to 1 MiB: the largest of which each slot could have eight.
        """
        share = size // (_PAGES_A_SLOT * slots)
        page = min(max(1 << max(share.bit_length() - 1, 0), _LEAST_PAGE), _LARGEST_PAGE)
        return cls(-(-size // page), page)

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.pages * self.page_bytes

    def pages_for(self, size: int) -> int:
        """How many pages hold so many bytes."""
        return -(-size // self.page_bytes)


class Layout:
    """The columns of a row and its size in bytes, for given limits. Attachments are not in the row.

    Attributes:
        limits, widths: the limits, by name and as a tuple in the same order.
        columns: what a row can hold, in order.
        image_bytes: the most bytes that the packed columns of one record take.
        row_bytes: header and columns, rounded up to 64.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.widths: tuple[int, ...] = astuple(limits)
        self.columns = tuple(self._columns())
        self.image_bytes = sum(column.bytes for column in self.columns)
        self.row_bytes = -(-(HEADER.size + self.image_bytes) // ALIGNMENT) * ALIGNMENT

    def _columns(self) -> Iterator[Column]:
        yield from self._columns_of_every_row()
        draft = self.limits.draft_tokens
        if self.limits.engine_state_bytes:
            yield from self._columns_of_engines()
        elif draft <= SHARED_DRAFT_TOKENS:
            draft = 0
        yield Column("speculative.draft_token_ids", "int32", draft, _framed(draft * _ID))

    def _columns_of_engines(self) -> Iterator[Column]:
        """What engines send beside a state of their own.

        Where engine states are switched off, these parts and a few draft tokens share the room of the others: rows are
        no larger for them.
        """
        limits, tokens = self.limits, self.limits.tokens
        state = limits.engine_state_bytes
        yield Column(
            "engine_state.data", "uint8", state, _framed(state) + _framed(_TYPE) + _TAG + varint_size(state + 128)
        )
        yield Column("prompt_tokens", "uint32", 1, _TAG + _ID)
        yield Column("traceparent", "uint8", TRACEPARENT, _framed(TRACEPARENT))
        yield Column("tokens.rank", "uint32", tokens, tokens * (_TAG + _ID))
        for name, width in (("top_logprobs", limits.top_logprobs), ("token_ids_logprobs", limits.token_ids_logprobs)):
            # The lists make the messages around them longer, and so their lengths.
            yield Column(
                f"tokens.{name}.ranks", "uint32", tokens * width, tokens * (_framed(width * _ID) + bool(width))
            )

    def _columns_of_every_row(self) -> Iterator[Column]:
        limits, tokens = self.limits, self.limits.tokens
        # Every list and message costs a tag and a length; they are counted where the name says "frames".
        lists = sum(
            _framed(n * 4) + _framed(n * _ID) - n * (4 + _ID) for n in (limits.top_logprobs, limits.token_ids_logprobs)
        )
        yield Column("tokens.token_id", "int32", tokens, tokens * (_TAG + _ID))
        yield Column("tokens.logprob", "float32", tokens, tokens * (_TAG + 4))
        for name, width in (("top_logprobs", limits.top_logprobs), ("token_ids_logprobs", limits.token_ids_logprobs)):
            yield Column(f"tokens.{name}.values", "float32", tokens * width, tokens * width * 4)
            yield Column(f"tokens.{name}.token_ids", "int32", tokens * width, tokens * width * _ID)
        yield Column("tokens.frames", "uint8", tokens, tokens * (lists + 3 * (_TAG + 4)))
        yield Column("cached_tokens", "uint64", 4, 2 + 4 * (_TAG + _INT))
        yield Column("modality_tokens", "uint64", 3, 2 + 3 * (_TAG + _INT))
        mask = limits.sampling_mask_tokens
        yield Column("sampling_mask.token_ids", "int32", mask, _framed(mask * _ID))
        yield Column("sampling_mask.logprobs", "float32", mask, _framed(mask * 4))
        topk = limits.speculative_topk
        yield Column("speculative.topk_p", "float32", topk, _framed(topk * 4))
        yield Column("speculative.topk_index", "int64", topk, _framed(topk * _INT))
        yield Column("speculative.hidden_states.data", "uint8", limits.hidden_state_bytes, limits.hidden_state_bytes)
        yield Column("speculative.hidden_states.shape", "uint32", 8, 8 * _ID)
        dsa = limits.dsa_topk_indices
        yield Column("speculative.dsa_topk_indices", "int32", dsa, _framed(dsa * _INT))
        yield Column("kv_checksum", "uint64", 2, 2 + 2 * (_TAG + 8))
        yield Column("finish_reason", "enum", 1, 2)
        yield Column("reasoning_tokens", "uint32", 1, _TAG + _ID)
        info = limits.customized_info_bytes
        yield Column("customized_info", "uint8", info, _TAG + varint_size(info) + info)
        yield Column(
            "frames", "uint8", 1, 48
        )  # tags and lengths of mask, speculative state and tensor, and their flags
