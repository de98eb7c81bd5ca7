# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""dtypes: their ranges and kinds, promotion and conversion."""

from __future__ import annotations

from typing import Any, NamedTuple

from membound import _core
from membound._core import Device, DType, NDArray
from membound.ndarray._arguments import DTypeLike, array_of

# The parts of a kind, as DType.kind names them.
_KINDS = {
    "bool": ("bool",),
    "signed integer": ("signed integer",),
    "unsigned integer": ("unsigned integer",),
    "integral": ("signed integer", "unsigned integer"),
    "real floating": ("real floating",),
    "complex floating": (),
    "numeric": ("signed integer", "unsigned integer", "real floating"),
}
# Bits of the mantissa, and the largest exponent.
_FLOATS = {"bfloat16": (7, 127), "float16": (10, 15), "float32": (23, 127), "float64": (52, 1023)}


class FInfo(NamedTuple):
    """The range of a dtype of floats; the numbers are Python floats."""

    bits: int
    eps: float  # from 1 to the next number
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IInfo(NamedTuple):
    """The range of a dtype of integers."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of_either(type_: NDArray | DTypeLike) -> DType:
    return type_.dtype if isinstance(type_, NDArray) else _core.array_dtype(type_)


def finfo(type: NDArray | DType | str, /) -> FInfo:
    """Return bits, eps, max, min and smallest_normal of a dtype of floats, or of an array's.

    >>> nd.finfo(nd.bfloat16).eps
    0.0078125
    """
    dtype = _dtype_of_either(type)
    if dtype.name not in _FLOATS:
        raise TypeError(f"finfo: expected a dtype of floats, got {dtype}")
    mantissa, exponent = _FLOATS[dtype.name]
    eps = 2.0**-mantissa
    largest = (2 - eps) * 2.0**exponent
    return FInfo(8 * dtype.itemsize, eps, largest, -largest, 2.0 ** (1 - exponent), dtype)


def iinfo(type: NDArray | DType | str, /) -> IInfo:
    """Return bits, max and min of a dtype of integers, or of an array's.

    >>> nd.iinfo(nd.int8).min
    -128
    """
    dtype = _dtype_of_either(type)
    bits = 8 * dtype.itemsize
    if dtype.kind == "unsigned integer":
        return IInfo(bits, 2**bits - 1, 0, dtype)
    if dtype.kind != "signed integer":
        raise TypeError(f"iinfo: expected a dtype of integers, got {dtype}")
    return IInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)


def isdtype(dtype: DType | str, kind: Any) -> bool:
    """Whether a dtype is of a kind, is another dtype, or is one of a tuple of those.

    Kinds are "bool", "signed integer", "unsigned integer", "integral", "real floating" (with
    bfloat16 and float16), "complex floating" (no dtype here) and "numeric".

    >>> nd.isdtype(nd.int8, ("bool", "integral"))
    True
    """
    own = _dtype_of_either(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(own, one) for one in kind)
    if isinstance(kind, DType):
        return own == kind
    return own.kind in parts_of_kind("isdtype", kind)


def parts_of_kind(function: str, kind: str) -> tuple[str, ...]:
    """Return what a kind of the standard is made of."""
    if kind not in _KINDS:
        raise ValueError(
            f"{function}: argument 'kind' must be a dtype or one of {[*_KINDS]}, got {kind!r}"
        )
    return _KINDS[kind]


def result_type(*arrays_and_dtypes: NDArray | DType | bool | float) -> DType:
    """Return the dtype of an operation on arrays, dtypes and Python numbers.

    Floats win over integers, and both over bool; float16 and bfloat16 give float32. A number takes
    the dtype of the others unless its kind is beyond theirs. int64 and uint64 raise TypeError.

    >>> nd.result_type(nd.int8, nd.uint8, 3)
    int16
    """
    return _core.array_result_type(*arrays_and_dtypes)


def can_cast(from_: NDArray | DType, to: DType, /) -> bool:
    """Whether promotion leads from a dtype, or an array's, to another.

    >>> nd.can_cast(nd.int8, nd.int64), nd.can_cast(nd.float64, nd.float32)
    (True, False)
    """
    return _core.array_can_cast(_dtype_of_either(from_), _dtype_of_either(to))


def astype(
    x: NDArray,
    dtype: DType | str,
    /,
    *,
    copy: bool = True,
    device: Device | str | None = None,
) -> NDArray:
    """Return x as another dtype, by default a new array even if it has that dtype.

    Floats are truncated towards zero; NaN and what does not fit give an unspecified integer.

    >>> nd.astype(nd.asarray([1.5, -1.5]), nd.int64)
    array([ 1, -1])
    """
    array_of("astype", "x", x)
    return _core.array_astype(x, dtype, copy, device)
