# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""all, any and diff."""

from __future__ import annotations

import operator

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of, axis_of
from membound.ndarray._manipulation import concat

Axes = int | tuple[int, ...] | None


def all(x: NDArray, /, *, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """Return whether no element over axes, all by default, is zero; True of no elements.

    >>> nd.all(nd.asarray([True, False]))
    array(False)
    """
    return _core.array_reduce("all", array_of("all", "x", x), axis, keepdims)


def any(x: NDArray, /, *, axis: Axes = None, keepdims: bool = False) -> NDArray:
    """Return whether an element over axes, all by default, is not zero; False of no elements.

    >>> nd.any(nd.asarray([True, False]))
    array(True)
    """
    return _core.array_reduce("any", array_of("any", "x", x), axis, keepdims)


def diff(
    x: NDArray,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: NDArray | None = None,
    append: NDArray | None = None,
) -> NDArray:
    """Return the differences of neighbours along an axis, n times over.

    Args:
        x: numbers.
        axis: along which.
        n: how often; 0 returns x with what is prepended and appended.
        prepend, append: joined to x along the axis before.

    >>> nd.diff(nd.asarray([1, 4, 9]))
    array([3, 5])
    """
    at = axis_of("diff", axis, array_of("diff", "x", x).ndim)
    if operator.index(n) < 0:
        raise ValueError(f"diff: argument 'n' must be 0 or more, got {n}")
    given = ("prepend", prepend), ("x", x), ("append", append)
    parts = [array_of("diff", name, own) for name, own in given if own is not None]
    result = x if len(parts) == 1 and n > 0 else concat(parts, axis=at)
    before = (slice(None),) * at
    for _ in range(n):
        result = result[(*before, slice(1, None))] - result[(*before, slice(None, -1))]
    return result
