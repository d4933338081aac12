"""Lists, numpy and torch -> the bytes and integers of a record, without importing either library.

Values wider than float32 are narrowed once, to nearest even; what would overflow is refused. float32 and smaller floats
keep every bit, signalling NaNs too, which is why floats travel as packed bytes and not as Python floats (a Python float
is a double, and the conversion quiets them).
"""

from __future__ import annotations

import ctypes
import operator
import struct
import sys
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

if sys.byteorder != "little":
    raise ImportError("pd_handoff keeps records in little-endian order and does not run on big-endian machines")


class Array(Protocol):
    """What numpy arrays, torch tensors and their kin have in common."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...


Floats: TypeAlias = "Iterable[float] | Array"
Ints: TypeAlias = "Iterable[int] | Array"
Float: TypeAlias = "float | Array"
Int: TypeAlias = "int | Array"

# dtype name, without library prefix -> bytes an element; the names are those of torch, numpy and ml_dtypes.
FLOAT_SIZES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
ELEMENT_SIZES = {**FLOAT_SIZES, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2}
_WIDE = frozenset({"float64", "longdouble", "float80", "float96", "float128"})  # narrowed to float32
_EXACT_INT = 1 << 53  # beyond it a double, and so struct.pack, would round before we do


class UnfitError(Exception):
    """A value that no record can hold. Callers on the way up add where it stands."""

    def __init__(self, description: str, path: str = "") -> None:
        super().__init__(description)
        self.description = description
        self.path = path

    def within(self, name: str) -> UnfitError:
        """The same, seen from one level up."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return type(self)(self.description, f"{name}{separator}{self.path}")


class WrongTypeError(UnfitError):
    """A value of a Python type that the field does not take."""


def unfit_of(error: Exception) -> UnfitError:
    """The same, for whatever was raised while a value was read: lists, arrays and tensors run code of their own."""
    if isinstance(error, UnfitError):
        return error
    lines = str(error).splitlines()
    return UnfitError(f"cannot be read: {type(error).__name__}{f': {lines[0]}' if lines else ''}")


def is_torch(value: object) -> bool:
    """True for a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_array(value: object) -> bool:
    """True for a torch tensor, a numpy array or scalar, or what can become one."""
    # protobuf's repeated fields have __array__ too, but no dtype: they are lists to us.
    return is_torch(value) or (hasattr(value, "__array__") and hasattr(value, "dtype"))


def float32_bytes(values: Floats) -> bytes:
    """Packed little-endian float32 of a row of numbers. Raises UnfitError."""
    if is_torch(values):
        return _torch_bytes(_torch_float32(_torch_row(values)))
    if is_array(values):
        return _numpy_float32(_numpy_row(values))
    items = _items(values)
    if set(map(type, items)) <= {float}:
        try:
            return struct.pack(f"<{len(items)}f", *items)
        except OverflowError:
            pass  # find out which one, below
    chunks = []
    for index, item in enumerate(items):
        try:
            chunks.append(float32_of(item))
        except UnfitError as unfit:
            raise unfit.within(f"[{index}]") from None
    return b"".join(chunks)


def float32_of(value: Float) -> bytes:
    """Packed little-endian float32 of one number, or of an array of one element. Raises UnfitError."""
    if is_array(value):
        data = float32_bytes(_one_element(value))
        if len(data) != 4:
            raise UnfitError(f"must be one number, is an array of {len(data) // 4}")
        return data
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise WrongTypeError(f"must be a number, is {kind_of(value)}")
    try:
        number = _nearest(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
        return struct.pack("<f", number)
    except OverflowError:
        raise UnfitError(f"{value} overflows float32") from None
    except (TypeError, ValueError):
        raise WrongTypeError(f"must be a number, is {kind_of(value)}") from None


def int_list(values: Ints) -> list[int]:
    """Plain integers of a row of integers. Raises UnfitError for anything that is not one."""
    if is_torch(values) or is_array(values):
        row: Any = _torch_row(values) if is_torch(values) else _numpy_row(values)
        if not _is_integer(row):
            raise UnfitError(f"must be integers, is {_dtype_name(row)}")
        listed: list[int] = row.tolist()
        return listed
    items = _items(values)
    if set(map(type, items)) <= {int}:
        return items
    numbers = []
    for index, item in enumerate(items):
        try:
            numbers.append(int_of(item))
        except UnfitError as unfit:
            raise unfit.within(f"[{index}]") from None
    return numbers


def int_of(value: Int) -> int:
    """One plain integer, of an integer or an array of one element. Raises UnfitError."""
    if type(value) is int:
        return value
    if is_array(value):
        numbers = int_list(_one_element(value))
        if len(numbers) != 1:
            raise UnfitError(f"must be one integer, is an array of {len(numbers)}")
        return numbers[0]
    if isinstance(value, bool):
        raise WrongTypeError("must be an integer, is a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise WrongTypeError(f"must be an integer, is {kind_of(value)}") from None


def tensor_parts(array: Floats) -> tuple[str, tuple[int, ...], bytes]:
    """(dtype name as in ELEMENT_SIZES, shape, little-endian row-major bytes) of numbers of any shape; no cast, except
    that floats wider than float32 are narrowed. A list is a float32 row. Raises UnfitError."""
    if is_torch(array):
        tensor: Any = _torch_host(array)
        if _dtype_name(tensor) not in ELEMENT_SIZES:
            _check_narrows(_dtype_name(tensor))
            tensor = _torch_float32(tensor)
        return _dtype_name(tensor), tuple(tensor.shape), _torch_bytes(tensor)
    if is_array(array):
        host = _numpy_host(array)
        name = _dtype_name(host)
        if name not in ELEMENT_SIZES:
            _check_narrows(name)
            return "float32", tuple(host.shape), _numpy_float32(host)
        return name, tuple(host.shape), _little(host)
    data = float32_bytes(array)
    return "float32", (len(data) // 4,), data


def _check_narrows(name: str) -> None:
    """What is wider than float32 is narrowed; another element type would silently become a different one."""
    if name not in _WIDE:
        raise UnfitError(f"must be {', '.join(ELEMENT_SIZES)} or float64, is {name}")


def _items(values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, bytearray, dict)):
        raise WrongTypeError(f"must be a list of numbers, is {kind_of(values)}")
    try:
        return values if type(values) is list else list(values)
    except TypeError:
        raise WrongTypeError(f"must be a list of numbers, is {kind_of(values)}") from None


def kind_of(value: object) -> str:
    """The type of a wrong value, for a message."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _dtype_name(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2] if is_torch(array) else str(array.dtype.name)


def _is_integer(array: Any) -> bool:
    if is_torch(array):
        return not (array.is_floating_point() or array.is_complex() or _dtype_name(array) == "bool")
    return str(array.dtype.kind) in "iu"


def _nearest(number: int) -> float:
    """A double that narrows to the float32 nearest to `number`: an integer that no double holds keeps its 32 leading
    bits, and a last bit for all the rest, so that the one rounding left is the right one."""
    if -_EXACT_INT <= number <= _EXACT_INT:
        return float(number)
    size = abs(number)
    shift = size.bit_length() - 32
    kept = size >> shift
    kept |= kept << shift != size
    return float(kept << shift) * (1 if number > 0 else -1)


def _one_element(array: Any) -> Any:
    return array.reshape(-1)


def _torch_host(tensor: Any) -> Any:
    if tensor.is_nested:
        raise UnfitError(f"must be a dense tensor, is a nested one of {tensor.dtype}")
    if tensor.layout is not sys.modules["torch"].strided or tensor.is_quantized:
        raise UnfitError(f"must be a dense tensor, is {tensor.dtype} in layout {tensor.layout}")
    try:
        return tensor.detach().resolve_neg().cpu().contiguous()
    except (RuntimeError, TypeError) as error:
        raise UnfitError(f"this tensor has no plain values: {str(error).splitlines()[0]}") from None


def _torch_row(tensor: Any) -> Any:
    host = _torch_host(tensor)
    if host.dim() > 1:
        raise UnfitError(f"must have one dimension, has shape {tuple(host.shape)}")
    return host.reshape(-1)


def _torch_float32(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if tensor.dtype is torch.float32:
        return tensor
    if tensor.is_complex() or _dtype_name(tensor) == "bool":
        raise UnfitError(f"must be real numbers, is {_dtype_name(tensor)}")
    narrow = tensor.to(torch.float32)
    if _dtype_name(tensor) in _WIDE and bool((narrow.isinf() & tensor.isfinite()).any()):
        raise UnfitError("a value overflows float32")
    return narrow


def _torch_bytes(tensor: Any) -> bytes:
    # One copy, any dtype (numpy has no bfloat16), and numpy need not be installed. `tensor` stays alive over the copy.
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def _numpy_host(array: Any) -> Any:
    try:
        return array.__array__()
    except Exception as error:  # whatever a foreign array class raises
        raise UnfitError(
            f"this array has no plain values: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from None


def _numpy_row(array: Any) -> Any:
    host = _numpy_host(array)
    if host.ndim > 1:
        raise UnfitError(f"must have one dimension, has shape {tuple(host.shape)}")
    return host.reshape(-1)


def _numpy_float32(host: Any) -> bytes:
    name = _dtype_name(host)
    if name == "float32":
        return _little(host)
    if host.dtype.kind not in "fiu" and name not in FLOAT_SIZES:  # ml_dtypes' kinds are V
        raise UnfitError(f"must be real numbers, is {name}")
    numpy: Any = sys.modules["numpy"]
    with numpy.errstate(over="ignore", invalid="ignore"):
        narrow = host.astype("<f4")
    if name in _WIDE and bool((numpy.isinf(narrow) & numpy.isfinite(host)).any()):
        raise UnfitError("a value overflows float32")
    return bytes(narrow.tobytes())


def _little(host: Any) -> bytes:
    if host.dtype.byteorder == ">":
        host = host.byteswap()  # bytes only: a cast could touch NaN payloads
    return bytes(host.tobytes())
