# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Products of matrices and vectors."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from membound import _core
from membound._core import NDArray
from membound.ndarray._arguments import array_of, axes_of, axis_of
from membound.ndarray._manipulation import moveaxis, permute_dims, reshape


def matmul(x1: NDArray, x2: NDArray, /) -> NDArray:
    """Return the product of matrices, as ``x1 @ x2``.

    Args:
        x1: numbers (..., M, K), or a vector (K,).
        x2: numbers (..., K, N), or a vector (K,); dtypes promote, other axes broadcast.

    Raises:
        ValueError: other lengths, no axes.

    >>> nd.matmul(nd.asarray([[1, 2], [3, 4]]), nd.asarray([1, 1]))
    array([3, 7])
    """
    return _core.array_matmul(array_of("matmul", "x1", x1), array_of("matmul", "x2", x2))


def matrix_transpose(x: NDArray, /) -> NDArray:
    """Return a view (..., N, M) of matrices (..., M, N).

    >>> nd.matrix_transpose(nd.ones((2, 3))).shape
    (3, 2)
    """
    return array_of("matrix_transpose", "x", x).mT


def tensordot(
    x1: NDArray, x2: NDArray, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> NDArray:
    """Return the sum of products over axes of both; the result has x1's other axes, then x2's.

    Args:
        x1, x2: numbers; their dtypes promote.
        axes: how many of the last of x1 and the first of x2, or the axes of each.

    >>> nd.tensordot(nd.ones((2, 3)), nd.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    array_of("tensordot", "x1", x1)
    array_of("tensordot", "x2", x2)
    if isinstance(axes, Sequence):
        of_x1, of_x2 = (tuple(own) for own in axes)
    else:
        if (count := operator.index(axes)) < 0:
            raise ValueError(f"tensordot: argument 'axes' must not be negative, got {count}")
        of_x1, of_x2 = tuple(range(x1.ndim - count, x1.ndim)), tuple(range(count))
    of_x1 = axes_of("tensordot", of_x1, x1.ndim, "axes")
    of_x2 = axes_of("tensordot", of_x2, x2.ndim, "axes")
    lengths = [tuple(x.shape[at] for at in own) for x, own in ((x1, of_x1), (x2, of_x2))]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"tensordot: argument 'axes' must have axes of one length, got {lengths[0]} of x1 and "
            f"{lengths[1]} of x2"
        )
    rest1 = tuple(at for at in range(x1.ndim) if at not in of_x1)
    rest2 = tuple(at for at in range(x2.ndim) if at not in of_x2)
    summed = math.prod(lengths[0])
    outer = [tuple(x.shape[at] for at in rest) for x, rest in ((x1, rest1), (x2, rest2))]
    left = reshape(permute_dims(x1, rest1 + of_x1), (math.prod(outer[0]), summed))
    right = reshape(permute_dims(x2, of_x2 + rest2), (summed, math.prod(outer[1])))
    return _core.array_matmul(left, right).reshape(outer[0] + outer[1])


def vecdot(x1: NDArray, x2: NDArray, /, *, axis: int = -1) -> NDArray:
    """Return the sum of products along an axis; the other axes broadcast.

    Args:
        x1, x2: numbers; their dtypes promote.
        axis: of both, from -1 down; its lengths must be equal.

    >>> nd.vecdot(nd.asarray([1, 2]), nd.asarray([3, 4]))
    array(11)
    """
    array_of("vecdot", "x1", x1)
    array_of("vecdot", "x2", x2)
    if operator.index(axis) >= 0:
        raise ValueError(f"vecdot: argument 'axis' must be negative, got {axis}")
    for x in (x1, x2):
        axis_of("vecdot", axis, x.ndim)
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(
            f"vecdot: argument 'x2' must have length {x1.shape[axis]} on axis {axis}, got "
            f"{x2.shape[axis]}"
        )
    rows, columns = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    return _core.array_matmul(rows[..., None, :], columns[..., None])[..., 0, 0]
