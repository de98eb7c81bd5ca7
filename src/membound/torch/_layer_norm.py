# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, alone and after a residual addition."""

from __future__ import annotations

from typing import Any

from membound import _core
from membound.torch._columns import after_addition, layer_norm_of_columns
from membound.torch._functions import differentiable
from membound.torch._operators import Operator, contiguous_like, rows_like

_OPTIONS = {"eps": "float", "weight_offset": "float"}


def _backward(function: Any) -> Any:
    def backward(grads, saved, options, wanted):
        x, weight, bias, mean, rstd = saved
        # A new dbias would come in the dtype of weight.
        alike = bias is None or (weight is not None and bias.dtype == weight.dtype)
        return function(
            *grads, x, weight, mean, rstd, weight_offset=options[1],
            dbias=None if alike or not wanted[2] else contiguous_like(bias),
            need_dx=wanted[0], need_dweight=wanted[1], need_dbias=wanted[2],
        )  # fmt: skip

    return backward


_LAYER_NORM = Operator(
    name="layer_norm",
    tensors={"x": "dx", "weight?": "dweight", "bias?": "dbias"},
    options=_OPTIONS,
    results={"out": True, "mean": False, "rstd": False},
    forward=lambda x, weight, bias, eps, weight_offset: _core.layer_norm(
        x, weight, bias, eps=eps, weight_offset=weight_offset, return_stats=True
    ),
    shapes=lambda x, *_: (contiguous_like(x), rows_like(x), rows_like(x)),
    saves=("x", "weight", "bias", "mean", "rstd"),
    gradients={"dx": "x", "dweight": "weight", "dbias": "bias"},
    backward=_backward(_core.layer_norm_backward),
    rows=("x",),
    columns=layer_norm_of_columns,
)

_ADD_LAYER_NORM = Operator(
    name="add_layer_norm",
    tensors={"x": "dx", "residual": "dx", "weight?": "dweight", "bias?": "dbias"},
    options=_OPTIONS,
    results={"out": True, "residual_out": True, "mean": False, "rstd": False},
    forward=lambda x, residual, weight, bias, eps, weight_offset: _core.add_layer_norm(
        x, residual, weight, bias, eps=eps, weight_offset=weight_offset, return_stats=True
    ),
    shapes=lambda x, *_: (contiguous_like(x), contiguous_like(x), rows_like(x), rows_like(x)),
    saves=("residual_out", "weight", "bias", "mean", "rstd"),
    gradients={"dx": "residual_out", "dweight": "weight", "dbias": "bias"},
    backward=_backward(_core.add_layer_norm_backward),
    rows=("x", "residual"),
    columns=after_addition(layer_norm_of_columns),
)


@differentiable("out")
def layer_norm(x, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0):
    """Layer normalisation over the last axis: :func:`membound.layer_norm` with its gradient.

    Recorded for the gradient: x, weight, and 8 bytes a row for mean and rstd.

    >>> import torch
    >>> layer_norm(torch.tensor([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    return _LAYER_NORM(x, weight, bias, eps, weight_offset)


@differentiable("out", "residual_out")
def add_layer_norm(x, residual, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0):
    """Residual addition and LayerNorm of the sum, in one pass: ``(out, residual_out)``.

    :func:`membound.add_layer_norm` with its gradient; x and residual are not kept for it.

    >>> import torch
    >>> out, total = add_layer_norm(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), eps=0.0)
    >>> out.tolist(), total.tolist()
    ([[-1.0, 1.0]], [[1.0, 3.0]])
    """
    return _ADD_LAYER_NORM(x, residual, weight, bias, eps, weight_offset)
