# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Indices that are arrays: x[indices], x[mask] and their assignments as NumPy has them; take.

The extension handles keys of integers, slices, None and Ellipsis; it calls `get` and `set` for
all others.
"""

from __future__ import annotations

import operator
from typing import Any

from membound import _core
from membound._core import NDArray
from membound.arrays import type_name
from membound.ndarray._arguments import BOOL, INT64, array_of, axis_of
from membound.ndarray._manipulation import broadcast_shapes, permute_dims

# A view, the arrays that index consecutive axes of it, and the first of those axes.
Gather = tuple[NDArray, tuple[NDArray, ...], int]


def get(x: NDArray, key: Any) -> NDArray:
    """Return x[key] of a key with arrays, a copy."""
    try:
        return _core.array_gather(*_gather_of(x, key))
    except (IndexError, TypeError, ValueError) as error:
        raise _named("indexing", error, "gather") from None


def set(x: NDArray, key: Any, value: Any) -> None:
    """Write x[key] = value of a key with arrays; value broadcasts to the elements it names."""
    is_mask = isinstance(key, NDArray) and key.dtype == "bool" and key.shape == x.shape
    if is_mask and not (isinstance(value, NDArray) and value.ndim):
        # Needs no number of elements, so a GPU is not waited for.
        one = _core.array_empty((), x.dtype, x.device)
        one[...] = value
        x[...] = _core.array_elementwise("where", key, one, x)
        return
    try:
        _core.array_scatter(*_gather_of(x, key), value)
    except (IndexError, TypeError, ValueError) as error:
        raise _named("__setitem__", error, "scatter") from None


def _named(name: str, error: Exception, function: str) -> Exception:
    """Return the error of a function with the name that the caller wrote."""
    text = str(error)
    rest = text.removeprefix(f"{function}:")
    return error if rest == text else type(error)(f"{name}:{rest}")


def _gather_of(x: NDArray, key: Any) -> Gather:
    parts = [_index_of(x, part) for part in (key if isinstance(key, tuple) else (key,))]
    basic: list[slice | None] = []  # each gives one axis of the view
    indices: list[NDArray] = []
    places: list[int] = []  # axes of the view that they index
    spots: list[int] = []  # where arrays are in the key
    axis = 0  # of x
    for spot, part in enumerate(_with_slices(x, parts)):
        if not isinstance(part, NDArray):
            basic += [] if part is Ellipsis else [part]
            axis += isinstance(part, slice)
            continue
        spots.append(spot)
        is_mask = part.dtype == "bool"
        found = _of_mask(x, part, axis) if is_mask else (part,)
        places += range(len(basic), len(basic) + len(found))
        # A mask without axes makes one.
        basic += [None] if is_mask and part.ndim == 0 else [slice(None)] * len(found)
        indices += found
        axis += axes_taken(part)
    view = x[tuple(basic)]
    if spots[-1] - spots[0] + 1 == len(spots):  # an Ellipsis of no axes separates too
        return view, tuple(indices), places[0]
    rest = (axis for axis in range(view.ndim) if axis not in places)
    return permute_dims(view, (*places, *rest)), tuple(indices), 0


def _index_of(x: NDArray, part: Any) -> Any:
    """Return one entry of a key, with numbers and lists as arrays on x's device."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, list):
        part = _core.array_from_nested(part, None if part else INT64, x.device)
    if isinstance(part, NDArray):
        if not part.dtype.name.startswith(("int", "uint", "bool")):
            raise IndexError(f"indexing: index arrays must have integers or bool, got {part.dtype}")
        return part
    if isinstance(part, bool):
        return _core.array_full((), part, BOOL, x.device)
    try:
        return _core.array_full((), operator.index(part), INT64, x.device)
    except TypeError:
        raise IndexError(
            "indexing: a key must have integers, slices, None, Ellipsis and arrays of this "
            f"library, got {type_name(part)}"
        ) from None


def axes_taken(part: Any) -> int:
    """Return how many axes of an array an entry of a key indexes."""
    if isinstance(part, NDArray) and part.dtype == "bool":
        return part.ndim
    return 0 if part is None else 1


def _with_slices(x: NDArray, parts: list[Any]) -> list[Any]:
    """Return a key with a slice for each axis that Ellipsis, or what is left out, stands for."""
    at = next((at for at, part in enumerate(parts) if part is Ellipsis), len(parts))
    first, rest = parts[: at + 1], parts[at + 1 :]
    missing = x.ndim - sum(map(axes_taken, parts[:at] + rest))
    if missing < 0 or any(part is Ellipsis for part in rest):
        raise IndexError(
            f"indexing: a key of an array with {x.ndim} axes must have so many entries at most, "
            f"and one Ellipsis, got {len(parts)}"
        )
    return first + [slice(None)] * missing + rest


def _of_mask(x: NDArray, mask: NDArray, axis: int) -> tuple[NDArray, ...]:
    """Return the indices of a mask of x's axes from one on."""
    covered = x.shape[axis : axis + mask.ndim]
    if any(own not in (length, 0) for own, length in zip(mask.shape, covered, strict=True)):
        raise IndexError(
            f"indexing: a mask must have the shape {covered} of the axes it covers, got "
            f"{mask.shape}"
        )
    return _core.array_nonzero(mask if mask.ndim else mask.reshape((1,)))


def take(x: NDArray, indices: NDArray, /, *, axis: int | None = None) -> NDArray:
    """Return the elements of x at indices along an axis.

    Args:
        x: any array.
        indices: a vector of integers; negative ones count from the end.
        axis: may be left out if x is a vector.

    Raises:
        IndexError: an index that the axis has not (on a GPU, this waits for it).

    >>> nd.take(nd.asarray([5, 6, 7]), nd.asarray([-1, 0]))
    array([7, 5])
    """
    array_of("take", "x", x)
    if array_of("take", "indices", indices).ndim != 1:
        raise ValueError(f"take: argument 'indices' must be a vector, got shape {indices.shape}")
    if axis is None and x.ndim != 1:
        raise ValueError(f"take: argument 'axis' must be given for an x of {x.ndim} axes, got None")
    return _core.array_take(x, indices, axis_of("take", axis or 0, x.ndim))


def take_along_axis(x: NDArray, indices: NDArray, /, *, axis: int = -1) -> NDArray:
    """Return elements of x at indices along an axis that differ with the places on other axes.

    Args:
        x: any array with axes.
        indices: integers, with as many axes; those other than `axis` broadcast with x's.
        axis: which the indices count along.

    >>> x = nd.asarray([[3, 1], [2, 4]])
    >>> nd.take_along_axis(x, nd.argsort(x))
    array([[1, 3],
           [2, 4]])
    """
    at = axis_of("take_along_axis", axis, array_of("take_along_axis", "x", x).ndim)
    if array_of("take_along_axis", "indices", indices).ndim != x.ndim:
        raise ValueError(
            f"take_along_axis: argument 'indices' must have {x.ndim} axes, got {indices.ndim}"
        )
    shapes = ((*own.shape[:at], 1, *own.shape[at + 1 :]) for own in (x, indices))
    common = broadcast_shapes(*shapes)
    x, indices = (
        own.broadcast_to((*common[:at], own.shape[at], *common[at + 1 :])) for own in (x, indices)
    )
    return _core.array_take_along_axis(x, indices, at)
