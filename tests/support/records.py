"""Records to hand over, from the least legal one to one with every part."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from pd_handoff.v1 import record_pb2 as rp


def Token(**fields: Any) -> rp.SampledToken:
    """A token with these fields, of id 0 where none is given."""
    return rp.SampledToken(**{"token_id": 0, **fields})


def logprobs(count: int, first_id: int = 0) -> rp.Logprobs:
    """`count` values, each with the id that it belongs to; present also when empty."""
    return rp.Logprobs(values=[-(index + 1) / 8 for index in range(count)], token_ids=range(first_id, first_id + count))


def floats(*bits: int) -> bytes:
    """float32 values by their bits, little endian, as the wire has them."""
    return struct.pack(f"<{len(bits)}I", *bits)


def logprobs_of_bits(bits: Sequence[int]) -> rp.Logprobs:
    """Values given by their bits: a Python float on the way could quieten a signalling NaN."""
    payload = floats(*bits)
    message = rp.Logprobs(token_ids=range(len(bits)))
    message.MergeFromString(b"\x0a" + varint(len(payload)) + payload)
    return message


def varint(value: int) -> bytes:
    """A non-negative number as the wire has it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(*tokens: rp.SampledToken, **parts: object) -> rp.HandoffRecord:
    """A record of these tokens (by default of token 1) with these parts."""
    return rp.HandoffRecord(tokens=tokens or (Token(token_id=1),), **parts)  # type: ignore[arg-type]


def numbered(number: int) -> rp.HandoffRecord:
    """A record that can be told from every other number's."""
    return record(Token(token_id=number, logprob=-0.5), customized_info=f"record {number}".encode())


def with_top(count: int) -> rp.HandoffRecord:
    """A record with `count` top logprobs."""
    return record(Token(token_id=1, top_logprobs=logprobs(count)))


def tensor(dtype: int, shape: Iterable[int], data: bytes) -> rp.Tensor:
    """A tensor, right or wrong."""
    return rp.Tensor(dtype=dtype, shape=shape, data=data)  # type: ignore[arg-type]


def with_hidden(dtype: int, shape: Iterable[int], data: bytes) -> rp.HandoffRecord:
    """A record with hidden states, right or wrong."""
    return record(speculative=rp.SpeculativeState(hidden_states=tensor(dtype, shape, data)))


def with_attachments(**contents: bytes | rp.Tensor) -> rp.HandoffRecord:
    """A record with these attachments, in order."""
    made = record()
    for name, content in contents.items():
        of = {"tensor": content} if isinstance(content, rp.Tensor) else {"data": content}
        made.attachments.append(rp.Attachment(name=name, **of))
    return made


def full(seed: int = 1) -> rp.HandoffRecord:
    """A record with every part, none of them empty, all of them a function of `seed`."""
    return rp.HandoffRecord(
        tokens=[
            Token(token_id=seed, logprob=-0.25, top_logprobs=logprobs(5, seed), token_ids_logprobs=logprobs(3, seed)),
            Token(token_id=seed + 1, top_logprobs=logprobs(2)),
        ],
        cached_tokens=rp.CachedTokens(total=seed, device=600, host=300, storage=100),
        modality_tokens=rp.ModalityTokens(image=seed, audio=2, video=3),
        sampling_mask=rp.SamplingMask(token_ids=[3, seed], logprobs=[-1.0, -2.0], truncated=True),
        speculative=rp.SpeculativeState(
            topk_p=[0.5, 0.25],
            topk_index=[-(1 << 63), seed],
            hidden_states=tensor(rp.DATA_TYPE_BFLOAT16, [2, 4], bytes(range(16))),
            dsa_topk_indices=[-1, 0, seed],
        ),
        kv_checksum=rp.KvChecksum(digest=(1 << 64) - 1, layout_signature=seed),
        finish_reason=rp.FINISH_REASON_STOP,
        reasoning_tokens=seed,
        customized_info=f"engine {seed}".encode(),
    )


def complete(seed: int = 1) -> rp.HandoffRecord:
    """As `full`, with all that a store takes by default beside it: ranks, draft tokens, a count, a trace context."""
    record = full(seed)
    record.tokens[0].rank = seed
    record.tokens[0].top_logprobs.ranks.extend([1, 2, 3, 4, seed])
    record.tokens[1].top_logprobs.ranks.extend([(1 << 31) - 1, 1])
    record.speculative.draft_token_ids.extend([0, seed, (1 << 31) - 1])
    record.prompt_tokens = 1000 + seed
    record.traceparent = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{seed:016x}-01"
    return record
