"""Records to put, each with what the contract says of it: how it must come back, or how it must be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.layout import Limits

from tests.support import records
from tests.support.records import Token

LIMITS = Limits(
    tokens=2,
    top_logprobs=3,
    token_ids_logprobs=2,
    sampling_mask_tokens=2,
    speculative_topk=2,
    dsa_topk_indices=3,
    customized_info_bytes=12,
    hidden_state_bytes=16,
)


@dataclass(frozen=True)
class Paper:
    """A record and the verdict on it. `reason` is empty for a legal one; `metadata` is that of the refusal."""

    name: str
    message: rp.HandoffRecord
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def image(self) -> bytes:
        """The bytes that every reader must get."""
        return self.message.SerializeToString()


def _legal() -> list[Paper]:
    bits = (0x7F800001, 0xFFC00ABC, 0x80000000)  # a signalling NaN, a quiet one with a payload, -0.0
    largest = rp.HandoffRecord(
        tokens=[
            Token(token_id=7, top_logprobs=records.logprobs(3, 2**31 - 3), token_ids_logprobs=records.logprobs(2, 9)),
            Token(token_id=2**31 - 1, logprob=float("-inf"), top_logprobs=records.logprobs(3, 2**31 - 3)),
        ],
        cached_tokens=rp.CachedTokens(total=2**64 - 1, device=0, host=2**63, storage=1),
        modality_tokens=rp.ModalityTokens(image=2**64 - 1, audio=2**64 - 1, video=2**64 - 1),
        sampling_mask=rp.SamplingMask(token_ids=[1, 2], logprobs=[-1.0, float("nan")], truncated=True),
        speculative=rp.SpeculativeState(
            topk_p=[0.5, 0.25],
            topk_index=[-(2**63), -1],
            hidden_states=records.tensor(rp.DATA_TYPE_BFLOAT16, [1, 8], bytes(range(240, 256))),
            dsa_topk_indices=[-1, -(2**31), 0],
        ),
        kv_checksum=rp.KvChecksum(digest=2**64 - 1, layout_signature=2**63),
        finish_reason=rp.FINISH_REASON_ABORT,
        reasoning_tokens=2**32 - 1,
        customized_info=bytes(range(244, 256)),
    )
    return [
        Paper("least", records.record()),
        Paper("largest", largest),
        Paper("bits", records.record(Token(token_id=0, top_logprobs=records.logprobs_of_bits(bits)))),
        Paper("long info", records.record(customized_info=b"x" * 12)),
        Paper("short info", records.record(customized_info=b"y")),
        Paper("empty info", records.record(customized_info=b"")),
        Paper("empty parts", records.record(Token(top_logprobs=rp.Logprobs()), sampling_mask=rp.SamplingMask())),
        Paper("zeros", records.record(cached_tokens=rp.CachedTokens(total=0), reasoning_tokens=0)),
        Paper("other token", records.record(Token(token_id=536870911))),
    ]


def _overflow(name: str, message: rp.HandoffRecord, requested: int, limit: int) -> Paper:
    return Paper(name, message, "FIELD_OVERFLOW", {"field": name, "requested": str(requested), "limit": str(limit)})


def _oversized() -> list[Paper]:
    second = records.record(Token(token_id=1), Token(token_id=2, top_logprobs=records.logprobs(4)))
    wide = {"requested": "4", "limit": "3", "token_index": "1"}
    hidden = records.tensor(rp.DATA_TYPE_FLOAT32, [5], bytes(20))
    return [
        Paper("top_logprobs", second, "TOP_LOGPROBS_OVERFLOW", wide),
        _overflow("tokens", records.record(*(Token(token_id=n) for n in range(3))), 3, 2),
        _overflow("customized_info_bytes", records.record(customized_info=b"z" * 13), 13, 12),
        _overflow("hidden_state_bytes", records.record(speculative=rp.SpeculativeState(hidden_states=hidden)), 20, 16),
    ]


def _malformed() -> list[Paper]:
    uneven = rp.Logprobs(values=[-1.0], token_ids=[1, 2, 3, 4])  # too wide as well: form comes first
    return [
        Paper("no tokens", rp.HandoffRecord(customized_info=b"a"), "INVALID_RECORD"),
        Paper("negative id", records.record(Token(token_id=-1)), "INVALID_RECORD"),
        Paper("uneven", records.record(Token(top_logprobs=uneven)), "INVALID_RECORD"),
        Paper("no dtype", records.with_hidden(0, [1], b"a"), "INVALID_RECORD"),
    ]


LEGAL = _legal()
FLAWED = _oversized() + _malformed()
