# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Weighted sums of neighbours along an axis; not in the standard."""

from __future__ import annotations

from typing import Any, Literal

from membound import _core
from membound._core import NDArray
from membound.arrays import type_name
from membound.ndarray._arguments import array_of, axis_of

Boundary = Literal["valid", "zero", "nearest", "reflect", "wrap"]


def stencil_1d(
    x: NDArray, weights: NDArray, /, *, axis: int = -1, boundary: Boundary = "valid"
) -> NDArray:
    """Return y[i] = the sum over k of weights[k] * x[i + k - radius] along an axis.

    Args:
        x: floats, with at least one axis; 16-bit ones are computed in float32.
        weights: floats (2 * radius + 1,); dtypes promote.
        axis: along which neighbours are added.
        boundary: what is read beyond the ends of an axis a b c d, as scipy.ndimage has it: "zero"
            0 0 | a b c d | 0 0, "nearest" a a | a b c d | d d, "reflect" b a | a b c d | d c,
            "wrap" c d | a b c d | a b. With "valid" y is shorter by 2 * radius instead.

    >>> nd.stencil_1d(nd.asarray([1.0, 2.0, 4.0]), nd.asarray([-1.0, 0.0, 1.0]), boundary="zero")
    array([ 2.,  3., -2.])
    """
    at, name = _checked("stencil_1d", x, weights, axis, boundary)
    return _core.array_stencil_1d(x, weights, at, name)


def stencil_1d_backward(
    dy: NDArray, x: NDArray, weights: NDArray, /, *, axis: int = -1, boundary: Boundary = "valid"
) -> tuple[NDArray, NDArray]:
    """Return the gradients of x and of weights for the gradient dy of ``stencil_1d``'s result.

    dweights[k] is the sum of dy[i] * x[i + k - radius] over i and all other axes, and
    dx[j] that of weights[k] * dy[i] over all i and k that read x[j].

    >>> x, w = nd.asarray([1.0, 2.0, 4.0]), nd.asarray([-1.0, 0.0, 1.0])
    >>> nd.stencil_1d_backward(nd.ones((1,)), x, w)
    (array([-1.,  0.,  1.]), array([1., 2., 4.]))
    """
    at, name = _checked("stencil_1d_backward", x, weights, axis, boundary)
    return _core.array_stencil_1d_backward(
        array_of("stencil_1d_backward", "dy", dy), x, weights, at, name
    )


def _checked(function: str, x: Any, weights: Any, axis: int, boundary: Any) -> tuple[int, str]:
    array_of(function, "weights", weights)
    if not isinstance(boundary, str):
        raise TypeError(f"{function}: argument 'boundary' must be a str, got {type_name(boundary)}")
    return axis_of(function, axis, array_of(function, "x", x).ndim), boundary
