"""Dense arrays as bytes, as the record carries hidden states."""

from __future__ import annotations

import enum
import importlib
from dataclasses import dataclass
from math import prod
from typing import Any

from pd_handoff._values import arrays
from pd_handoff._values.sizes import size_of
from pd_handoff.errors import invalid_record
from pd_handoff.v1 import record_pb2 as pb


class DataType(enum.IntEnum):
    """The element type of a Tensor."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4  # torch's float8_e4m3fn
    FLOAT8_E5M2 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    UINT16 = 9
    FLOAT8_E4M3FNUZ = 10
    FLOAT8_E5M2FNUZ = 11

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return arrays.ELEMENT_SIZES[_LIBRARY_NAMES[self]]


_LIBRARY_NAMES = {
    DataType.FLOAT32: "float32",
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT8_E4M3: "float8_e4m3fn",
    DataType.FLOAT8_E5M2: "float8_e5m2",
    DataType.INT32: "int32",
    DataType.INT64: "int64",
    DataType.UINT8: "uint8",
    DataType.UINT16: "uint16",
    DataType.FLOAT8_E4M3FNUZ: "float8_e4m3fnuz",
    DataType.FLOAT8_E5M2FNUZ: "float8_e5m2fnuz",
}
_OF_LIBRARY_NAME = {name: dtype for dtype, name in _LIBRARY_NAMES.items()}


@dataclass(frozen=True, slots=True, repr=False)
class Tensor:
    """A dense array of floats or integers.

    Attributes:
        dtype: the element type.
        shape: the dimensions, outermost first; () is a single element.
        data: little endian, row-major, product(shape) times the element size in bytes.
    """

    dtype: DataType
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def from_array(cls, array: arrays.Floats) -> Tensor:
        """From a torch tensor (any device, strides, requires_grad), a numpy array, or a list of floats (a float32 row).

        The element types of `DataType` keep their bytes; float64 is narrowed to float32 once.
        Raises InvalidRecord for other element types and for values that overflow float32.
        """
        try:
            return cls.of(array)
        except Exception as error:
            unfit = arrays.unfit_of(error)
            raise invalid_record(unfit.path or "tensor", unfit.description) from None

    @classmethod
    def of(cls, array: arrays.Floats) -> Tensor:
        """As from_array, for those who know where in a record the array stands: raises UnfitError."""
        name, shape, data = arrays.tensor_parts(array)
        return cls(_OF_LIBRARY_NAME[name], shape, data)

    def to_torch(self) -> Any:
        """A torch tensor on the CPU with memory of its own. Raises ImportError without torch."""
        torch: Any = importlib.import_module("torch")
        dtype = getattr(torch, _LIBRARY_NAMES[self.dtype])
        self._check()
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).reshape(self.shape)

    def to_numpy(self) -> Any:
        """A numpy array with memory of its own. Raises ImportError without numpy; for bfloat16 and float8, which numpy
        does not have, also without the ml_dtypes package."""
        numpy: Any = importlib.import_module("numpy")
        name = _LIBRARY_NAMES[self.dtype]
        home = numpy
        if not hasattr(numpy, name):
            try:
                home = importlib.import_module("ml_dtypes")
            except ImportError:
                raise ImportError(f"numpy has no {name}: install ml_dtypes, or use to_torch()") from None
        self._check()
        return numpy.frombuffer(bytearray(self.data), dtype=getattr(home, name)).reshape(self.shape)

    def to_proto(self) -> pb.Tensor:
        """The message. Raises InvalidRecord, saying where, for values that it cannot hold."""
        message = pb.Tensor()
        try:
            self.write_to(message)
        except arrays.UnfitError as unfit:
            raise invalid_record(unfit.path, unfit.description) from None
        return message

    def write_to(self, message: pb.Tensor) -> None:
        """Fills an empty message. Raises UnfitError, saying where, for values that it cannot hold."""
        dtype, data = self.dtype, self.data
        if isinstance(dtype, str):
            raise arrays.WrongTypeError(f"must be a DataType, is {arrays.kind_of(dtype)}", "dtype")
        if not isinstance(data, bytes):
            raise arrays.WrongTypeError(f"must be bytes, is {arrays.kind_of(data)}", "data")
        try:
            message.dtype = dtype  # type: ignore[assignment]
            message.shape.extend(self.shape)
        except (ValueError, TypeError) as error:
            raise arrays.UnfitError(str(error), "shape") from None
        message.data = data

    def __repr__(self) -> str:
        """Without the data."""
        dtype = self.dtype.name if isinstance(self.dtype, DataType) else self.dtype
        return f"Tensor(dtype={dtype}, shape={self.shape}, data={size_of(self.data)})"

    @classmethod
    def from_proto(cls, message: pb.Tensor) -> Tensor:
        """From the message. Raises InvalidRecord for an element type that this version does not know."""
        try:
            dtype = DataType(message.dtype)
        except ValueError:
            raise invalid_record("dtype", f"unknown element type {message.dtype}") from None
        return cls(dtype, tuple(message.shape), message.data)

    def _check(self) -> None:
        expected = prod(self.shape) * self.dtype.itemsize
        if len(self.data) != expected:
            raise invalid_record("data", f"has {len(self.data)} bytes, shape and element type need {expected}")
