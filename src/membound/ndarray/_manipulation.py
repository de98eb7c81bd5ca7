# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Views in another shape, and copies that join, repeat or move elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of, arrays_of, axes_of, axis_of, shape_of
from membound.ndarray._creation import arange
from membound.ndarray._searching import searchsorted

Axes = int | tuple[int, ...]


def reshape(x: NDArray, /, shape: tuple[int, ...], *, copy: bool | None = None) -> NDArray:
    """Return the elements of x, in C order, in another shape.

    Args:
        x: any array.
        shape: of as many elements as x; one length may be -1, which the others imply.
        copy: True copies, False returns a view, None a view where strides allow one.

    Raises:
        ValueError: another number of elements; copy=False, but strides need a copy.

    >>> nd.reshape(nd.arange(4), (2, -1))
    array([[0, 1],
           [2, 3]])
    """
    lengths = _implied(array_of("reshape", "x", x), shape_of("reshape", shape))
    if copy is False:
        return x.reshape_view(lengths)
    return (x.copy() if copy else x).reshape(lengths)


def _implied(x: NDArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of x's size, with the length of -1 filled in."""
    given = math.prod(length for length in shape if length != -1)
    lengths = shape
    if shape.count(-1) == 1 and given > 0:
        lengths = tuple(x.size // given if length == -1 else length for length in shape)
    if min(lengths, default=0) < 0 or math.prod(lengths) != x.size:
        raise ValueError(
            f"reshape: argument 'shape' must have the {x.size} elements of shape {x.shape}, got "
            f"{shape}"
        )
    return lengths


def permute_dims(x: NDArray, /, axes: tuple[int, ...]) -> NDArray:
    """Return a view with the axes in another order.

    >>> nd.permute_dims(nd.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    order = axes_of("permute_dims", axes, array_of("permute_dims", "x", x).ndim, "axes")
    if len(order) != x.ndim:
        raise ValueError(f"permute_dims: argument 'axes' must have {x.ndim} axes, got {axes}")
    return x.permute_dims(order)


def moveaxis(x: NDArray, source: Axes, destination: Axes, /) -> NDArray:
    """Return a view with some axes at other places; the others keep their order.

    >>> nd.moveaxis(nd.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    array_of("moveaxis", "x", x)
    sources = axes_of("moveaxis", source, x.ndim, "source")
    places = axes_of("moveaxis", destination, x.ndim, "destination")
    if len(sources) != len(places):
        raise ValueError(
            f"moveaxis: argument 'destination' must have as many axes as source {source}, got "
            f"{destination}"
        )
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return x.permute_dims(tuple(order))


def expand_dims(x: NDArray, /, axis: Axes) -> NDArray:
    """Return a view with axes of length one at the places `axis` of the result.

    An axis that the result has not raises IndexError.

    >>> nd.expand_dims(nd.ones(3), 0).shape
    (1, 3)
    """
    array_of("expand_dims", "x", x)
    rank = x.ndim + (len(axis) if isinstance(axis, Sequence) else 1)
    places = axes_of("expand_dims", axis, rank)
    return x[tuple(None if at in places else slice(None) for at in range(rank))]


def squeeze(x: NDArray, /, axis: Axes) -> NDArray:
    """Return a view without some axes of length one; others raise ValueError.

    >>> nd.squeeze(nd.ones((1, 3)), 0).shape
    (3,)
    """
    dropped = axes_of("squeeze", axis, array_of("squeeze", "x", x).ndim)
    if any(x.shape[at] != 1 for at in dropped):
        raise ValueError(
            f"squeeze: argument 'axis' must have axes of length 1 of shape {x.shape}, got {axis}"
        )
    return x[tuple(0 if at in dropped else slice(None) for at in range(x.ndim))]


def flip(x: NDArray, /, *, axis: Axes | None = None) -> NDArray:
    """Return a view with the elements along some axes, all by default, in reverse order.

    >>> nd.flip(nd.arange(3))
    array([2, 1, 0])
    """
    rank = array_of("flip", "x", x).ndim
    turned = range(rank) if axis is None else axes_of("flip", axis, rank)
    return x[tuple(slice(None, None, -1 if at in turned else 1) for at in range(rank))]


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to; ValueError if there is none.

    >>> nd.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for lengths in zip(*padded, strict=True):
        longer = {length for length in lengths if length != 1} or {1}
        if len(longer) > 1:
            raise ValueError(f"broadcast_shapes: shapes must broadcast together, got {shapes}")
        result.append(longer.pop())
    return tuple(result)


def broadcast_to(x: NDArray, /, shape: tuple[int, ...]) -> NDArray:
    """Return a view in a shape that x broadcasts to; it repeats elements, so it takes no writes.

    >>> nd.broadcast_to(nd.arange(2), (2, 2))
    array([[0, 1],
           [0, 1]])
    """
    return array_of("broadcast_to", "x", x).broadcast_to(shape_of("broadcast_to", shape))


def broadcast_arrays(*arrays: NDArray) -> tuple[NDArray, ...]:
    """Return views in the shape that the arrays broadcast to.

    >>> [x.shape for x in nd.broadcast_arrays(nd.ones((2, 1)), nd.ones(3))]
    [(2, 3), (2, 3)]
    """
    shape = broadcast_shapes(*(array_of("broadcast_arrays", "arrays", x).shape for x in arrays))
    return tuple(x.broadcast_to(shape) for x in arrays)


def concat(arrays: Sequence[NDArray], /, *, axis: int | None = 0) -> NDArray:
    """Join arrays along an axis, or all of their elements if it is None.

    Args:
        arrays: of one shape apart from that axis, on one device, of dtypes that promote.
        axis: an axis of theirs.

    Raises:
        ValueError: no arrays, other shapes.

    >>> nd.concat([nd.arange(2), nd.arange(3)])
    array([0, 1, 0, 1, 2])
    """
    parts = arrays_of("concat", arrays)
    if axis is None:
        parts, axis = tuple(reshape(x, (-1,)) for x in parts), 0
    first = parts[0]
    at = axis_of("concat", axis, first.ndim)
    for x in parts:
        if x.ndim != first.ndim or _without(x.shape, at) != _without(first.shape, at):
            raise ValueError(
                f"concat: argument 'arrays' must have one shape apart from axis {axis}, got "
                f"{first.shape} and {x.shape}"
            )
    total = sum(x.shape[at] for x in parts)
    shape = (*first.shape[:at], total, *first.shape[at + 1 :])
    result = _core.array_empty(shape, _core.array_result_type(*parts), first.device)
    start = 0
    for x in parts:
        stop = start + x.shape[at]
        _core.array_copy_into(result[_along(at, slice(start, stop))], x)
        start = stop
    return result


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _along(axis: int, index: int | slice | None) -> tuple[int | slice | None, ...]:
    """Return the key that indexes one axis and takes all of the earlier ones."""
    return (*(slice(None),) * axis, index)


def stack(arrays: Sequence[NDArray], /, *, axis: int = 0) -> NDArray:
    """Join arrays of one shape along a new axis of the result.

    >>> nd.stack([nd.arange(2), nd.arange(2)])
    array([[0, 1],
           [0, 1]])
    """
    parts = arrays_of("stack", arrays)
    at = axis_of("stack", axis, parts[0].ndim + 1)
    if any(x.shape != parts[0].shape for x in parts):
        shapes = [x.shape for x in parts]
        raise ValueError(f"stack: argument 'arrays' must have one shape, got {shapes}")
    return concat([x[_along(at, None)] for x in parts], axis=at)


def unstack(x: NDArray, /, *, axis: int = 0) -> tuple[NDArray, ...]:
    """Return a view of each index along an axis.

    >>> nd.unstack(nd.asarray([[1, 2], [3, 4]]))
    (array([1, 2]), array([3, 4]))
    """
    at = axis_of("unstack", axis, array_of("unstack", "x", x).ndim)
    return tuple(x[_along(at, index)] for index in range(x.shape[at]))


def roll(x: NDArray, /, shift: Axes, *, axis: Axes | None = None) -> NDArray:
    """Return a copy with elements moved along axes; those that leave enter at the other end.

    Args:
        x: any array.
        shift: places to move by, one for each axis or the same for all.
        axis: along which; None moves the elements in C order.

    >>> nd.roll(nd.arange(5), 2)
    array([3, 4, 0, 1, 2])
    """
    array_of("roll", "x", x)
    shifts = shape_of("roll", shift, "shift")
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes = tuple(axis_of("roll", at, x.ndim) for at in shape_of("roll", axis, "axis"))
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ValueError(
            f"roll: argument 'shift' must have one number for each of axes {axis}, got {shift}"
        )
    result = x
    for by, at in zip(shifts, axes, strict=True):
        first = -by % max(x.shape[at], 1)
        parts = (result[_along(at, slice(first, None))], result[_along(at, slice(None, first))])
        result = concat(parts, axis=at)
    return result if axes else x.copy()


def tile(x: NDArray, repetitions: tuple[int, ...], /) -> NDArray:
    """Return x repeated along its last axes, by one number for each.

    >>> nd.tile(nd.arange(2), (2, 2))
    array([[0, 1, 0, 1],
           [0, 1, 0, 1]])
    """
    times = shape_of("tile", repetitions, "repetitions")
    rank = max(array_of("tile", "x", x).ndim, len(times))
    times = (1,) * (rank - len(times)) + times
    shape = (1,) * (rank - x.ndim) + x.shape
    pairs = [pair for both in zip(times, shape, strict=True) for pair in both]
    between = tuple(part for length in shape for part in (1, length))
    spread = reshape(x, between).broadcast_to(tuple(pairs))
    return reshape(spread, tuple(map(operator.mul, times, shape)), copy=True)


def repeat(x: NDArray, repeats: int | NDArray, /, *, axis: int | None = None) -> NDArray:
    """Return each element along an axis, or in C order if it is None, several times in a row.

    Args:
        x: any array.
        repeats: how often; an array of integers has one number, or one for each element. Its sum
            is read back, which waits for a GPU.
        axis: along which.

    >>> nd.repeat(nd.asarray([1, 2]), nd.asarray([1, 3]))
    array([1, 2, 2, 2])
    """
    array_of("repeat", "x", x)
    if axis is None:
        return repeat(reshape(x, (-1,)), repeats, axis=0)
    at = axis_of("repeat", axis, x.ndim)
    if isinstance(repeats, NDArray):
        if not repeats.dtype.name.startswith(("int", "uint")):
            raise TypeError(f"repeat: argument 'repeats' must be integers, got {repeats.dtype}")
        each = repeats.broadcast_to((x.shape[at],))
        if each.size:
            least, most = (int(_core.array_reduce(of, each, None, False)) for of in ("min", "max"))
            if least < 0 or most * each.size >= 2**63:
                raise ValueError(f"repeat: argument 'repeats' has {least} to {most}, not 0 to 2^63")
        ends = _core.array_scan("cumulative_sum", each, 0)
        counted = arange(int(ends[-1]) if each.size else 0, dtype=ends.dtype, device=x.device)
        return _core.array_take(x, searchsorted(ends, counted, side="right"), at)
    times = operator.index(repeats)
    if times < 0:
        raise ValueError(f"repeat: argument 'repeats' must not be negative, got {times}")
    before, length, after = x.shape[:at], x.shape[at], x.shape[at + 1 :]
    spread = x[_along(at + 1, None)].broadcast_to((*before, length, times, *after))
    return reshape(spread, (*before, length * times, *after), copy=True)
