# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, alone and after a residual addition."""

from __future__ import annotations

from typing import Any

from membound import _core
from membound.torch._columns import added_norm, sharded_layer_norm
from membound.torch._functions import differentiable
from membound.torch._norm_call import call_norm, like, mixed, statistics_like
from membound.torch._operators import Operator, contiguous_like, rows_like

_OPTIONS = {"eps": "float", "weight_offset": "float"}


def _backward(function: Any) -> Any:
    def backward(grads, saved, options, wanted):
        x, weight, bias, mean, rstd = saved
        # A new dbias would have the dtype of weight.
        alike = bias is None or (weight is not None and bias.dtype == weight.dtype)
        return function(
            *grads, x, weight, mean, rstd, weight_offset=options[1],
            normalized_shape=x.shape[-1],
            dbias=None if alike or not wanted[2] else contiguous_like(bias),
            need_dx=wanted[0], need_dweight=wanted[1], need_dbias=wanted[2],
        )  # fmt: skip

    return backward


def _mixed_backward(function: Any) -> Any:
    def backward(grads, saved, options, wanted):
        x, weight, bias, mean, rstd = saved
        added = len(wanted) == 4
        alike = bias is None or (weight is not None and bias.dtype == weight.dtype)
        found = function(
            *grads, x, weight, mean, rstd, weight_offset=options[3],
            normalized_shape=x.shape[-1], dx=like(x, options[1]) if wanted[0] else None,
            dbias=None if alike or not wanted[-1] else contiguous_like(bias),
            need_dx=wanted[0], need_dweight=wanted[-2], need_dbias=wanted[-1],
            **({"need_dresidual": wanted[1]} if added else {}),
        )  # fmt: skip
        return found if len(found) == len(wanted) else (found[0], None, *found[1:])

    return backward


_LAYER_NORM = Operator(
    name="layer_norm",
    tensors={"x": "dx", "weight?": "dweight", "bias?": "dbias"},
    options=_OPTIONS,
    results={"out": True, "mean": False, "rstd": False},
    forward=lambda x, weight, bias, eps, weight_offset: _core.layer_norm(
        x,
        weight,
        bias,
        eps=eps,
        weight_offset=weight_offset,
        normalized_shape=x.shape[-1],
        return_stats=True,
    ),
    shapes=lambda x, *_: (contiguous_like(x), rows_like(x), rows_like(x)),
    saves=("x", "weight", "bias", "mean", "rstd"),
    gradients={"dx": "x", "dweight": "weight", "dbias": "bias"},
    backward=_backward(_core.layer_norm_backward),
    rows=("x",),
    columns=sharded_layer_norm,
)

_ADD_LAYER_NORM = Operator(
    name="add_layer_norm",
    tensors={"x": "dx", "residual": "dx", "weight?": "dweight", "bias?": "dbias"},
    options=_OPTIONS,
    results={"out": True, "residual_out": True, "mean": False, "rstd": False},
    forward=lambda x, residual, weight, bias, eps, weight_offset: _core.add_layer_norm(
        x,
        residual,
        weight,
        bias,
        eps=eps,
        weight_offset=weight_offset,
        normalized_shape=x.shape[-1],
        return_stats=True,
    ),
    shapes=lambda x, *_: (contiguous_like(x), contiguous_like(x), rows_like(x), rows_like(x)),
    saves=("residual_out", "weight", "bias", "mean", "rstd"),
    gradients={"dx": "residual_out", "dweight": "weight", "dbias": "bias"},
    backward=_backward(_core.add_layer_norm_backward),
    rows=("x", "residual"),
    columns=added_norm(sharded_layer_norm),
)


_LAYER_NORMS = _LAYER_NORM, mixed(
    _LAYER_NORM,
    lambda x, weight, bias, dtype, _, eps, weight_offset: _core.layer_norm(
        x, weight, bias, eps=eps, weight_offset=weight_offset, dtype=dtype,
        normalized_shape=x.shape[-1], return_stats=True,
    ),
    lambda x, _, __, dtype, *___: (like(x, dtype), rows_like(x), rows_like(x)),
    _mixed_backward(_core.layer_norm_backward),
)  # fmt: skip
_ADD_LAYER_NORMS = _ADD_LAYER_NORM, mixed(
    _ADD_LAYER_NORM,
    lambda x, residual, weight, bias, dtype, _, eps, weight_offset: _core.add_layer_norm(
        x, residual, weight, bias, eps=eps, weight_offset=weight_offset, dtype=dtype,
        normalized_shape=x.shape[-1], return_stats=True,
    ),
    lambda x, residual, _, __, dtype, *___: (
        like(x, dtype), contiguous_like(residual), statistics_like(x, residual),
        statistics_like(x, residual),
    ),
    _mixed_backward(_core.add_layer_norm_backward),
)  # fmt: skip


@differentiable("out")
def layer_norm(
    x, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0, dtype=None, normalized_shape=None
):
    """Layer normalisation over the last axis: :func:`membound.layer_norm` with its gradient.

    Recorded for the gradient: x, weight, and 8 bytes a row for mean and rstd.

    >>> import torch
    >>> layer_norm(torch.tensor([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    options, parameters = (1e-5 if eps is None else eps, weight_offset), _of(weight, bias)
    return call_norm(_LAYER_NORMS, (x,), parameters, options, dtype, normalized_shape)


def _of(weight: Any, bias: Any) -> dict[str, Any]:
    return {"weight": weight, "bias": bias}


@differentiable("out", "residual_out")
def add_layer_norm(
    x, residual, weight=None, bias=None, *, eps=1e-6, weight_offset=0.0, dtype=None,
    normalized_shape=None,
):  # fmt: skip
    """Residual addition and LayerNorm of the sum, in one pass: ``(out, residual_out)``.

    :func:`membound.add_layer_norm` with its gradient; x and residual are not kept for it.

    >>> import torch
    >>> out, total = add_layer_norm(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), eps=0.0)
    >>> out.tolist(), total.tolist()
    ([[-1.0, 1.0]], [[1.0, 3.0]])
    """
    options, parameters = (1e-5 if eps is None else eps, weight_offset), _of(weight, bias)
    return call_norm(_ADD_LAYER_NORMS, (x, residual), parameters, options, dtype, normalized_shape)
