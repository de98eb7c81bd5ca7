# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays from shapes, numbers and objects of other libraries."""

from __future__ import annotations

import operator
from typing import Any

from membound import _core
from membound._core import Device, DType, NDArray
from membound.ndarray._arguments import (
    BOOL,
    FLOAT64,
    INT64,
    DeviceLike,
    DTypeLike,
    array_of,
    shape_of,
)

Number = bool | int | float


def asarray(
    obj: Any, /, *, dtype: DTypeLike = None, device: DeviceLike = None, copy: bool | None = None
) -> NDArray:
    """Make an array of a number, of nested sequences, or of an array of any library.

    Args:
        obj: an NDArray, a number of Python or NumPy, nested lists or tuples of them, or an object
            with DLPack or the buffer protocol, whose memory is shared where dtype and device allow.
        dtype: of the result; by default that of the object, bool, int64 or float64 for numbers.
        device: of the result; by default that of the object, the CPU for numbers.
        copy: True copies, False never does, None only where there is no other way.

    Raises:
        ValueError: copy=False, but dtype, device or a sequence need a copy; a ragged sequence; an
            integer that dtype cannot hold.
        TypeError: an object of another kind, complex numbers.

    >>> nd.asarray([[1, 2], [3, 4]], dtype=nd.float32)
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    wanted = None if dtype is None else _core.array_dtype(dtype)
    if type(obj).__module__ == "numpy" and hasattr(obj, "item") and not hasattr(obj, "__dlpack__"):
        wanted, obj = wanted or _core.array_dtype(obj.dtype), obj.item()  # a scalar of NumPy
    if isinstance(obj, bool | int | float | complex | list | tuple):
        if copy is False:
            raise ValueError("asarray: copy=False takes arrays only: a sequence has to be copied")
        return _core.array_from_nested(obj, wanted, device)
    x = obj if isinstance(obj, NDArray) else _core.array_from(obj, None, None)
    as_is = wanted in (None, x.dtype) and (device is None or Device(device) == x.device)
    if as_is:
        return x.copy() if copy else x
    if copy is False:
        raise ValueError(
            f"asarray: copy=False, but {x.dtype} on {x.device} has to be copied for dtype={wanted},"
            f" device={device}"
        )
    return _core.array_astype(x, wanted or x.dtype, True, device)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> NDArray:
    """Return an array on the memory of another library's, through DLPack.

    Args:
        x: an object with ``__dlpack__`` and ``__dlpack_device__``.
        device: of the result; by default that of x.
        copy: True copies, False never does, None only for another device.

    Raises:
        ValueError: copy=False, but the device is another.
        TypeError: an object without DLPack, a dtype that is not here.

    >>> import numpy
    >>> nd.from_dlpack(numpy.arange(3.0))
    array([0., 1., 2.])
    """
    return _core.array_from(x, device, copy)


def empty(
    shape: int | tuple[int, ...], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> NDArray:
    """Return an array of a shape and dtype (float64 by default) whose elements are not set.

    >>> nd.empty((2, 3), dtype="int8").shape
    (2, 3)
    """
    return _core.array_empty(shape_of("empty", shape), _or_float64(dtype), device)


def _or_float64(dtype: DTypeLike) -> DTypeLike:
    return FLOAT64 if dtype is None else dtype


def full(
    shape: int | tuple[int, ...],
    fill_value: Number,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> NDArray:
    """Return an array of a shape, all of one value; dtype by default as of ``asarray``.

    >>> nd.full(3, 7)
    array([7, 7, 7])
    """
    wanted = _dtype_of_numbers(fill_value) if dtype is None else dtype
    return _core.array_full(shape_of("full", shape), fill_value, wanted, device)


def _dtype_of_numbers(*numbers: Any) -> DType:
    """Return bool, int64 or float64, the first that holds numbers of Python."""
    if all(isinstance(number, bool) for number in numbers):
        return BOOL
    return INT64 if all(isinstance(number, int) for number in numbers) else FLOAT64


def zeros(
    shape: int | tuple[int, ...], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> NDArray:
    """Return an array of zeros of a shape; dtype is float64 by default.

    >>> nd.zeros((1, 2))
    array([[0., 0.]])
    """
    return _core.array_full(shape_of("zeros", shape), 0, _or_float64(dtype), device)


def ones(
    shape: int | tuple[int, ...], *, dtype: DTypeLike = None, device: DeviceLike = None
) -> NDArray:
    """Return an array of ones of a shape; dtype is float64 by default.

    >>> nd.ones((1, 2), dtype=nd.bool)
    array([[ True,  True]])
    """
    return _core.array_full(shape_of("ones", shape), 1, _or_float64(dtype), device)


def empty_like(x: NDArray, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> NDArray:
    """Return an unset array of x's shape, and of its dtype and device unless given.

    >>> nd.empty_like(nd.ones(3)).dtype
    float64
    """
    array_of("empty_like", "x", x)
    return empty(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def full_like(
    x: NDArray, /, fill_value: Number, *, dtype: DTypeLike = None, device: DeviceLike = None
) -> NDArray:
    """Return an array of one value with x's shape, and its dtype and device unless given.

    >>> nd.full_like(nd.ones(2), 5)
    array([5., 5.])
    """
    array_of("full_like", "x", x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: NDArray, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> NDArray:
    """Return zeros of x's shape, and of its dtype and device unless given.

    >>> nd.zeros_like(nd.ones(2))
    array([0., 0.])
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: NDArray, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> NDArray:
    """Return ones of x's shape, and of its dtype and device unless given.

    >>> nd.ones_like(nd.zeros(2), dtype=nd.int64)
    array([1, 1])
    """
    return full_like(x, 1, dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> NDArray:
    """Return the numbers from start (0 if only one is given) to before stop, step apart.

    dtype is int64 by default if all are integers, else float64; a step of 0 raises ValueError.

    >>> nd.arange(2, 8, 3)
    array([2, 5])
    """
    first, last = (0, start) if stop is None else (start, stop)
    wanted = _dtype_of_numbers(first, last, step) if dtype is None else dtype
    return _core.array_arange(first, last, step, wanted, device)


def linspace(
    start: float,
    stop: float,
    /,
    num: int,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    endpoint: bool = True,
) -> NDArray:
    """Return num numbers at equal distances from start to stop, without stop if not endpoint.

    dtype is float64 by default and must be of floats; a negative num raises ValueError.

    >>> nd.linspace(0, 1, 5)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return _core.array_linspace(start, stop, num, _or_float64(dtype), device, endpoint)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> NDArray:
    """Return a matrix with ones on its k-th diagonal (above the main one if positive), else zeros.

    >>> nd.eye(2, 3, k=1)
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    columns = n_rows if n_cols is None else n_cols
    flat = zeros(n_rows * columns, dtype=dtype, device=device)
    first = k if k >= 0 else -k * columns
    count = min(n_rows, columns - k) if k >= 0 else min(n_rows + k, columns)
    if count > 0:
        step = columns + 1
        flat[first : first + (count - 1) * step + 1 : step] = 1 if flat.dtype != "bool" else True
    return flat.reshape((n_rows, columns))


def tril(x: NDArray, /, *, k: int = 0) -> NDArray:
    """Return a copy of matrices (..., M, N) with zeros above the k-th diagonal.

    >>> nd.tril(nd.ones((2, 2)))
    array([[1., 0.],
           [1., 1.]])
    """
    return _triangle("tril", x, k, lower=True)


def triu(x: NDArray, /, *, k: int = 0) -> NDArray:
    """Return a copy of matrices (..., M, N) with zeros below the k-th diagonal.

    >>> nd.triu(nd.ones((2, 2)))
    array([[1., 1.],
           [0., 1.]])
    """
    return _triangle("triu", x, k, lower=False)


def _triangle(function: str, x: NDArray, k: int, *, lower: bool) -> NDArray:
    if array_of(function, "x", x).ndim < 2:
        raise ValueError(f"{function}: argument 'x' must have two axes or more, got {x.ndim}")
    rows, columns = x.shape[-2:]
    first = max(-rows, min(operator.index(k), columns))
    diagonal = arange(first, first + rows, device=x.device).expand_dims(1)
    columns = arange(columns, device=x.device)
    kept = columns <= diagonal if lower else columns >= diagonal
    return _core.array_elementwise("where", kept, x, zeros((), dtype=x.dtype, device=x.device))


def meshgrid(*arrays: NDArray, indexing: str = "xy") -> tuple[NDArray, ...]:
    """Return the coordinates of a grid, an array for each vector of coordinates along an axis.

    Args:
        arrays: vectors (N1,), (N2,) ... of one dtype.
        indexing: "ij" gives results (N1, N2, ...), "xy" swaps the first two axes.

    >>> nd.meshgrid(nd.arange(2), nd.arange(2))[0]
    array([[0, 1],
           [0, 1]])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: argument 'indexing' must be 'xy' or 'ij', got {indexing!r}")
    for x in arrays:
        if array_of("meshgrid", "arrays", x).ndim > 1:
            raise ValueError(f"meshgrid: argument 'arrays' must be vectors, got shape {x.shape}")
    order = list(range(len(arrays)))
    if indexing == "xy":
        order[:2] = order[1::-1]
    shape = tuple(arrays[at].size for at in order)
    ones_around = (
        x.reshape(tuple(x.size if order[axis] == at else 1 for axis in range(len(arrays))))
        for at, x in enumerate(arrays)
    )
    return tuple(x.broadcast_to(shape).copy() for x in ones_around)
