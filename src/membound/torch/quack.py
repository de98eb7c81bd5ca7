# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""quack's functions and modules by name.

``inplace_backward`` and ``tuned`` are taken and ignored: they choose the memory of a gradient and
its kernel, not its value.
"""

from __future__ import annotations

import torch
from torch import nn

import membound
from membound.torch import _modules, flash_attention
from membound.torch._adapters import adapter, own_names, refuse
from membound.torch._losses import reduced_cross_entropy, reduced_linear_cross_entropy
from membound.torch._rms_norm import add_rms_norm
from membound.torch._rms_norm import rms_norm as _rms_norm
from membound.torch._rope_in_place import check_heads, q_and_k, rope_in_place
from membound.torch._softmax import softmax as _softmax

# --- norms ---


def _sum_in(function, x, residual, bias, residual_dtype):
    """The normalised input without a residual; with one, its dtype is that of the sum."""
    refuse(function, "bias", bias, None, "add it to the result")
    if residual is None:
        return x if residual_dtype is None else x.to(residual_dtype)
    if residual_dtype != residual.dtype:
        refuse(function, "residual_dtype", residual_dtype, None, "cast the residual first")
    return None


def _options(x, weight, weight_offset, **more):
    """A weight of two axes is one for each head."""
    shape = x.shape[-1] if weight is not None and weight.dim() == 2 else None
    return {"weight_offset": weight_offset, "normalized_shape": shape, **more}


@adapter(dtype="out_dtype")
def rmsnorm(
    x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
    prenorm=False, weight_offset=0.0,
):  # fmt: skip
    """RMSNorm of x, or of ``x + residual``; with prenorm the result and the normalised input.

    A weight of ``(heads, head_dim)`` is one for each head.

    >>> import torch
    >>> rmsnorm(torch.tensor([[3.0, 4.0]]), eps=12.5).mul(10).round().tolist()
    [[6.0, 8.0]]
    """
    total = _sum_in("rmsnorm", x, residual, bias, residual_dtype)
    options = _options(x, weight, weight_offset, eps=eps, dtype=out_dtype)
    if residual is None:
        y = _rms_norm(x, weight, **options)
    else:
        y, total = add_rms_norm(x, residual, weight, **options)
    return (y, total) if prenorm else y


@adapter(dtype="out_dtype")
def rmsnorm_fwd(
    x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
    store_rstd=False, weight_offset=0.0,
):  # fmt: skip
    """``(out, x + residual or x, rstd or None)``, without a gradient."""
    total = _sum_in("rmsnorm_fwd", x, residual, bias, residual_dtype)
    options = _options(x, weight, weight_offset, eps=eps, dtype=out_dtype, return_rstd=True)
    if residual is None:
        y, rstd = membound.rms_norm(x, weight, **options)
    else:
        y, total, rstd = membound.add_rms_norm(x, residual, weight, **options)
    return y, total, rstd if store_rstd else None


@adapter(dy="dout", residual_out="x", dresidual_out="dresidual_out")
def rmsnorm_bwd(
    x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False,
    weight_offset=0.0,
):  # fmt: skip
    """``(dx, dweight, None, dx if has_residual)``; x is the normalised input."""
    refuse("rmsnorm_bwd", "has_bias", has_bias, False, "sum dout over its rows")
    options = _options(x, weight, weight_offset, need_dweight=weight is not None)
    if dresidual_out is None:
        dx, dw = membound.rms_norm_backward(dout, x, weight, rstd, **options)
    else:
        dx, dw = membound.add_rms_norm_backward(dout, dresidual_out, x, weight, rstd, **options)
    return dx, dw, None, dx if has_residual else None


class QuackRMSNorm(_modules.RMSNorm):
    """RMSNorm with the parameter of torch.nn.RMSNorm."""

    def __init__(self, dim, eps=1e-6, elementwise_affine=True, device=None, dtype=None):
        super().__init__(dim, eps, elementwise_affine, device=device, dtype=dtype)

    @adapter()
    def forward(self, x):
        return super().forward(x)


@adapter()
def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
    """LayerNorm without a gradient, followed by rstd and mean if requested."""
    y, mean, rstd = membound.layer_norm(x, weight, bias, eps=eps, return_stats=True)
    more = [found for found, want in ((rstd, return_rstd), (mean, return_mean)) if want]
    return (y, *more) if more else y


@adapter(dy="dout")
def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
    """``(dx, dweight, dbias or None)``."""
    return membound.layer_norm_backward(dout, x, weight, mean, rstd, need_dbias=has_bias)


# --- softmax and losses ---


@adapter()
def softmax(x):
    """Softmax over the last axis."""
    return _softmax(x)


@adapter()
def softmax_fwd(x):
    """:func:`softmax` without a gradient."""
    return membound.softmax(x)


@adapter()
def softmax_bwd(dy, y):
    """The gradient of softmax from its result."""
    return membound.softmax_backward(dy, y)


@adapter(logits="x", labels="target")
def cross_entropy(
    x, target, lse_partial=None, weight=None, ignore_index=-100, reduction="mean",
    inplace_backward=False,
):  # fmt: skip
    """Cross entropy of rows of logits: losses in float32, their sum or their mean.

    ``lse_partial`` is taken and ignored: it changes no result.
    """
    options = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    return reduced_cross_entropy("cross_entropy", x, target, **options)


_TARGET_LOGIT = "the logit of the target is read from x"


@adapter(logits="x", labels="target", dlogits="x")
def cross_entropy_fwd(
    x, target, target_logit=None, weight=None, ignore_index=-100, return_lse=False,
    return_dx=False, inplace_backward=False,
):  # fmt: skip
    """The losses of rows, followed by lse and the gradient of each loss if requested."""
    refuse("cross_entropy_fwd", "target_logit", target_logit, None, _TARGET_LOGIT)
    dx = (x if inplace_backward else torch.empty_like(x)) if return_dx else None
    options = {"ignore_index": ignore_index, "dlogits": dx}
    loss, lse = membound.cross_entropy(x, target, weight, return_lse=True, **options)
    more = [found for found, want in ((lse.sum(-1), return_lse), (dx, return_dx)) if want]
    return (loss, *more) if more else loss


@adapter(logits="x", labels="target", dlogits="x")
def cross_entropy_bwd(
    x, target, dloss, lse, weight=None, ignore_index=-100, inplace_backward=False
):
    """The gradient of the losses, over x with ``inplace_backward``."""
    options = {"ignore_index": ignore_index, "dlogits": x if inplace_backward else None}
    return membound.cross_entropy_backward(dloss, x, target, lse, weight, **options)


@adapter(labels="target")
def linear_cross_entropy_func(
    x, weight, bias, target, ignore_index=-100, reduction="mean", inplace_backward=False
):
    """Cross entropy of ``x @ weight.T + bias``, without materialising all logits."""
    options = {"ignore_index": ignore_index, "reduction": reduction}
    name = "linear_cross_entropy_func"
    return reduced_linear_cross_entropy(name, x, weight, target, bias, **options)


@adapter(labels="target", chunk_rows="chunk_size")
def chunked_linear_cross_entropy(
    x, weight, target, chunk_size=4096, ignore_index=-100, reduction="mean", tuned=True,
    use_scaled_exp=None,
):  # fmt: skip
    """The same with chunks of the given number of rows; ``use_scaled_exp`` is taken and ignored."""
    options = {"ignore_index": ignore_index, "reduction": reduction, "chunk_rows": chunk_size}
    name = "chunked_linear_cross_entropy"
    return reduced_linear_cross_entropy(name, x, weight, target, None, **options)


class LinearCrossEntropy(nn.Linear):
    """A last layer with its loss; the state dict is that of torch.nn.Linear."""

    def __init__(
        self, in_features, out_features, bias=False, ignore_index=-100, reduction="mean",
        chunk_size=None, inplace_backward=False, tuned=True, use_scaled_exp=None, device=None,
        dtype=None,
    ):  # fmt: skip
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.chunk_size = chunk_size

    @adapter(x="input", labels="target", chunk_rows="chunk_size")
    def forward(self, input, target):
        chunk = {} if self.chunk_size is None else {"chunk_rows": self.chunk_size}
        return reduced_linear_cross_entropy(
            "LinearCrossEntropy", input, self.weight, target, self.bias, reduction=self.reduction,
            ignore_index=self.ignore_index, **chunk,
        )  # fmt: skip


# --- rotary embedding ---


def _offsets(seqlen_offsets):
    return 0 if seqlen_offsets is None else seqlen_offsets


@adapter(q="x", out="x")
def apply_rotary(
    x, cos, sin, seqlen_offsets=None, cu_seqlens=None, max_seqlen=None, interleaved=False,
    inplace=False, conjugate=False,
):  # fmt: skip
    """Rotate x, or with ``conjugate`` the other way; ``max_seqlen`` is taken and ignored."""
    given = _offsets(seqlen_offsets), cu_seqlens, max_seqlen, interleaved, inplace, conjugate
    return flash_attention.apply_rotary(x, cos, sin, *given)


@adapter(q="x", dq="x", out="x")
def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=None, cu_seqlens=None,
    max_seqlen=None,
):  # fmt: skip
    """Rotate x: :func:`membound.torch.flash_attention.apply_rotary_emb`."""
    given = interleaved, inplace, _offsets(seqlen_offsets), cu_seqlens
    return flash_attention.apply_rotary_emb(x, cos, sin, *given)


apply_rotary_emb_func = apply_rotary_emb


@adapter(q="qkv", k="qkv", dq="qkv", dk="qkv", out="qkv", k_out="qkv")
def apply_rotary_emb_qkv_(
    qkv, cos, sin, interleaved=False, seqlen_offsets=None, num_heads_q=None, cu_seqlens=None,
    max_seqlen=None, headdim=None,
):  # fmt: skip
    """Rotate q and k of a fused tensor in place, with its gradient, and return it.

    With cu_seqlens qkv has tokens in place of batch and seq; with headdim its heads lie in one
    last axis. ``max_seqlen`` is taken and ignored.
    """
    name = "apply_rotary_emb_qkv_"
    heads = qkv if headdim is None else qkv.view(*qkv.shape[:-1], -1, headdim)
    check_heads(name, heads, num_heads_q, 4 if cu_seqlens is None else 3)
    rope_in_place(
        heads, q_and_k(num_heads_q), {"cos": cos, "sin": sin}, interleaved=interleaved,
        rotary_dim=2 * cos.shape[-1], layout="bshd" if cu_seqlens is None else "thd",
        seqlen_offsets=seqlen_offsets, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    return qkv


@adapter(q="kv", dq="kv", out="kv")
def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=None):
    """Rotate k of ``(batch, seq, 2, heads, head_dim)`` in place, with its gradient."""
    given = interleaved, _offsets(seqlen_offsets)
    return flash_attention.apply_rotary_emb_kv_(kv, cos, sin, *given)


__all__ = list(own_names(globals()))
