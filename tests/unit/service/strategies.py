"""Records for hypothesis: any legal one within limits, and the largest that limits allow."""

from __future__ import annotations

from hypothesis import strategies as st
from pd_handoff.v1 import record_pb2 as rp
from pd_handoff_server.arena.layout import Limits

from tests.support.records import varint

SMALL = Limits(3, 5, 3, 5, 3, 4, 20, 24, 12, 3)
ELEMENTS = {
    rp.DATA_TYPE_FLOAT32: 4,
    rp.DATA_TYPE_FLOAT16: 2,
    rp.DATA_TYPE_BFLOAT16: 2,
    rp.DATA_TYPE_FLOAT8_E4M3: 1,
    rp.DATA_TYPE_FLOAT8_E5M2: 1,
    rp.DATA_TYPE_INT32: 4,
    rp.DATA_TYPE_INT64: 8,
    rp.DATA_TYPE_UINT8: 1,
    rp.DATA_TYPE_UINT16: 2,
    rp.DATA_TYPE_FLOAT8_E4M3FNUZ: 1,
    rp.DATA_TYPE_FLOAT8_E5M2FNUZ: 1,
}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

ids = st.integers(0, 2**31 - 1) | st.sampled_from([0, 127, 128, 536870911, 2**31 - 1])
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
uint64s = st.integers(0, 2**64 - 1)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field on the wire."""
    return bytes((number << 3 | 2,)) + varint(len(payload)) + payload


def float_lists(size: int) -> st.SearchStrategy[bytes]:
    """float32 values by their bits: no Python float quietens a signalling NaN on the way."""
    return st.binary(min_size=4 * size, max_size=4 * size)


@st.composite
def logprobs(draw: st.DrawFn, most: int) -> bytes:
    """A Logprobs message, serialized."""
    size = draw(st.integers(0, most))
    token_ids = draw(st.lists(ids, min_size=size, max_size=size))
    values = draw(float_lists(size))
    ranks = draw(st.lists(st.integers(1, 2**32 - 1), min_size=size, max_size=size)) if draw(st.booleans()) else []
    return (field(1, values) if size else b"") + rp.Logprobs(token_ids=token_ids, ranks=ranks).SerializeToString()


@st.composite
def tokens(draw: st.DrawFn, limits: Limits) -> rp.SampledToken:
    """One token."""
    token = rp.SampledToken(token_id=draw(ids))
    parts = b""
    if draw(st.booleans()):
        parts += b"\x15" + draw(float_lists(1))
    if draw(st.booleans()):
        parts += field(3, draw(logprobs(limits.top_logprobs)))
    if draw(st.booleans()):
        parts += field(4, draw(logprobs(limits.token_ids_logprobs)))
    token.MergeFromString(parts)
    if draw(st.booleans()):
        token.rank = draw(st.integers(1, 2**32 - 1))
    return token


@st.composite
def tensors(draw: st.DrawFn, most: int) -> rp.Tensor:
    """A tensor whose dtype, shape and data agree."""
    dtype = draw(st.sampled_from(sorted(ELEMENTS)))
    elements = draw(st.integers(0, most // ELEMENTS[dtype]))
    if elements == 0:
        shape = [*draw(st.lists(st.integers(0, 2**32 - 1), max_size=7)), 0]
    else:
        shape = [1] * draw(st.integers(0, 3)) + ([elements] if elements > 1 or draw(st.booleans()) else [])
    size = elements * ELEMENTS[dtype]
    return rp.Tensor(dtype=dtype, shape=shape, data=draw(st.binary(min_size=size, max_size=size)))


@st.composite
def speculative(draw: st.DrawFn, limits: Limits) -> rp.SpeculativeState:
    """The speculative part."""
    size = draw(st.integers(0, limits.speculative_topk))
    state = rp.SpeculativeState(
        topk_index=draw(st.lists(int64s, min_size=size, max_size=size)),
        dsa_topk_indices=draw(st.lists(int32s, max_size=limits.dsa_topk_indices)),
        draft_token_ids=draw(st.lists(ids, max_size=limits.draft_tokens)),
    )
    if size:
        state.MergeFromString(field(1, draw(float_lists(size))))
    if draw(st.booleans()):
        state.hidden_states.CopyFrom(draw(tensors(limits.hidden_state_bytes)))
    return state


@st.composite
def masks(draw: st.DrawFn, limits: Limits) -> rp.SamplingMask:
    """The sampling mask, with or without logprobs."""
    size = draw(st.integers(0, limits.sampling_mask_tokens))
    mask = rp.SamplingMask(token_ids=draw(st.lists(ids, min_size=size, max_size=size)), truncated=draw(st.booleans()))
    if size and draw(st.booleans()):
        mask.MergeFromString(field(2, draw(float_lists(size))))
    return mask


@st.composite
def records(draw: st.DrawFn, limits: Limits = SMALL) -> rp.HandoffRecord:
    """Any legal record."""
    record = rp.HandoffRecord(tokens=draw(st.lists(tokens(limits), min_size=1, max_size=limits.tokens)))
    for part, names in (("cached_tokens", ("total", "device", "host", "storage")), ("modality_tokens", ("image",))):
        if draw(st.booleans()):
            message = getattr(record, part)
            message.SetInParent()
            for name in names:
                if draw(st.booleans()):
                    setattr(message, name, draw(uint64s))
    if draw(st.booleans()):
        record.sampling_mask.CopyFrom(draw(masks(limits)))
    if draw(st.booleans()):
        record.speculative.CopyFrom(draw(speculative(limits)))
    if draw(st.booleans()):
        record.kv_checksum.CopyFrom(rp.KvChecksum(digest=draw(uint64s), layout_signature=draw(uint64s)))
    if draw(st.booleans()):
        record.finish_reason = draw(st.sampled_from([1, 2, 3]))  # type: ignore[assignment]
    if draw(st.booleans()):
        record.reasoning_tokens = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        record.customized_info = draw(st.binary(max_size=limits.customized_info_bytes))
    if draw(st.booleans()):
        record.engine_state.type = draw(st.sampled_from(["x", "vllm/NixlConnector;v=1", "t" * 64]))
        record.engine_state.data = draw(st.binary(max_size=limits.engine_state_bytes))
    if draw(st.booleans()):
        record.prompt_tokens = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        record.traceparent = TRACE
    return record


def largest(limits: Limits, *, empty_tensor: bool = False) -> rp.HandoffRecord:
    """The record that takes most bytes of all that these limits allow: every list full, of the longest varints.

    With `empty_tensor` the tensor has no data but the longest shape, which is larger where few bytes are allowed.
    """
    longest_id, negative, whole = 2**31 - 1, -(2**63), 2**64 - 1

    engines = bool(limits.engine_state_bytes)

    def full(size: int) -> rp.Logprobs:
        ranks = [2**32 - 1] * size if engines else []
        return rp.Logprobs(values=[-1.5] * size, token_ids=[longest_id] * size, ranks=ranks)

    size = 0 if empty_tensor else limits.hidden_state_bytes
    shape = [2**32 - 1] * 7 + [0] if empty_tensor else [1] * 7 + [size]
    drafts = limits.draft_tokens if engines or limits.draft_tokens > 16 else 0
    record = rp.HandoffRecord(
        tokens=[
            rp.SampledToken(
                token_id=longest_id,
                logprob=-0.5,
                top_logprobs=full(limits.top_logprobs),
                token_ids_logprobs=full(limits.token_ids_logprobs),
                rank=2**32 - 1 if engines else None,
            )
        ]
        * limits.tokens,
        cached_tokens=rp.CachedTokens(total=whole, device=whole, host=whole, storage=whole),
        modality_tokens=rp.ModalityTokens(image=whole, audio=whole, video=whole),
        sampling_mask=rp.SamplingMask(
            token_ids=[longest_id] * limits.sampling_mask_tokens,
            logprobs=[-1.5] * limits.sampling_mask_tokens,
            truncated=True,
        ),
        speculative=rp.SpeculativeState(
            topk_p=[0.5] * limits.speculative_topk,
            topk_index=[negative] * limits.speculative_topk,
            hidden_states=rp.Tensor(dtype=rp.DATA_TYPE_FLOAT8_E5M2, shape=shape, data=bytes(size)),
            dsa_topk_indices=[-1] * limits.dsa_topk_indices,
            draft_token_ids=[longest_id] * drafts,
        ),
        kv_checksum=rp.KvChecksum(digest=whole, layout_signature=whole),
        finish_reason=rp.FINISH_REASON_ABORT,
        reasoning_tokens=2**32 - 1,
        customized_info=b"\xff" * limits.customized_info_bytes,
    )
    if engines:
        record.engine_state.CopyFrom(rp.EngineState(type="t" * 64, data=b"\xff" * limits.engine_state_bytes))
        record.prompt_tokens = 2**32 - 1
        record.traceparent = f"{TRACE}-".ljust(64, "x")
    return record
