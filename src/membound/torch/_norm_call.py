# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls a norm's operator from its public arguments: merges normalised axes, checks dtypes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from membound import _core
from membound._normalized_shape import normalized_axes
from membound.arrays import dtype_name
from membound.torch._operators import Operator, check_tensor, contiguous_like

_FLOATING = ("float16", "bfloat16", "float32", "float64")


def default_eps(x: Any) -> float:
    """The default eps of torch's rms_norm: the epsilon of the dtype that it computes in."""
    wide = getattr(x, "dtype", None) == torch.float64
    return torch.finfo(torch.float64 if wide else torch.float32).eps


def like(tensor: Any, dtype: str) -> Any:
    return torch.empty_like(
        tensor, dtype=getattr(torch, dtype), memory_format=torch.contiguous_format
    )


def statistics_like(x: Any, *others: Any) -> Any:
    """One statistic per row: float64 if any array is float64."""
    wide = any(one.dtype == torch.float64 for one in (x, *others))
    return x.new_empty(x.shape[:-1], dtype=torch.float64 if wide else torch.float32)


def mixed(op: Operator, keywords: Any, backward: Any) -> Operator:
    """The same op for mixed dtypes: the dtypes of the result and of x become options.

    A residual then has a separate gradient: dx in the residual's dtype. keywords: as of operator.
    """
    function, count, of_rows = getattr(_core, op.name), len(op.tensors), len(op.rows)

    def forward(*given):
        dtype, _, *options = given[count:]
        named = dict(zip(op.options, options, strict=True))
        return function(*given[:count], dtype=dtype, **named, **keywords(given[0]))

    def shapes(*given):
        rows, dtype = given[:of_rows], given[count]
        _, *others = op.results.values()
        made = (contiguous_like(rows[-1]) if flows else statistics_like(*rows) for flows in others)
        return like(rows[0], dtype), *made

    added = "residual" in op.tensors
    tensors = {**op.tensors, "residual": "dresidual"} if added else op.tensors
    dx, *others = op.gradients.items()
    apart = {"dresidual": "residual_out"} if added else {}
    return dataclasses.replace(
        op,
        name=f"{op.name}_mixed",
        tensors=tensors,
        options={"dtype": "str", "x_dtype": "str", **op.options},
        forward=forward,
        shapes=shapes,
        gradients=dict([dx, *apart.items(), *others]),
        gradient_dtypes={"dx": "x_dtype"},
        backward=backward,
        columns=None,
    )


def is_of_rows(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether x is a tensor and, by weight and bias, normalised over its last axis alone."""
    return getattr(weight, "ndim", 0) < 2 > getattr(bias, "ndim", 0) and isinstance(x, torch.Tensor)


def call_norm(
    operators: tuple[Operator, Operator],
    rows: tuple[Any, ...],
    columns: tuple[Any, ...],
    options: tuple[Any, ...],
    dtype: Any,
    normalized_shape: Any,
) -> Any:
    """operators: of one dtype, and of mixed. rows: x, residual or gate. columns: weight, bias."""
    op, of_several = operators
    x, last = rows[0], rows[-1]
    if (
        dtype is normalized_shape is None
        and is_of_rows(x, columns[0], columns[-1])
        and (last is x or getattr(last, "dtype", None) == x.dtype)  # of one or two
    ):
        return op(*rows, *columns, *options)  # the rest takes 2 us of the host
    parameters = dict(zip(("weight", "bias"), columns, strict=False))
    for name, one in zip(op.tensors, rows, strict=False):
        check_tensor(op.name, name, one)
    axes = 1
    if normalized_shape is not None or any(getattr(p, "ndim", 0) > 1 for p in columns):
        axes = normalized_axes(op.name, normalized_shape, x.shape, parameters)
    if axes > 1:
        names = (*op.tensors,)[: len(rows)]
        rows = tuple(_joined(op.name, *one, axes) for one in zip(names, rows, strict=True))
        columns = tuple(None if p is None else p.reshape(-1) for p in columns)
    wanted = None if dtype is None else _floating(op.name, dtype)
    kind = dtype_name(x.dtype)
    if wanted in (None, kind) and all(getattr(one, "dtype", x.dtype) == x.dtype for one in rows):
        found = op(*rows, *columns, *options)
    else:
        found = of_several(*rows, *columns, wanted or kind, kind, *options)
    if axes == 1:
        return found
    if isinstance(found, tuple):
        return tuple(one.view(x.shape) for one in found)
    return found.view(x.shape)


def _joined(op: str, name: str, array: Any, axes: int) -> Any:
    """Merge the last axes without a copy."""
    if array.ndim < axes:
        return array
    last = array.shape[array.ndim - axes :]
    try:
        return array.view(*array.shape[: array.ndim - axes], math.prod(last))
    except RuntimeError:
        raise ValueError(
            f"{op}: argument '{name}' must have axes {tuple(last)} that one stride joins, to be "
            f"normalised as one; make it contiguous first, got strides {array.stride()[-axes:]}"
        ) from None


def _floating(op: str, dtype: Any) -> str:
    name = dtype_name(dtype)
    if name not in _FLOATING:
        raise TypeError(
            f"{op}: argument 'dtype' must be float16, bfloat16, float32 or float64, got {dtype!r}"
        )
    return name
