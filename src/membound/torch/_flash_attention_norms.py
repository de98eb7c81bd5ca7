# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""flash-attention's norms by name; flash_attention.py exports them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from membound.torch._adapters import adapter, refuse
from membound.torch._layer_norm import add_layer_norm
from membound.torch._layer_norm import layer_norm as _layer_norm
from membound.torch._rms_norm import add_rms_norm
from membound.torch._rms_norm import rms_norm as _rms_norm

_ADD_FIRST = "add it to the result"
_MULTIPLY_FIRST = "multiply x by it first"
_ONE_BRANCH = "call the function again for the second branch"


def _normalised(name, x, residual, weight, bias, eps, *, is_rms_norm, prenorm, in_fp32,
                out=None, residual_out=None, offset=0.0, dtype=None):  # fmt: skip
    """The norm of x or of x + residual; with prenorm also the normalised input."""
    options = {"eps": eps, "weight_offset": offset, "out": out, "dtype": dtype}
    if is_rms_norm:
        refuse(name, "bias", bias, None, _ADD_FIRST)
    arrays = (weight,) if is_rms_norm else (weight, bias)
    if residual is None:
        y = (_rms_norm if is_rms_norm else _layer_norm)(x, *arrays, **options)
        total = x.float() if prenorm and in_fp32 else x
    else:
        add = add_rms_norm if is_rms_norm else add_layer_norm
        y, total = add(x, residual, *arrays, residual_out=residual_out, **options)
    return (y, total) if prenorm else y


def _refuse_branches(name, x1, weight1, bias1, rowscale, return_dropout_mask):
    refuse(name, "x1", x1, None, "add it to the residual")
    refuse(name, "weight1", weight1, None, _ONE_BRANCH)
    refuse(name, "bias1", bias1, None, _ONE_BRANCH)
    refuse(name, "rowscale", rowscale, None, _MULTIPLY_FIRST)
    refuse(name, "return_dropout_mask", return_dropout_mask, False, "call F.dropout on x yourself")


@adapter(dtype="out_dtype")
def layer_norm_fn(
    x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0,
    rowscale=None, prenorm=False, residual_in_fp32=False, zero_centered_weight=False,
    is_rms_norm=False, return_dropout_mask=False, out_dtype=None, out=None, residual_out=None,
):  # fmt: skip
    """LayerNorm, or RMSNorm, of x or of ``x + residual``; with prenorm the result and the sum.

    With ``dropout_p`` torch's dropout runs before it, as a pass of its own.

    >>> import torch
    >>> layer_norm_fn(torch.tensor([[1.0, 3.0]]), None, None, eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    name = "layer_norm_fn"
    _refuse_branches(name, x1, weight1, bias1, rowscale, return_dropout_mask)
    return _normalised(
        name, F.dropout(x, dropout_p) if dropout_p else x, residual, weight, bias, eps,
        is_rms_norm=is_rms_norm, prenorm=prenorm, in_fp32=residual_in_fp32, out=out,
        residual_out=residual_out, offset=1.0 if zero_centered_weight else 0.0, dtype=out_dtype,
    )  # fmt: skip


@adapter(dtype="out_dtype")
def rms_norm_fn(
    x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0,
    rowscale=None, prenorm=False, residual_in_fp32=False, zero_centered_weight=False,
    return_dropout_mask=False, out_dtype=None, out=None, residual_out=None,
):  # fmt: skip
    """:func:`layer_norm_fn` with ``is_rms_norm=True``."""
    name = "rms_norm_fn"
    _refuse_branches(name, x1, weight1, bias1, rowscale, return_dropout_mask)
    return _normalised(
        name, F.dropout(x, dropout_p) if dropout_p else x, residual, weight, bias, eps,
        is_rms_norm=True, prenorm=prenorm, in_fp32=residual_in_fp32, out=out,
        residual_out=residual_out, offset=1.0 if zero_centered_weight else 0.0, dtype=out_dtype,
    )  # fmt: skip


@adapter(eps="epsilon")
def layer_norm(x, weight, bias, epsilon):
    """LayerNorm over the last axis."""
    return _layer_norm(x, weight, bias, eps=epsilon)


@adapter(eps="epsilon")
def rms_norm(x, weight, epsilon):
    """RMSNorm over the last axis."""
    return _rms_norm(x, weight, eps=epsilon)


@adapter(x="x0", eps="epsilon")
def dropout_add_layer_norm(
    x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False,
    residual_in_fp32=False, return_dropout_mask=False,
):  # fmt: skip
    """LayerNorm of ``dropout(x0) + residual``; with prenorm the result and the sum.

    Dropout is torch's, a pass of its own.
    """
    name = "dropout_add_layer_norm"
    _refuse_scales(name, rowscale, layerscale, return_dropout_mask)
    return _normalised(
        name, F.dropout(x0, dropout_p) if dropout_p else x0, residual, weight, bias, epsilon,
        is_rms_norm=False, prenorm=prenorm, in_fp32=residual_in_fp32,
    )  # fmt: skip


@adapter(x="x0", eps="epsilon")
def dropout_add_rms_norm(
    x0, residual, weight, bias, dropout_p, epsilon, rowscale=None, layerscale=None, prenorm=False,
    residual_in_fp32=False, return_dropout_mask=False,
):  # fmt: skip
    """RMSNorm of ``dropout(x0) + residual``; with prenorm the result and the sum."""
    name = "dropout_add_rms_norm"
    _refuse_scales(name, rowscale, layerscale, return_dropout_mask)
    return _normalised(
        name, F.dropout(x0, dropout_p) if dropout_p else x0, residual, weight, bias, epsilon,
        is_rms_norm=True, prenorm=prenorm, in_fp32=residual_in_fp32,
    )  # fmt: skip


def _refuse_scales(name, rowscale, layerscale, return_dropout_mask):
    refuse(name, "rowscale", rowscale, None, "multiply x0 by it first")
    refuse(name, "layerscale", layerscale, None, "multiply x0 by it first")
    refuse(name, "return_dropout_mask", return_dropout_mask, False, "call F.dropout on x0 yourself")


class RMSNorm(nn.Module):
    """RMSNorm with dropout before it and a residual, that of ``ops.triton.layer_norm``."""

    def __init__(
        self, hidden_size, eps=1e-5, dropout_p=0.0, zero_centered_weight=False, device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        """Reset the weight such that it multiplies by 1."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    @adapter()
    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return _normalised(
            "RMSNorm", x if self.drop is None else self.drop(x), residual, self.weight, None,
            self.eps, is_rms_norm=True, prenorm=prenorm, in_fp32=residual_in_fp32,
            offset=1.0 if self.zero_centered_weight else 0.0,
        )  # fmt: skip


class DropoutAddLayerNorm(nn.Module):
    """LayerNorm of ``dropout(x0) + residual``; with prenorm the result and the sum."""

    _is_rms_norm = False

    def __init__(
        self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__()
        self.prenorm = prenorm
        self.p = p
        self.eps = eps
        self.residual_in_fp32 = residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        bias = None if self._is_rms_norm else torch.zeros_like(self.weight)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))

    @adapter(x="x0")
    def forward(self, x0, residual=None):
        x = F.dropout(x0, self.p) if self.p and self.training else x0
        return _normalised(
            type(self).__name__, x, residual, self.weight, self.bias, self.eps,
            is_rms_norm=self._is_rms_norm, prenorm=self.prenorm, in_fp32=self.residual_in_fp32,
        )  # fmt: skip


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """The same with RMSNorm, and without a bias."""

    _is_rms_norm = True
