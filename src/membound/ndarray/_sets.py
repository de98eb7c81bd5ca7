# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Distinct elements, from one sort, and membership, which a CPU looks up in a table if it can.

Each NaN is distinct, and -0. equals 0. The number of distinct elements is read back, which waits
for a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import BOOL, INT64, array_of
from membound.ndarray._creation import ones
from membound.ndarray._elementwise import clip
from membound.ndarray._manipulation import concat, reshape
from membound.ndarray._searching import searchsorted
from membound.ndarray._types import iinfo


class UniqueAll(NamedTuple):
    """What ``unique_all`` returns."""

    values: NDArray
    indices: NDArray
    inverse_indices: NDArray
    counts: NDArray


class UniqueCounts(NamedTuple):
    """What ``unique_counts`` returns."""

    values: NDArray
    counts: NDArray


class UniqueInverse(NamedTuple):
    """What ``unique_inverse`` returns."""

    values: NDArray
    inverse_indices: NDArray


def unique_all(x: NDArray, /) -> UniqueAll:
    """Return the distinct elements in ascending order, and what leads from x to them and back.

    Returns:
        values: the distinct elements, a vector.
        indices: int64, where in x, in C order, each of them is first.
        inverse_indices: int64 in x's shape, the place in values of each element.
        counts: int64, how often each is in x.

    >>> nd.unique_all(nd.asarray([3, 1, 3])).counts
    array([1, 2])
    """
    flat = reshape(array_of("unique_all", "x", x), (-1,))
    order = _core.array_argsort(flat, 0, False, True)
    is_first = _first_of_equals(_core.array_take(flat, order, 0))
    (starts,) = _core.array_nonzero(is_first)
    place_in_values = _core.array_scan("cumulative_sum", is_first, 0, INT64) - 1
    inverse = _core.array_empty(flat.shape, INT64, x.device)
    _core.array_scatter(inverse, (order,), 0, place_in_values)
    end = _core.array_full((1,), flat.size, INT64, x.device)
    indices = _core.array_take(order, starts, 0)
    values = _core.array_take(flat, indices, 0)
    counts = concat([starts, end])[1:] - starts
    return UniqueAll(values, indices, inverse.reshape(x.shape), counts)


def _first_of_equals(ordered: NDArray) -> NDArray:
    """Whether each element of a sorted vector differs from the one before."""
    if ordered.size == 0:
        return _core.array_empty((0,), BOOL, ordered.device)
    first = ones(1, dtype=BOOL, device=ordered.device)
    return concat([first, ordered[1:] != ordered[:-1]])


def unique_counts(x: NDArray, /) -> UniqueCounts:
    """Return the distinct elements in ascending order, and how often each is in x.

    >>> nd.unique_counts(nd.asarray([3, 1, 3])).values
    array([1, 3])
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: NDArray, /) -> UniqueInverse:
    """Return the distinct elements in ascending order, and the place there of each element of x.

    >>> nd.unique_inverse(nd.asarray([3, 1, 3])).inverse_indices
    array([1, 0, 1])
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: NDArray, /) -> NDArray:
    """Return the distinct elements in ascending order, a vector.

    >>> nd.unique_values(nd.asarray([3, 1, 3]))
    array([1, 3])
    """
    flat = reshape(array_of("unique_values", "x", x), (-1,))
    ordered = _core.array_sort(flat, 0, False, True)
    return _core.array_take(ordered, *_core.array_nonzero(_first_of_equals(ordered)), 0)


def isin(
    x1: NDArray | bool | float, x2: NDArray | bool | float, /, *, invert: bool = False
) -> NDArray:
    """Return whether each element of x1 equals one of x2, or none if invert; NaN equals nothing.

    One of both may be a number; their dtypes promote to one.

    >>> nd.isin(nd.asarray([1, 2, 3]), nd.asarray([3, 1]))
    array([ True, False,  True])
    """
    dtype = _core.array_result_type(x1, x2)
    device = x1.device if isinstance(x1, NDArray) else array_of("isin", "x2", x2).device
    wanted, known = (
        _core.array_astype(x, dtype, False, device)
        if isinstance(x, NDArray)
        else _core.array_full((), x, dtype, device)
        for x in (x1, x2)
    )
    if known.size == 0:
        return _core.array_full(wanted.shape, invert, BOOL, device)
    known = reshape(known, (-1,))
    if device.type == "cpu" and wanted.size >= 2000:  # fewer have one sort, which is fewer calls
        if known.size > 8 and dtype.kind.endswith("integer"):
            low, high = (int(_core.array_reduce(of, known, None, False)) for of in ("min", "max"))
            if high - low < 4 * (wanted.size + known.size):
                return _in_table(wanted, known, low, high, invert)
        if known.size <= 32:
            equal = wanted == known[0]
            for one in known[1:]:
                equal |= wanted == one
            return ~equal if invert else equal
    ordered = _core.array_sort(known, 0, False, True)
    place = _core.array_elementwise("minimum", searchsorted(ordered, wanted), known.size - 1)
    near = _core.array_take(ordered, reshape(place, (-1,)), 0).reshape(wanted.shape)
    return near != wanted if invert else near == wanted


def _in_table(wanted: NDArray, known: NDArray, low: int, high: int, invert: bool) -> NDArray:
    """Look integers up in a table from before the least known one to behind the greatest."""
    limits = iinfo(known.dtype)
    first, last = max(low - 1, limits.min), min(high + 1, limits.max)

    def places(x: NDArray) -> NDArray:
        inside = clip(x, first, last)
        if x.dtype != "uint64":  # others may be too narrow for the difference
            inside = _core.array_astype(inside, INT64, False)
        inside -= first
        return _core.array_astype(inside, INT64, False)

    table = _core.array_full((last - first + 1,), invert, BOOL, known.device)
    _core.array_scatter(table, (places(known),), 0, not invert)
    return _core.array_take(table, places(wanted), 0)
