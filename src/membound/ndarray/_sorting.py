# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Order along an axis."""

from __future__ import annotations

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of, axis_of, flag_of


def sort(
    x: NDArray, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> NDArray:
    """Return the elements sorted along an axis; NaN is last, descending or not.

    >>> nd.sort(nd.asarray([3, 1, 2]), descending=True)
    array([3, 2, 1])
    """
    at = axis_of("sort", axis, array_of("sort", "x", x).ndim)
    flag_of("sort", "stable", stable)
    return _core.array_sort(x, at, flag_of("sort", "descending", descending), stable)


def argsort(
    x: NDArray, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> NDArray:
    """Return the int64 indices that sort x along an axis; stable keeps the order of equals.

    >>> nd.argsort(nd.asarray([3, 1, 2]))
    array([1, 2, 0])
    """
    at = axis_of("argsort", axis, array_of("argsort", "x", x).ndim)
    flag_of("argsort", "stable", stable)
    return _core.array_argsort(x, at, flag_of("argsort", "descending", descending), stable)
