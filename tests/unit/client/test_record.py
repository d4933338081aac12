"""Records from and to plain Python, numpy and torch: bit for bit, one narrowing, clear refusals."""

from __future__ import annotations

import array
import collections
import math
import pickle
import struct
import subprocess
import sys
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pd_handoff import (
    CachedTokens,
    DataType,
    FinishReason,
    InvalidRecord,
    KvChecksum,
    Logprobs,
    ModalityTokens,
    Record,
    SamplingMask,
    SpeculativeState,
    Tensor,
    Token,
)
from pd_handoff._values import exact
from pd_handoff.v1 import record_pb2 as pb

from tests.support.waits import patient

BITS = st.lists(st.integers(0, 2**32 - 1), max_size=200)
FLOAT32_MAX = 3.4028234663852886e38
SIGNALLING = 0x7FA00001


def packed(bits: list[int]) -> bytes:
    return struct.pack(f"<{len(bits)}I", *bits)


def values_of(values: Any) -> bytes:
    """Through a record, the wire and back, as float32 bytes."""
    record = Record(tokens=[Token(1, top_logprobs=Logprobs(values, range(3)))])
    received = pb.HandoffRecord.FromString(record.to_proto().SerializeToString())
    assert list(received.tokens[0].top_logprobs.token_ids) == [0, 1, 2]
    return exact.float32_bytes(received.tokens[0].top_logprobs, "values")


@settings(deadline=None)
@given(BITS)
def test_numpy_float32_keeps_every_bit(bits: list[int]) -> None:
    values = np.array(bits, "<u4").view("<f4")
    assert values_of(values) == packed(bits)
    assert values_of(values.astype(">f4") if not np.isnan(values).any() else values) == packed(bits)
    assert values_of(values.byteswap().view(">f4")) == packed(bits)
    assert values_of(np.repeat(values, 2)[::2]) == packed(bits)
    assert values_of(list(values)) == packed(bits)


@settings(deadline=None)
@given(BITS)
def test_torch_float32_keeps_every_bit(bits: list[int]) -> None:
    values = torch.from_numpy(np.array(bits, "<u4").view("<f4").copy())
    assert values_of(values) == packed(bits)
    assert values_of(values.clone().requires_grad_()) == packed(bits)
    assert values_of(values.repeat_interleave(2)[::2]) == packed(bits)
    assert values_of(list(values)) == packed(bits)


@settings(deadline=None)
@given(st.lists(st.floats(width=32), max_size=200))
def test_python_floats(values: list[float]) -> None:
    expected = struct.pack(f"<{len(values)}f", *values)
    for given_as in (values, tuple(values), iter(values), collections.deque(values), array.array("f", values)):
        assert values_of(given_as) == expected


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), max_size=50))
def test_float64_is_narrowed_once_or_refused(values: list[float]) -> None:
    try:
        expected = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        for given_as in (values, np.array(values), torch.tensor(values, dtype=torch.float64)):
            with pytest.raises(InvalidRecord, match="overflows float32"):
                values_of(given_as)
        return
    assert values_of(values) == expected
    assert values_of(np.array(values, np.float64)) == expected
    assert values_of(np.array(values, np.longdouble)) == expected
    assert values_of(torch.tensor(values, dtype=torch.float64)) == expected


@settings(deadline=None)
@given(st.integers(-(2**127), 2**127))
def test_integers_are_narrowed_once(number: int) -> None:
    (narrow,) = struct.unpack("<f", values_of([number]))
    below = math.nextafter(narrow, -math.inf)  # in double: enough to see which side
    ulp = 2.0 ** max(math.frexp(narrow)[1] - 24, -149)
    error = abs(Fraction(number) - Fraction(narrow))
    assert below < narrow
    assert error <= Fraction(ulp) / 2


def test_an_integer_that_two_roundings_would_get_wrong() -> None:
    number = (1 << 60) + (1 << 36) + 1  # just above the middle of two float32; as a double it is the middle
    assert values_of([number]) == struct.pack("<f", float((1 << 60) + (1 << 37)))


@pytest.mark.parametrize("value", [FLOAT32_MAX, 3.4028235677973362e38, math.inf, -math.inf, -0.0, 1e-45, 5e-324])
def test_edges_of_float32(value: float) -> None:
    expected = struct.pack("<f", value)
    for given_as in ([value], np.array([value]), torch.tensor([value], dtype=torch.float64)):
        assert values_of(given_as) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**16 - 1), max_size=50))
def test_smaller_floats_are_widened_exactly(bits: list[int]) -> None:
    raw = np.array(bits, "<u2")
    half = raw.view("<f2")
    np.testing.assert_array_equal(np.frombuffer(values_of(half), "<f4"), half.astype(np.float32))
    brain = torch.from_numpy(raw.astype("<i2")).view(torch.bfloat16)
    assert values_of(brain) == (raw.astype("<u4") << 16).astype("<u4").tobytes()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_widened_exactly(dtype: torch.dtype) -> None:
    eights = torch.arange(256, dtype=torch.uint8).view(dtype)
    torch.testing.assert_close(
        torch.frombuffer(bytearray(values_of(eights)), dtype=torch.float32),
        eights.float(),
        equal_nan=True,
        rtol=0,
        atol=0,
    )


SCALARS = [
    -0.5,
    np.float16(-0.5),
    np.float32(-0.5),
    np.float64(-0.5),
    np.array(-0.5),
    np.array([[-0.5]]),
    torch.tensor(-0.5),
    torch.tensor([-0.5], dtype=torch.bfloat16),
    torch.tensor(-0.5, dtype=torch.float64, requires_grad=True),
    Fraction(-1, 2),
]


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_a_scalar_is_a_scalar(scalar: Any) -> None:
    assert Token(1, scalar).to_proto().logprob == -0.5
    assert values_of([scalar]) == struct.pack("<f", -0.5)


@pytest.mark.parametrize("zero_d", [np.array(0.25), torch.tensor(0.25), np.float32(0.25)], ids=repr)
def test_an_array_without_dimensions_is_a_row_of_one(zero_d: Any) -> None:
    assert values_of(zero_d) == struct.pack("<f", 0.25)


def test_a_signalling_nan_as_scalar() -> None:
    bits = np.array(SIGNALLING, "<u4").view("<f4")
    for scalar in (bits, bits[()], torch.from_numpy(bits.reshape(1).copy())[0]):
        assert exact.float32_bytes(Token(1, scalar).to_proto(), "logprob") == packed([SIGNALLING])


IDS = [
    [1, 2, 3],
    (1, 2, 3),
    range(1, 4),
    np.array([1, 2, 3], np.int32),
    np.array([1, 2, 3], ">i8"),
    np.array([1, 2, 3], np.uint64),
    torch.tensor([1, 2, 3]),
    torch.tensor([1, 0, 2, 0, 3], dtype=torch.int16)[::2],
    [np.int64(1), torch.tensor(2), np.uint8(3)],
    pb.Logprobs(token_ids=[1, 2, 3]).token_ids,
]


@pytest.mark.parametrize("ids", IDS, ids=repr)
def test_integers_of_every_kind(ids: Any) -> None:
    assert list(Logprobs((), ids).to_proto().token_ids) == [1, 2, 3]
    assert list(SpeculativeState(dsa_topk_indices=ids).to_proto().dsa_topk_indices) == [1, 2, 3]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_every_int64_of_the_draft(index: list[int]) -> None:
    for given_as in (index, np.array(index, np.int64), torch.tensor(index, dtype=torch.int64)):
        assert list(SpeculativeState(topk_index=given_as).to_proto().topk_index) == index


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls them a prototype
    NESTED = torch.nested.nested_tensor([torch.zeros(2)])


class Odd:
    """A foreign value that fails whatever is asked of it."""

    def _fail(self) -> Any:
        raise OSError("gone")

    __iter__ = __index__ = __float__ = __int__ = __len__ = _fail
    dtype = shape = property(_fail)


REFUSED = [
    (Record(tokens=[Token(1), Token(2, logprob=1e39)]), "tokens[1].logprob", "overflows float32"),
    (Record(tokens=[Token(1, logprob=np.array([1.0, 2.0]))]), "tokens[0].logprob", "array of 2"),
    (Record(tokens=[Token(1, logprob="0.5")]), "tokens[0].logprob", "a str"),  # type: ignore[arg-type]
    (Record(tokens=[Token(1, logprob=True)]), "tokens[0].logprob", "a bool"),
    (Record(tokens=[Token(2**31)]), "tokens[0].token_id", "from -2**31 to 2**31 - 1, not 2147483648"),
    (Record(cached_tokens=CachedTokens(host=-(2**70))), "cached_tokens.host", "an integer from "),
    (Record(kv_checksum=KvChecksum(digest=-1)), "kv_checksum.digest", "from 0 to 2**64 - 1, not -1"),
    (Record(finish_reason=2**31), "finish_reason", "from -2**31 to 2**31 - 1, not"),  # type: ignore[arg-type]
    (
        Record(speculative=SpeculativeState(topk_index=[0, 2**63])),
        "speculative.topk_index[1]",
        "from -2**63 to 2**63 - 1",
    ),
    (Record(tokens=[Token(True)]), "tokens[0].token_id", "bool"),
    (Record(tokens=[Token(1.5)]), "tokens[0].token_id", "a float"),  # type: ignore[arg-type]
    (Record(tokens=[Token(torch.tensor(1.0))]), "tokens[0].token_id", "float32"),
    (Record(tokens=[Token(torch.tensor(True))]), "tokens[0].token_id", "bool"),
    (Record(tokens=[Token(torch.tensor([1, 2]))]), "tokens[0].token_id", "array of 2"),
    (
        Record(tokens=[Token(1, top_logprobs=Logprobs([0.5, None]))]),  # type: ignore[list-item]
        "tokens[0].top_logprobs.values[1]",
        "None",
    ),
    (Record(tokens=[Token(1, top_logprobs=Logprobs(0.5))]), "tokens[0].top_logprobs.values", "a float"),  # type: ignore[arg-type]
    (
        Record(tokens=[Token(1, token_ids_logprobs=Logprobs(np.zeros((2, 2))))]),
        "tokens[0].token_ids_logprobs.values",
        "shape (2, 2)",
    ),
    (Record(tokens=[Token(1, top_logprobs=Logprobs([], [1, 2**31]))]), "tokens[0].top_logprobs.token_ids[1]", "not 2"),
    (Record(sampling_mask=SamplingMask(["a"])), "sampling_mask.token_ids[0]", "a str"),  # type: ignore[list-item]
    (Record(sampling_mask=SamplingMask("ab")), "sampling_mask.token_ids", "a str"),  # type: ignore[arg-type]
    (Record(sampling_mask=SamplingMask(np.array([True]))), "sampling_mask.token_ids", "bool"),
    (Record(speculative=SpeculativeState(torch.zeros(2, 2))), "speculative.topk_p", "shape (2, 2)"),
    (Record(speculative=SpeculativeState(torch.zeros(2, dtype=torch.complex64))), "speculative.topk_p", "complex64"),
    (Record(speculative=SpeculativeState(torch.zeros(2).to_sparse())), "speculative.topk_p", "dense"),
    (Record(speculative=SpeculativeState(torch.zeros(2, device="meta"))), "speculative.topk_p", "no plain values"),
    (Record(speculative=SpeculativeState(np.array(["x"]))), "speculative.topk_p", "str"),
    (Record(speculative=SpeculativeState(np.array([None]))), "speculative.topk_p", "object"),
    (
        Record(speculative=SpeculativeState((), (), torch.zeros(2, dtype=torch.int16))),
        "speculative.hidden_states",
        "int16",
    ),
    (Record(speculative=SpeculativeState((), (), np.array([1e300]))), "speculative.hidden_states", "overflows"),
    (
        Record(speculative=SpeculativeState((), (), Tensor(DataType.FLOAT32, (-1,), b""))),
        "speculative.hidden_states.shape",
        "range",
    ),
    (Record(cached_tokens=CachedTokens(host=-1)), "cached_tokens.host", "must be an integer from "),
    (Record(kv_checksum=KvChecksum(digest=2**64)), "kv_checksum.digest", "2**64 - 1, not 18446744073709551616"),
    (Record(reasoning_tokens=2**32), "reasoning_tokens", "from 0 to 2**32 - 1, not 4294967296"),
    (Record(customized_info="text"), "customized_info", "a str"),  # type: ignore[arg-type]
    (
        Record(speculative=SpeculativeState(torch.nested.nested_tensor([torch.zeros(2)]))),
        "speculative.topk_p",
        "nested",
    ),
    (
        Record(speculative=SpeculativeState((), (), torch.zeros(4, dtype=torch.uint8).view(torch.float8_e8m0fnu))),
        "speculative.hidden_states",
        "or float64, is float8_e8m0fnu",
    ),
    (Record(speculative=SpeculativeState((), (), Odd())), "speculative.hidden_states", "cannot be read: OSError: gone"),
    (Record(tokens=[Token(Odd())]), "tokens[0].token_id", "cannot be read: OSError: gone"),
    (Record(tokens=[Token(1, Odd())]), "tokens[0].logprob", "cannot be read: OSError: gone"),
    (Record(sampling_mask=SamplingMask(Odd())), "sampling_mask.token_ids", "cannot be read: OSError: gone"),
]


WRONG_TYPES: list[tuple[Any, str, str]] = [
    (Record(tokens=[42]), "tokens[0]", "must be a Token, is an int"),  # type: ignore[list-item]
    (Record(tokens=[Token(1), None]), "tokens[1]", "must be a Token, is None"),  # type: ignore[list-item]
    (Record(tokens=Token(1)), "tokens", "must be a list of Token, is a Token"),  # type: ignore[arg-type]
    (Record(tokens="ab"), "tokens", "must be a list of Token, is a str"),  # type: ignore[arg-type]
    (Record(tokens=[Token("7")]), "tokens[0].token_id", "must be an integer, is a str"),  # type: ignore[arg-type]
    (
        Record(tokens=[Token(1, top_logprobs={"values": [0.5], "token_ids": [1]})]),  # type: ignore[arg-type]
        "tokens[0].top_logprobs",
        "must be Logprobs, is a dict",
    ),
    (
        Record(tokens=[Token(1, token_ids_logprobs=([0.5], [1]))]),  # type: ignore[arg-type]
        "tokens[0].token_ids_logprobs",
        "must be Logprobs, is a tuple",
    ),
    (Record(cached_tokens=7), "cached_tokens", "must be CachedTokens, is an int"),  # type: ignore[arg-type]
    (Record(finish_reason="stop"), "finish_reason", "must be a FinishReason, is a str"),  # type: ignore[arg-type]
    (
        Record(speculative=SpeculativeState(hidden_states=Tensor("bf16", (1,), b""))),  # type: ignore[arg-type]
        "speculative.hidden_states.dtype",
        "must be a DataType, is a str",
    ),
    (
        Record(speculative=SpeculativeState(hidden_states=Tensor(DataType.FLOAT32, (1,), "abcd"))),  # type: ignore[arg-type]
        "speculative.hidden_states.data",
        "must be bytes, is a str",
    ),
]


@pytest.mark.parametrize(("record", "field", "text"), WRONG_TYPES, ids=[row[1] for row in WRONG_TYPES])
def test_a_wrong_python_type_is_a_type_error_too(record: Record, field: str, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        record.to_proto()
    assert isinstance(caught.value, InvalidRecord)
    assert caught.value.violations == ((field, text),)
    assert pickle.loads(pickle.dumps(caught.value)).violations == caught.value.violations


def test_a_repr_shows_sizes_and_no_contents() -> None:
    full = Record(
        tokens=[Token(424242, -0.424242, Logprobs([0.424242], [424242]))],
        cached_tokens=CachedTokens(total=424242),
        sampling_mask=SamplingMask(np.array([424242]), (), True),
        speculative=SpeculativeState([0.424242], iter([424242]), torch.full((2, 3), 424242.0)),
        kv_checksum=KvChecksum(424242, 424242),
        finish_reason=FinishReason.STOP,
        reasoning_tokens=424242,
        customized_info=b"424242",
    )
    for shown in (repr(full), repr(full.tokens[0]), repr(Record.from_proto(full.to_proto()))):
        assert "4242" not in shown
    assert "tokens=1 values" in repr(full)
    assert "hidden_states=float32(2, 3)" in repr(full)
    assert "customized_info=6 bytes" in repr(full)
    assert repr(full.tokens[0]) == (
        "Token(token_id=..., logprob=..., top_logprobs=Logprobs(values=1 values, token_ids=1 values, ranks=0 values))"
    )
    assert repr(Tensor(DataType.BFLOAT16, (2,), b"4242")) == "Tensor(dtype=BFLOAT16, shape=(2,), data=4 bytes)"
    assert repr(SpeculativeState(Odd())).startswith("SpeculativeState(topk_p=..., topk_index=0 values, ")


@pytest.mark.parametrize(("record", "field", "text"), REFUSED, ids=[f"{field}-{text}" for _, field, text in REFUSED])
def test_what_no_record_can_hold_is_refused_with_its_place(record: Record, field: str, text: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        record.to_proto()
    (violation,) = caught.value.violations
    assert violation.field == field
    assert text in violation.description
    assert (caught.value.reason, caught.value.code) == ("INVALID_RECORD", "INVALID_ARGUMENT")


HIDDEN = [
    (torch.randn(3, 4096).bfloat16(), DataType.BFLOAT16),
    (torch.randn(16).half(), DataType.FLOAT16),
    (torch.randn(4, 4).t(), DataType.FLOAT32),
    (torch.tensor(1.5), DataType.FLOAT32),
    (torch.randn(8).to(torch.float8_e4m3fn), DataType.FLOAT8_E4M3),
    (torch.randn(8).to(torch.float8_e5m2), DataType.FLOAT8_E5M2),
    (torch.empty(0, 7, dtype=torch.bfloat16), DataType.BFLOAT16),
    (torch.randn(4, requires_grad=True), DataType.FLOAT32),
]


@pytest.mark.parametrize(("tensor", "dtype"), HIDDEN, ids=lambda value: str(getattr(value, "shape", value)))
def test_hidden_states_keep_dtype_shape_and_bytes(tensor: torch.Tensor, dtype: DataType) -> None:
    record = Record(tokens=[Token(1)], speculative=SpeculativeState((), (), tensor))
    received = Record.from_proto(pb.HandoffRecord.FromString(record.to_proto().SerializeToString()))
    assert received.speculative is not None
    states = received.speculative.hidden_states
    assert isinstance(states, Tensor)
    assert (states.dtype, states.shape) == (dtype, tuple(tensor.shape))
    assert len(states.data) == tensor.numel() * dtype.itemsize
    back = states.to_torch()
    assert back.dtype is tensor.dtype
    assert back.shape == tensor.shape
    back, sent = back.reshape(-1), tensor.detach().reshape(-1)
    assert torch.equal(back.view(torch.uint8), sent.view(torch.uint8))
    back.view(torch.uint8).zero_()  # memory of its own


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=40))
def test_bfloat16_bytes_are_never_touched(bits: list[int]) -> None:
    raw = np.array(bits, "<u2")
    states = Tensor.from_array(torch.from_numpy(raw.view("<i2").copy()).view(torch.bfloat16))
    assert states.data == raw.tobytes()


def test_numpy_hidden_states() -> None:
    values = np.arange(6, dtype=np.float16).reshape(2, 3)
    states = Tensor.from_array(values[:, ::-1])
    assert (states.dtype, states.shape) == (DataType.FLOAT16, (2, 3))
    np.testing.assert_array_equal(states.to_numpy(), values[:, ::-1])
    narrowed = Tensor.from_array(np.array([0.1, 0.2]))
    assert narrowed.dtype is DataType.FLOAT32
    np.testing.assert_array_equal(narrowed.to_numpy(), np.array([0.1, 0.2], np.float32))
    assert Tensor.from_array([1.0, 2.0]) == Tensor(DataType.FLOAT32, (2,), struct.pack("<2f", 1, 2))


def test_a_tensor_whose_bytes_do_not_fit_its_shape() -> None:
    states = Tensor(DataType.FLOAT32, (2, 2), bytes(12))
    for read in (states.to_torch, states.to_numpy):
        with pytest.raises(InvalidRecord, match="12 bytes"):
            read()
    with pytest.raises(InvalidRecord, match="unknown element type"):
        Tensor.from_proto(pb.Tensor(dtype=77))  # type: ignore[arg-type]


FULL = Record(
    tokens=[
        Token(5, -0.5, Logprobs([-0.5, -1.5], [5, 6]), Logprobs([], [])),
        Token(0, None, Logprobs()),
        Token(2**31 - 1),
    ],
    cached_tokens=CachedTokens(total=2**40, device=0),
    modality_tokens=ModalityTokens(video=2**64 - 1),
    sampling_mask=SamplingMask([1, 2], [-1.0, -2.0], truncated=True),
    speculative=SpeculativeState([0.5], [-(2**63)], Tensor(DataType.BFLOAT16, (1, 2), b"\x00\x01\x02\x03"), [-1, 0]),
    kv_checksum=KvChecksum(2**64 - 1, 0),
    finish_reason=FinishReason.STOP,
    reasoning_tokens=0,
    customized_info=b"",
)


def test_absent_empty_and_zero_are_three_things() -> None:
    message = FULL.to_proto()
    first, second, third = message.tokens
    assert first.HasField("token_ids_logprobs")
    assert second.HasField("top_logprobs")
    assert not second.HasField("logprob")
    assert not third.HasField("top_logprobs")
    assert message.cached_tokens.HasField("device")
    assert not message.cached_tokens.HasField("host")
    assert message.HasField("reasoning_tokens")
    assert message.HasField("customized_info")
    bare = Record(tokens=[Token(1)]).to_proto()
    assert [field.name for field, _ in bare.ListFields()] == ["tokens"]
    empty = Record(
        cached_tokens=CachedTokens(), sampling_mask=SamplingMask(), speculative=SpeculativeState()
    ).to_proto()
    assert {field.name for field, _ in empty.ListFields()} == {"cached_tokens", "sampling_mask", "speculative"}


def test_back_to_plain_values() -> None:
    back = Record.from_proto(FULL.to_proto())
    assert back == FULL
    assert back.tokens[0].top_logprobs is not None
    assert back.tokens[0].top_logprobs.values == [-0.5, -1.5]
    assert back.tokens[1].top_logprobs == Logprobs()
    assert back.tokens[2].top_logprobs is None
    assert back.cached_tokens == CachedTokens(total=2**40, device=0)
    assert back.finish_reason is FinishReason.STOP
    assert (back.reasoning_tokens, back.customized_info) == (0, b"")


def test_equality_is_that_of_the_wire() -> None:
    assert Logprobs(np.array([0.5], np.float32), [1]) == Logprobs([0.5], torch.tensor([1]))
    assert Logprobs([math.nan]) == Logprobs([math.nan])
    assert Logprobs([0.0]) != Logprobs([-0.0])
    assert Logprobs() != SamplingMask()
    assert Token(1) != Token(1, top_logprobs=Logprobs())


def test_json_both_ways() -> None:
    text = FULL.to_json()
    assert '"token_ids_logprobs": {}' in text
    assert Record.from_json(text) == FULL
    assert Record.from_json(FULL.to_json(indent=None).encode()) == FULL
    odd = Record(tokens=[Token(1, logprob=-math.inf, top_logprobs=Logprobs([math.nan, 1e-45, FLOAT32_MAX], [1, 2, 3]))])
    assert Record.from_json(odd.to_json()) == odd


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), max_size=30))
def test_json_keeps_every_float(values: list[float]) -> None:
    record = Record(tokens=[Token(1, top_logprobs=Logprobs(values))])
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"token": []}', '{"tokens": [{"logprob": 1e40}]}', '{"a": 1, "a": 2}', b"\xff"]
)
def test_json_that_is_no_record(text: str | bytes) -> None:
    with pytest.raises(InvalidRecord, match="this JSON is no record"):
        Record.from_json(text)


@pytest.mark.parametrize(
    ("text", "field", "what"),
    [
        ('{"token": []}', "record.token", "no such field; did you mean tokens?"),
        ('{"tokens": [{}, {"id": 5}]}', "record.tokens[1].id", "no such field; did you mean token_id?"),
        (
            '{"tokens": [{"topLogprobs": {"ids": []}}]}',
            "record.tokens[0].topLogprobs.ids",
            "no such field; did you mean token_ids?",
        ),
        (
            '{"speculative": {"hidden_state": {}}}',
            "record.speculative.hidden_state",
            "no such field; did you mean hidden_states?",
        ),
        ('{"kv_checksum": {"x": 1}}', "record.kv_checksum.x", "no such field; there are digest, layout_signature"),
        (
            '{"finish_reason": "STOP"}',
            "record.finish_reason",
            "no such value, 'STOP'; did you mean FINISH_REASON_STOP?",
        ),
        (
            '{"speculative": {"hidden_states": {"dtype": "bfloat16"}}}',
            "record.speculative.hidden_states.dtype",
            "no such value, 'bfloat16'; did you mean DATA_TYPE_BFLOAT16?",
        ),
    ],
)
def test_json_with_a_name_that_is_none(text: str, field: str, what: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        Record.from_json(text)
    assert str(caught.value) == f"this JSON is no record: {field}: {what}"
    assert caught.value.violations == ((field, what),)


@pytest.mark.parametrize("name", ["finish_reason", "finishReason"])
@pytest.mark.parametrize("value", ['"FINISH_REASON_STOP"', "1", '"1"'])
def test_json_in_every_form_that_protobuf_takes(name: str, value: str) -> None:
    assert Record.from_json(f'{{"{name}": {value}}}').finish_reason is FinishReason.STOP


def test_an_enum_value_of_a_newer_store() -> None:
    with pytest.raises(InvalidRecord, match="finish_reason"):
        Record.from_proto(pb.HandoffRecord(finish_reason=9))  # type: ignore[arg-type]


def test_exact_reads_only_float32_fields() -> None:
    state = SpeculativeState([0.5, 1.5], [1, 2], Tensor(DataType.FLOAT32, (1,), bytes(4))).to_proto()
    assert exact.float32_bytes(state, "topk_p") == struct.pack("<2f", 0.5, 1.5)
    assert exact.float32_bytes(SamplingMask([300, 5], [0.25, -0.0]).to_proto(), "logprobs") == struct.pack(
        "<2f", 0.25, -0.0
    )
    assert exact.float32_bytes(pb.SampledToken(token_id=3), "logprob") == b""
    with pytest.raises(ValueError, match="float32"):
        exact.float32_bytes(state, "topk_index")
    with pytest.raises(KeyError):
        exact.float32_bytes(state, "nothing")


def test_records_need_neither_numpy_nor_torch() -> None:
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import pd_handoff
loaded = set(sys.modules)
assert "grpc" not in loaded and "google.protobuf" not in loaded, "import pd_handoff is to be quick"
for name in pd_handoff.__all__:
    getattr(pd_handoff, name)
r = pd_handoff.Record(tokens=[pd_handoff.Token(1, -0.5, pd_handoff.Logprobs([0.5], [1]))])
assert pd_handoff.Record.from_json(r.to_json()) == r
assert not {"numpy", "torch"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr


def test_torch_without_numpy() -> None:
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import warnings
warnings.simplefilter("ignore")
import torch
from pd_handoff import Logprobs, Tensor
assert list(Logprobs(torch.tensor([0.5, 1.0]), torch.tensor([1, 2])).to_proto().values) == [0.5, 1.0]
assert Tensor.from_array(torch.ones(2, dtype=torch.bfloat16)).to_torch().tolist() == [1.0, 1.0]
assert "numpy" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr
