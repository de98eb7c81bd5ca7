# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Sums, extremes and moments over axes, cumulative sums.

16-bit floats are added in float32. The order of additions depends on the shape alone, so the bits
are the same for any number of threads.
"""

from __future__ import annotations

from typing import Any

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import DTypeLike, array_of, axis_of, flag_of

Axes = int | tuple[int, ...] | None


def _reduced(name: str, x: NDArray, axis: Axes, keepdims: bool, **options: Any) -> NDArray:
    return _core.array_reduce(name, array_of(name, "x", x), axis, keepdims, **options)


def max(x: NDArray, /, *, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """Return the greatest element over axes, all by default; NaN if there is one.

    An axis without elements raises ValueError.

    >>> nd.max(nd.asarray([[1, 2], [3, 0]]), axis=1)
    array([2, 3])
    """
    return _reduced("max", x, axis, keepdims)


def min(x: NDArray, /, *, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """Return the least element over axes, all by default; NaN if there is one.

    An axis without elements raises ValueError.

    >>> nd.min(nd.asarray([[1, 2], [3, 0]]), axis=1)
    array([1, 0])
    """
    return _reduced("min", x, axis, keepdims)


def sum(
    x: NDArray, /, *, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False
) -> NDArray:
    """Return the sum over axes, all by default.

    Args:
        x: numbers of any dtype.
        axis: one or several.
        dtype: of the sum; by default x's for floats, int64 or uint64 for integers.
        keepdims: leaves axes of length one.

    >>> nd.sum(nd.asarray([[1, 2], [3, 0]]), axis=0)
    array([4, 2])
    """
    return _reduced("sum", x, axis, keepdims, dtype=dtype)


def prod(
    x: NDArray, /, *, axis: Axes = None, dtype: DTypeLike = None, keepdims: bool = False
) -> NDArray:
    """Return the product over axes, all by default; arguments as of ``sum``.

    >>> nd.prod(nd.asarray([[1, 2], [3, 4]]), axis=0)
    array([3, 8])
    """
    return _reduced("prod", x, axis, keepdims, dtype=dtype)


def mean(x: NDArray, /, *, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """Return the mean over axes, all by default; float64 of integers, NaN of no elements.

    >>> nd.mean(nd.asarray([1.0, 4.0]))
    array(2.5)
    """
    return _reduced("mean", x, axis, keepdims)


def var(
    x: NDArray, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> NDArray:
    """Return the variance over axes: squares of distances to the mean / (N - correction).

    >>> nd.var(nd.asarray([1.0, 3.0]), correction=1)
    array(2.)
    """
    return _reduced("var", x, axis, keepdims, correction=float(correction))


def std(
    x: NDArray, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> NDArray:
    """Return the standard deviation over axes, the square root of ``var``.

    >>> nd.std(nd.asarray([1.0, 3.0]))
    array(1.)
    """
    variance = _reduced("var", x, axis, keepdims, correction=float(correction))
    return _core.array_elementwise("sqrt", variance)


def cumulative_sum(
    x: NDArray,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> NDArray:
    """Return the sums of the elements up to each along an axis.

    Args:
        x: numbers of any dtype.
        axis: may be left out if x is a vector.
        dtype: of the result; by default as of ``sum``.
        include_initial: puts a zero in front.

    >>> nd.cumulative_sum(nd.asarray([1, 2, 3]), include_initial=True)
    array([0, 1, 3, 6])
    """
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: NDArray,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> NDArray:
    """Return the products of the elements up to each; arguments as of ``cumulative_sum``.

    >>> nd.cumulative_prod(nd.asarray([1, 2, 3]))
    array([1, 2, 6])
    """
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


def _cumulative(
    name: str, x: NDArray, axis: int | None, dtype: DTypeLike, include_initial: bool
) -> NDArray:
    if axis is None and array_of(name, "x", x).ndim != 1:
        raise ValueError(f"{name}: argument 'axis' must be given for an x of {x.ndim} axes")
    at = axis_of(name, axis or 0, array_of(name, "x", x).ndim)
    flag_of(name, "include_initial", include_initial)
    return _core.array_scan(name, x, at, dtype, include_initial)
