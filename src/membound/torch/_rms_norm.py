# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm, alone, after a residual addition and with a gate."""

from __future__ import annotations

from typing import Any

from membound import _core
from membound.torch._columns import added_norm, sharded_rms_norm
from membound.torch._functions import differentiable, traceable
from membound.torch._norm_call import call_norm, default_eps, is_of_rows, like, mixed
from membound.torch._operators import define_without_gradient, operator

# Operators take a weight of (heads, cols), one row per head, as the library does.


def _backward(function: Any) -> Any:
    def backward(grads, saved, options, wanted):
        _, weight_offset, rounding = options
        return function(
            *grads, *saved, weight_offset=weight_offset, rounding=rounding,
            normalized_shape=saved[0].shape[-1], need_dx=wanted[0], need_dweight=wanted[1],
        )  # fmt: skip

    return backward


def _mixed_backward(function: Any) -> Any:
    def backward(grads, saved, options, wanted):
        _, x_dtype, _, weight_offset, rounding = options
        apart = {"need_dresidual": wanted[1]} if len(wanted) == 3 else {}
        found = function(
            *grads, *saved, weight_offset=weight_offset, rounding=rounding,
            normalized_shape=saved[0].shape[-1], dx=like(saved[0], x_dtype) if wanted[0] else None,
            need_dx=wanted[0], need_dweight=wanted[-1], **apart,
        )  # fmt: skip
        return found if len(found) == len(wanted) else (found[0], None, found[1])

    return backward


def _asked(x: Any) -> dict[str, Any]:
    return {"normalized_shape": x.shape[-1], "return_rstd": True}


_RMS_NORM = operator(
    "rms_norm", _backward(_core.rms_norm_backward), _asked, columns=sharded_rms_norm
)
_ADD_RMS_NORM = operator(
    "add_rms_norm", _backward(_core.add_rms_norm_backward), _asked,
    columns=added_norm(sharded_rms_norm),
)  # fmt: skip


def _rms_norm_gated_backward(grads, saved, options, wanted):
    norm_before_gate, _, weight_offset, rounding = options
    return _core.rms_norm_gated_backward(
        *grads, *saved, norm_before_gate=norm_before_gate, weight_offset=weight_offset,
        rounding=rounding, normalized_shape=saved[0].shape[-1],
        need_dx=wanted[0], need_dz=wanted[1], need_dweight=wanted[2],
    )  # fmt: skip


_RMS_NORM_GATED = operator("rms_norm_gated", _rms_norm_gated_backward, _asked)
_RMS_NORMS = _RMS_NORM, mixed(_RMS_NORM, _asked, _mixed_backward(_core.rms_norm_backward))
_ADD_RMS_NORMS = (
    _ADD_RMS_NORM,
    mixed(_ADD_RMS_NORM, _asked, _mixed_backward(_core.add_rms_norm_backward)),
)
_RMS_NORMS_GATED = (
    _RMS_NORM_GATED,
    mixed(
        _RMS_NORM_GATED,
        _asked,
        lambda grads, saved, options, wanted: _rms_norm_gated_backward(
            grads, saved, options[2:], wanted
        ),
    ),
)


@differentiable("out")
def rms_norm(
    x, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", dtype=None,
    normalized_shape=None,
):  # fmt: skip
    """Root mean square normalisation over the last axis.

    :func:`membound.rms_norm` with its gradient, for eager and compiled code. Recorded for the
    gradient: x, weight and 4 bytes a row.

    >>> import torch
    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> y = rms_norm(x, torch.tensor([1.0, 2.0]), eps=12.5)
    >>> torch.autograd.grad(y.sum(), x)[0].mul(1000).round().tolist()
    [[68.0, 224.0]]
    """
    eps = default_eps(x) if eps is None else eps
    if dtype is normalized_shape is None and is_of_rows(x, weight):
        return _RMS_NORM(x, weight, eps, weight_offset, rounding)  # call_norm takes 0.5 us more
    options = (eps, weight_offset, rounding)
    return call_norm(_RMS_NORMS, (x,), (weight,), options, dtype, normalized_shape)


@differentiable("out")
def gemma_rms_norm(x, weight, *, eps=1e-6, normalized_shape=None):
    """:func:`membound.gemma_rms_norm` with its gradient: one is added to each weight.

    >>> import torch
    >>> gemma_rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), eps=12.5).tolist()
    [[1.2..., 1.6...]]
    """
    options = (default_eps(x) if eps is None else eps, 1.0, "once")
    return call_norm(_RMS_NORMS, (x,), (weight,), options, None, normalized_shape)


@differentiable("out", "residual_out")
def add_rms_norm(
    x, residual, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", dtype=None,
    normalized_shape=None,
):  # fmt: skip
    """Residual addition and normalisation of the sum, in one pass: ``(out, residual_out)``.

    :func:`membound.add_rms_norm` with its gradient. Recorded: residual_out, weight and 4 bytes a
    row; x and residual are not kept. Each gradient has the dtype of its array.

    >>> import torch
    >>> out, total = add_rms_norm(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0]), eps=12.5)
    >>> total.tolist()
    [3.0, 4.0]
    """
    options = (default_eps(x) if eps is None else eps, weight_offset, rounding)
    return call_norm(_ADD_RMS_NORMS, (x, residual), (weight,), options, dtype, normalized_shape)


@differentiable("out")
def rms_norm_gated(
    x, z, weight=None, *, norm_before_gate=True, eps=1e-6, weight_offset=0.0, rounding="once",
    dtype=None, normalized_shape=None,
):  # fmt: skip
    """``rms_norm(x) * silu(z)``, or with ``norm_before_gate=False`` ``rms_norm(x * silu(z))``.

    :func:`membound.rms_norm_gated` with its gradient. Recorded: x, z, weight and 4 bytes a row.

    >>> import torch
    >>> rms_norm_gated(torch.ones(1, 2), torch.zeros(1, 2)).tolist()
    [[0.0, 0.0]]
    """
    eps = default_eps(x) if eps is None else eps
    options = (norm_before_gate, eps, weight_offset, rounding)
    return call_norm(_RMS_NORMS_GATED, (x, z), (weight,), options, dtype, normalized_shape)


def _in_place(name: str) -> Any:
    extension = getattr(_core, name)
    return define_without_gradient(
        name,
        "(Tensor(a!) input, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()",
        lambda *arguments: extension(*arguments) or (),
        lambda *_: (),
    )


_FUSED_ADD_RMS_NORM = _in_place("fused_add_rms_norm")
_GEMMA_FUSED_ADD_RMS_NORM = _in_place("gemma_fused_add_rms_norm")


@traceable()
def fused_add_rms_norm(input, residual, weight, epsilon=1e-6):  # noqa: A002 - vLLM's name
    """:func:`membound.fused_add_rms_norm`, in place, for compiled code too.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> fused_add_rms_norm(x, residual, torch.tensor([1.0, 1.0]), 12.5)
    >>> residual.tolist()
    [[3.0, 4.0]]
    """
    _FUSED_ADD_RMS_NORM(input, residual, weight, epsilon)


@traceable()
def gemma_fused_add_rms_norm(input, residual, weight, epsilon=1e-6):  # noqa: A002 - flashinfer's
    """:func:`membound.gemma_fused_add_rms_norm`, in place, for compiled code too.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> gemma_fused_add_rms_norm(x, residual, torch.tensor([0.0, 0.0]), 12.5)
    >>> residual.tolist()
    [[3.0, 4.0]]
    """
    _GEMMA_FUSED_ADD_RMS_NORM(input, residual, weight, epsilon)
