"""Float32 values of a received message with every bit, for those who need signalling NaNs or want no Python floats
between.

`list(message.values)` goes through doubles, which keep the value and quiet a signalling NaN.
"""

from __future__ import annotations

from google.protobuf.message import Message

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def float32_bytes(message: Message, field: str) -> bytes:
    """Little-endian float32 of one float field of `message`, packed, empty when absent: `values` of Logprobs,
    `logprobs` of SamplingMask, `topk_p` of SpeculativeState, `logprob` of SampledToken. For numpy: `np.frombuffer(...,
    "<f4")`.

    Raises KeyError when the message has no such field, ValueError when it holds no float32.
    """
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    if descriptor.cpp_type != descriptor.CPPTYPE_FLOAT:
        raise ValueError(f"{message.DESCRIPTOR.name}.{field} does not hold float32")
    data = message.SerializeToString()
    out = []
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _BYTES:
            size, position = _varint(data, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        if tag >> 3 == descriptor.number:
            out.append(data[position : position + size])
        position += size
    return b"".join(out)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:  # ends: the runtime wrote this, and data[position] raises past its end
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return number, position
