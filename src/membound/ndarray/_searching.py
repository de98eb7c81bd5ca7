# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Where elements are: extremes, conditions, places in a sorted order."""

from __future__ import annotations

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of

Number = bool | int | float


def argmax(x: NDArray, /, *, axis: int | None = None, keepdims: bool = False) -> NDArray:
    """Return the int64 index of the first greatest element along an axis, or in C order.

    NaN counts as greatest; an axis without elements raises ValueError.

    >>> nd.argmax(nd.asarray([3, 7, 5]))
    array(1)
    """
    return _core.array_reduce("argmax", array_of("argmax", "x", x), axis, keepdims)


def argmin(x: NDArray, /, *, axis: int | None = None, keepdims: bool = False) -> NDArray:
    """Return the int64 index of the first least element along an axis, or in C order.

    NaN counts as least; an axis without elements raises ValueError.

    >>> nd.argmin(nd.asarray([3, 7, 5]))
    array(0)
    """
    return _core.array_reduce("argmin", array_of("argmin", "x", x), axis, keepdims)


def count_nonzero(
    x: NDArray, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> NDArray:
    """Return the int64 number of elements along axes, all by default, that are not zero.

    >>> nd.count_nonzero(nd.asarray([0, 7, 5]))
    array(2)
    """
    array_of("count_nonzero", "x", x)
    return _core.array_reduce("count_nonzero", x, axis, keepdims)


def nonzero(x: NDArray, /) -> tuple[NDArray, ...]:
    """Return the int64 indices of elements that are not zero, an array for each axis of x.

    Their number is read back, which waits for a GPU. An array without axes raises ValueError.

    >>> nd.nonzero(nd.asarray([0, 7, 5]))
    (array([1, 2]),)
    """
    if array_of("nonzero", "x", x).ndim == 0:
        raise ValueError("nonzero: argument 'x' must have one axis or more, got shape ()")
    return _core.array_nonzero(x)


def where(condition: NDArray, x1: NDArray | Number, x2: NDArray | Number, /) -> NDArray:
    """Return the elements of x1 where the condition holds, else those of x2.

    Args:
        condition: bool.
        x1, x2: arrays that broadcast with it and promote to one dtype, one may be a number.

    >>> nd.where(nd.asarray([True, False]), nd.asarray([1, 2]), 0)
    array([1, 0])
    """
    return _core.array_elementwise("where", condition, x1, x2)


def searchsorted(
    x1: NDArray,
    x2: NDArray | Number,
    /,
    *,
    side: str = "left",
    sorter: NDArray | None = None,
) -> NDArray:
    """Return the int64 places where elements can enter a sorted vector so that it stays sorted.

    Args:
        x1: (N,), ascending, NaN last.
        x2: what enters, of any shape; the result has the same.
        side: "left" enters before equal elements, "right" after them.
        sorter: (N,) integers that sort x1, as ``argsort`` gives.

    >>> nd.searchsorted(nd.asarray([1, 3, 5]), nd.asarray([3, 9]))
    array([1, 3])
    """
    if array_of("searchsorted", "x1", x1).ndim != 1:
        raise ValueError(f"searchsorted: argument 'x1' must be a vector, got shape {x1.shape}")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: argument 'side' must be 'left' or 'right', got {side!r}")
    if sorter is not None and array_of("searchsorted", "sorter", sorter).shape != x1.shape:
        raise ValueError(
            f"searchsorted: argument 'sorter' must have shape {x1.shape}, got {sorter.shape}"
        )
    dtype = _core.array_result_type(x1, x2)
    ordered = _core.array_astype(x1 if sorter is None else x1[sorter], dtype, False)
    if isinstance(x2, NDArray):
        wanted = _core.array_astype(x2, dtype, False)
    else:
        wanted = _core.array_full((), x2, dtype, x1.device)
    return _core.array_searchsorted(ordered, wanted, side == "right")
