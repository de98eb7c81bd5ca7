# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions by the names of membound.ndarray: element-wise, reductions, joins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import membound.ndarray as nd
from membound import _core
from membound._core import DType, NDArray
from membound.autograd._tensor import Operand, Tensor, data_of, from_rules, same, tensor_of
from membound.ndarray._arguments import axes_of, axis_of

Axes = int | tuple[int, ...] | None


def exp(x: Tensor, /) -> Tensor:
    """Return the exponential function of floats.

    >>> ag.exp(ag.Tensor([0.0]))
    Tensor(array([1.]))
    """
    x = tensor_of("exp", x)
    y = nd.exp(x.data)
    return from_rules("exp", y, (x, lambda dy: dy * y))


def log(x: Tensor, /) -> Tensor:
    """Return the natural logarithm of floats.

    >>> ag.log(ag.Tensor([1.0]))
    Tensor(array([0.]))
    """
    x = tensor_of("log", x)
    own = x.data
    return from_rules("log", nd.log(own), (x, lambda dy: dy / own))


def tanh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic tangent of floats.

    >>> ag.tanh(ag.Tensor([0.0]))
    Tensor(array([0.]))
    """
    x = tensor_of("tanh", x)
    y = nd.tanh(x.data)
    return from_rules("tanh", y, (x, lambda dy: dy * (1 - y * y)))


def sqrt(x: Tensor, /) -> Tensor:
    """Return the square root of floats; its gradient at 0 is infinite.

    >>> ag.sqrt(ag.Tensor([9.0]))
    Tensor(array([3.]))
    """
    x = tensor_of("sqrt", x)
    y = nd.sqrt(x.data)
    return from_rules("sqrt", y, (x, lambda dy: dy / (2 * y)))


def relu(x: Tensor, /) -> Tensor:
    """Return ``max(x, 0)`` of floats; its gradient at 0 is 0.

    >>> ag.relu(ag.Tensor([-1.0, 2.0]))
    Tensor(array([0., 2.]))
    """
    return _activation("relu", x)


def sigmoid(x: Tensor, /) -> Tensor:
    """Return ``1 / (1 + exp(-x))`` of floats.

    >>> ag.sigmoid(ag.Tensor([0.0]))
    Tensor(array([0.5]))
    """
    return _activation("sigmoid", x)


def _activation(kind: str, x: Tensor) -> Tensor:
    x = tensor_of(kind, x)
    shape, own = x.shape, x.data if x.ndim and x.size else x.data.reshape((x.size, 1))
    y = _core.gated_activation(own, kind=kind, packing="gate")

    def rule(dy: NDArray) -> NDArray:
        dy = dy.reshape(own.shape)
        dx = _core.gated_activation_backward(dy, own, kind=kind, packing="gate")
        return dx.reshape(shape)

    return from_rules(kind, y.reshape(shape), (x, rule))


def where(condition: Tensor | NDArray, x1: Operand, x2: Operand, /) -> Tensor:
    """Return the elements of x1 where the condition holds, else those of x2.

    Args:
        condition: bool.
        x1, x2: Tensors or arrays that broadcast with it and promote to one dtype; one may be a
            number.

    >>> ag.where(nd.asarray([True, False]), ag.Tensor([1.0, 2.0]), 0.0)
    Tensor(array([1., 0.]))
    """
    chosen = data_of("where", "condition", condition)
    y = nd.where(chosen, data_of("where", "x1", x1), data_of("where", "x2", x2))
    return from_rules(
        "where",
        y,
        (x1, lambda dy: nd.where(chosen, dy, 0.0)),
        (x2, lambda dy: nd.where(chosen, 0.0, dy)),
    )


def astype(x: Tensor, dtype: DType | str, /) -> Tensor:
    """Return x in another dtype; its gradient comes back in x's.

    >>> ag.astype(ag.Tensor([1.0]), nd.float32).dtype
    float32
    """
    x = tensor_of("astype", x)
    y = nd.astype(x.data, dtype, copy=False)
    return from_rules("astype", y, (x if y.dtype.kind == "real floating" else None, same))


def sum(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the sum over one axis, several, or all of them; keepdims leaves them with length 1.

    >>> ag.sum(ag.Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=0)
    Tensor(array([4., 2.]))
    """
    x = tensor_of("sum", x)
    kept, _ = _kept("sum", x, axis)
    full = x.shape
    y = nd.sum(x.data, axis=axis, keepdims=keepdims)
    return from_rules("sum", y, (x, lambda dy: dy.reshape(kept).broadcast_to(full)))


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the mean over axes, as ``sum`` has them; NaN of no elements.

    >>> ag.mean(ag.Tensor([1.0, 4.0]))
    Tensor(array(2.5))
    """
    x = tensor_of("mean", x)
    kept, count = _kept("mean", x, axis)
    full = x.shape
    y = nd.mean(x.data, axis=axis, keepdims=keepdims)
    return from_rules(
        "mean", y, (x, lambda dy: _divided(dy, count).reshape(kept).broadcast_to(full))
    )


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the greatest element over axes, as ``sum`` has them.

    Equal ones, or NaNs, share the gradient. An axis without elements raises ValueError.

    >>> ag.max(ag.Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=1)
    Tensor(array([2., 3.]))
    """
    return _extreme("max", nd.max, x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the least element over axes, as ``sum`` has them.

    Equal ones, or NaNs, share the gradient. An axis without elements raises ValueError.

    >>> ag.min(ag.Tensor([[1.0, 2.0], [3.0, 0.0]]), axis=1)
    Tensor(array([1., 0.]))
    """
    return _extreme("min", nd.min, x, axis, keepdims)


def _extreme(name: str, function: Any, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    x = tensor_of(name, x)
    own, (kept, _) = x.data, _kept(name, x, axis)
    y = function(own, axis=axis, keepdims=keepdims)

    def rule(dy: NDArray) -> NDArray:
        is_it = nd.logical_or(own == y.reshape(kept), nd.isnan(own))
        count = nd.sum(nd.astype(is_it, _wide(dy)), axis=axis, keepdims=True)
        return nd.where(is_it, _divided(dy.reshape(kept), count), 0.0)

    return from_rules(name, y, (x, rule))


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Return the variance over axes, as ``sum`` has them: squared distances / (N - correction).

    >>> ag.var(ag.Tensor([1.0, 3.0]), correction=1)
    Tensor(array(2.))
    """
    x = tensor_of("var", x)
    own, (kept, count) = x.data, _kept("var", x, axis)

    def rule(dy: NDArray) -> NDArray:
        distance = own - nd.mean(own, axis=axis, keepdims=True)
        return distance * _divided(2 * dy, count - correction).reshape(kept)

    y = nd.var(own, axis=axis, correction=correction, keepdims=keepdims)
    return from_rules("var", y, (x, rule))


def _wide(dy: NDArray) -> DType:
    """Return the dtype to count in: float16 ends at 65,504."""
    return nd.result_type(dy.dtype, nd.float32)


def _divided(dy: NDArray, count: NDArray | float) -> NDArray:
    return nd.astype(nd.astype(dy, _wide(dy), copy=False) / count, dy.dtype, copy=False)


def _kept(function: str, x: Tensor, axis: Axes) -> tuple[tuple[int, ...], int]:
    """Return x's shape with 1 for the axes that are reduced, and how many elements each has."""
    axes = range(x.ndim) if axis is None else axes_of(function, axis, x.ndim)
    kept = tuple(1 if at in axes else length for at, length in enumerate(x.shape))
    return kept, math.prod(x.shape[at] for at in axes)


def concat(tensors: Sequence[Tensor | NDArray], /, *, axis: int = 0) -> Tensor:
    """Join tensors along an axis; their other lengths must be equal, else ValueError.

    >>> ag.concat([ag.Tensor([1.0]), ag.Tensor([2.0, 3.0])])
    Tensor(array([1., 2., 3.]))
    """
    parts = [tensor_of("concat", x) for x in tensors]
    y = nd.concat([x.data for x in parts], axis=axis)
    before = (slice(None),) * axis_of("concat", axis, y.ndim)
    pairs, start = [], 0
    for x in parts:
        stop = start + x.shape[axis]
        key = (*before, slice(start, stop))
        pairs.append((x, lambda dy, key=key: dy[key]))
        start = stop
    return from_rules("concat", y, *pairs)


def stack(tensors: Sequence[Tensor | NDArray], /, *, axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis of the result; other shapes raise ValueError.

    >>> ag.stack([ag.Tensor([1.0]), ag.Tensor([2.0])]).shape
    (2, 1)
    """
    parts = [tensor_of("stack", x) for x in tensors]
    y = nd.stack([x.data for x in parts], axis=axis)
    before = (slice(None),) * axis_of("stack", axis, y.ndim)
    keys = ((*before, at) for at in range(len(parts)))
    pairs = [(x, lambda dy, key=key: dy[key]) for x, key in zip(parts, keys, strict=True)]
    return from_rules("stack", y, *pairs)
