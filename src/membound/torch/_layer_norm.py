# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, alone and after a residual addition."""

from __future__ import annotations

from typing import Any

from membound import _core
from membound.torch._columns import added_norm, sharded_layer_norm
from membound.torch._functions import differentiable
from membound.torch._norm_call import call_norm, like, mixed
from membound.torch._operators import contiguous_like, operator


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


def _asked(x: Any) -> dict[str, Any]:
    return {"normalized_shape": x.shape[-1], "return_stats": True}


_LAYER_NORM = operator(
    "layer_norm", _backward(_core.layer_norm_backward), _asked, columns=sharded_layer_norm
)
_ADD_LAYER_NORM = operator(
    "add_layer_norm", _backward(_core.add_layer_norm_backward), _asked,
    columns=added_norm(sharded_layer_norm),
)  # fmt: skip
_LAYER_NORMS = (
    _LAYER_NORM,
    mixed(_LAYER_NORM, _asked, _mixed_backward(_core.layer_norm_backward)),
)
_ADD_LAYER_NORMS = (
    _ADD_LAYER_NORM,
    mixed(_ADD_LAYER_NORM, _asked, _mixed_backward(_core.add_layer_norm_backward)),
)


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
    options = (1e-5 if eps is None else eps, weight_offset)
    return call_norm(_LAYER_NORMS, (x,), (weight, bias), options, dtype, normalized_shape)


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
    options, columns = (1e-5 if eps is None else eps, weight_offset), (weight, bias)
    return call_norm(_ADD_LAYER_NORMS, (x, residual), columns, options, dtype, normalized_shape)
