# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""flashinfer's functions by name.

``enable_pdl`` is taken and ignored: launches overlap where that helps, with the same result.
"""

from __future__ import annotations

import torch

import membound
from membound.torch._adapters import adapter, frequencies, heads_of, own_names
from membound.torch._gated_activation import gated_activation
from membound.torch._layer_norm import layer_norm
from membound.torch._rms_norm import add_rms_norm, rms_norm, rms_norm_gated
from membound.torch._rms_norm_quant import add_rms_norm_quant, rms_norm_quant
from membound.torch._rope import rope
from membound.torch._softmax import softmax as _softmax

# --- norms ---


@adapter(x="input")
def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    """RMSNorm over the last axis.

    >>> import torch
    >>> rmsnorm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 12.5).mul(10).round().tolist()
    [[6.0, 16.0]]
    """
    return rms_norm(input, weight, eps=eps, out=out)


@adapter(x="input")
def gemma_rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    """RMSNorm with ``1 + weight``."""
    return rms_norm(input, weight, eps=eps, weight_offset=1.0, out=out)


@adapter(x="input", out="input", residual_out="residual")
def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    """Write ``input + residual`` into residual and its RMSNorm into input.

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    >>> fused_add_rmsnorm(x, residual, torch.tensor([1.0, 1.0]), 12.5)
    >>> residual.tolist()
    [[3.0, 4.0]]
    """
    add_rms_norm(input, residual, weight, eps=eps, out=input, residual_out=residual)


@adapter(x="input", out="input", residual_out="residual")
def gemma_fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    """The same with ``1 + weight``."""
    options = {"eps": eps, "weight_offset": 1.0}
    add_rms_norm(input, residual, weight, out=input, residual_out=residual, **options)


def _scale(scale, like):
    """The scale as a tensor; a number is filled in on the device, without synchronising."""
    if isinstance(scale, torch.Tensor):
        return scale
    return torch.full((), scale, dtype=torch.float32, device=like.device)


@adapter(x="input")
def rmsnorm_quant(out, input, weight, scale, eps=1e-6, enable_pdl=None):
    """RMSNorm divided by scale, in the float8 dtype of out."""
    scale = _scale(scale, input)
    rms_norm_quant(input, weight, dtype=out.dtype, scale=scale, eps=eps, out=out)


@adapter(x="input", residual_out="residual")
def fused_add_rmsnorm_quant(out, input, residual, weight, scale, eps=1e-6, enable_pdl=None):
    """The same of ``input + residual``, which is written into residual."""
    scale = _scale(scale, input)
    options = {"dtype": out.dtype, "scale": scale, "eps": eps}
    add_rms_norm_quant(input, residual, weight, out=out, residual_out=residual, **options)


@adapter(x="input", residual_out="residual", scale_out="block_scale")
def fused_add_rmsnorm_fp8_block_quant(
    out, block_scale, normed_out, input, residual, weight, eps=1e-6, enable_pdl=None
):
    """RMSNorm of ``input + residual`` in float8 with a scale for 128 columns, and unquantised.

    ``block_scale`` is ``(cols / 128, rows rounded up to 4)``. Two launches: input and residual are
    read twice.
    """
    scales = block_scale[:, : input.shape[0]].T
    add_rms_norm_quant(  # residual is unchanged: the second launch reads it again
        input, residual, weight, dtype=out.dtype, group_size=128, eps=eps, out=out,
        residual_out=normed_out, scale_out=scales,
    )  # fmt: skip
    add_rms_norm(input, residual, weight, eps=eps, out=normed_out, residual_out=residual)


@adapter(x="input", weight="gemma", bias="beta")
def layernorm(input, gemma, beta, eps=1e-6):
    """LayerNorm with the weight gemma and the bias beta."""
    return layer_norm(input, gemma, beta, eps=eps)


@adapter(weight="w")
def cake_rmsnorm(x, w, eps=1e-6, residual=None, deterministic=True):
    """RMSNorm with its gradient; with a residual ``(out, x + residual)``.

    ``deterministic`` is taken and ignored: gradients always are.
    """
    if residual is None:
        return rms_norm(x, w, eps=eps)
    return add_rms_norm(x, residual, w, eps=eps)


@adapter()
def cake_rmsnorm_silu_gate(x, z, weight, eps=1e-6, *, deterministic=True):
    """RMSNorm times ``silu(z)``, with its gradient; ``deterministic`` is taken and ignored."""
    return rms_norm_gated(x, z, weight, eps=eps)


@adapter(weight="w")
def cake_rmsnorm_train_forward(
    x, w, eps, *, residual=None, out=None, rstd=None, residual_out=None, deterministic=True
):
    """``(out, rstd)``, or with a residual ``(out, rstd, x + residual)``."""
    options = {"eps": eps, "out": out, "return_rstd": True}
    if residual is None:
        y, found = membound.rms_norm(x, w, **options)
    else:
        y, total, found = membound.add_rms_norm(
            x, residual, w, residual_out=residual_out, **options
        )
    made = found if rstd is None else rstd.copy_(found)
    return (y, made) if residual is None else (y, made, total)


@adapter(dy="g", weight="w", dresidual_out="g_residual", dweight="dw", residual_out="x")
def cake_rmsnorm_train_backward(
    g, x, w, rstd, *, deterministic=True, g_residual=None, workspace=None, dx=None, dw=None
):
    """``(dx, dw)``, dw in float32. ``workspace`` is taken and ignored: it is made where needed."""
    if dw is None:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        dw = torch.empty_like(w, dtype=wide, memory_format=torch.contiguous_format)
    if g_residual is None:
        return membound.rms_norm_backward(g, x, w, rstd, dx=dx, dweight=dw)
    return membound.add_rms_norm_backward(g, g_residual, x, w, rstd, dx=dx, dweight=dw)


# --- activations and softmax ---


@adapter(gate="input")
def silu_and_mul(input, out=None, enable_pdl=None):
    """``silu(gate) * up`` of halves."""
    return gated_activation(input, out=out)


@adapter(gate="input")
def gelu_and_mul(input, out=None, enable_pdl=None):
    """``gelu(gate) * up`` of halves."""
    return gated_activation(input, kind="gelu", out=out)


@adapter(gate="input")
def gelu_tanh_and_mul(input, out=None, enable_pdl=None):
    """``gelu(gate, 'tanh') * up`` of halves."""
    return gated_activation(input, kind="gelu_tanh", out=out)


@adapter(x="logits", scale="temperature")
def softmax(logits, temperature=None, enable_pdl=None):
    """Probabilities in float32 of ``logits / temperature``, a number or one for each row.

    16-bit logits are widened first, and a tensor of temperatures divides them first: a pass more.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if isinstance(temperature, torch.Tensor):
        return _softmax(wide / temperature.to(wide.dtype).reshape(-1, 1))
    return _softmax(wide, scale=1.0 if temperature is None else 1.0 / temperature)


# --- rotary embedding ---

_ROPE = {"cu_seqlens": "indptr", "seqlen_offsets": "offsets", "position_ids": "pos_ids",
         "interleaved": "interleave", "out": "q", "k_out": "k"}  # fmt: skip


def _rotate(q, k, rotary_dim, interleave, parameters, *, in_place=False, **positions):
    dim = q.shape[-1] if rotary_dim is None else rotary_dim
    return rope(
        q, k, freqs=frequencies(q.device, dim, **parameters), layout="thd", interleaved=interleave,
        rotary_dim=dim, out=q if in_place else None, k_out=k if in_place else None, **positions,
    )  # fmt: skip


def _linear(rope_scale, rope_theta):
    return {"rope_type": "linear", "factor": rope_scale, "rope_theta": rope_theta}


def _llama31(rope_scale, rope_theta, low, high, old_context_len):
    return {
        "rope_type": "llama3", "factor": rope_scale, "rope_theta": rope_theta,
        "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": old_context_len,
    }  # fmt: skip


@adapter(**_ROPE)
def apply_rope(
    q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4
):
    """Rotate q and k, ``(tokens, heads, head_dim)``; sequence i starts at ``indptr[i]``.

    Its first token has the position ``offsets[i]``.

    >>> import torch
    >>> q, starts = torch.ones(2, 1, 4), torch.tensor([0, 2], dtype=torch.int32)
    >>> apply_rope(q, q, starts, torch.tensor([0], dtype=torch.int32))[0][0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    parameters = _linear(rope_scale, rope_theta)
    return _rotate(
        q, k, rotary_dim, interleave, parameters, cu_seqlens=indptr, seqlen_offsets=offsets
    )


@adapter(**_ROPE)
def apply_rope_inplace(
    q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4
):
    """:func:`apply_rope` over q and k."""
    at = {"cu_seqlens": indptr, "seqlen_offsets": offsets}
    parameters = _linear(rope_scale, rope_theta)
    _rotate(q, k, rotary_dim, interleave, parameters, in_place=True, **at)


@adapter(**_ROPE)
def apply_rope_pos_ids(
    q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4
):
    """Rotate q and k by the position of each token."""
    parameters = _linear(rope_scale, rope_theta)
    return _rotate(q, k, rotary_dim, interleave, parameters, position_ids=pos_ids)


@adapter(**_ROPE)
def apply_rope_pos_ids_inplace(
    q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4
):
    """:func:`apply_rope_pos_ids` over q and k."""
    parameters = _linear(rope_scale, rope_theta)
    _rotate(q, k, rotary_dim, interleave, parameters, in_place=True, position_ids=pos_ids)


@adapter(**_ROPE)
def apply_llama31_rope(
    q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5,
    low_freq_factor=1, high_freq_factor=4, old_context_len=8192,
):  # fmt: skip
    """:func:`apply_rope` with the frequencies of Llama 3.1."""
    numbers = (rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    at = {"cu_seqlens": indptr, "seqlen_offsets": offsets}
    return _rotate(q, k, rotary_dim, interleave, _llama31(*numbers), **at)


@adapter(**_ROPE)
def apply_llama31_rope_inplace(
    q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5,
    low_freq_factor=1, high_freq_factor=4, old_context_len=8192,
):  # fmt: skip
    """:func:`apply_llama31_rope` over q and k."""
    numbers = (rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    at = {"cu_seqlens": indptr, "seqlen_offsets": offsets}
    _rotate(q, k, rotary_dim, interleave, _llama31(*numbers), in_place=True, **at)


@adapter(**_ROPE)
def apply_llama31_rope_pos_ids(
    q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5,
    low_freq_factor=1, high_freq_factor=4, old_context_len=8192,
):  # fmt: skip
    """:func:`apply_rope_pos_ids` with the frequencies of Llama 3.1."""
    numbers = (rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    return _rotate(q, k, rotary_dim, interleave, _llama31(*numbers), position_ids=pos_ids)


@adapter(**_ROPE)
def apply_llama31_rope_pos_ids_inplace(
    q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=8, rope_theta=5e5,
    low_freq_factor=1, high_freq_factor=4, old_context_len=8192,
):  # fmt: skip
    """:func:`apply_llama31_rope_pos_ids` over q and k."""
    numbers = (rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    _rotate(q, k, rotary_dim, interleave, _llama31(*numbers), in_place=True, position_ids=pos_ids)


_CACHE = {"q": "query", "k": "key", "out": "query", "k_out": "key", "cos": "cos_sin_cache",
          "position_ids": "positions"}  # fmt: skip


def _by_cache(positions, query, key, head_size, cos_sin_cache, is_neox, *, in_place):
    q, k = (heads_of(t, positions, head_size) for t in (query, key))
    return rope(
        q, k, cos_sin_cache, None, position_ids=positions.flatten(), layout="thd",
        interleaved=not is_neox, rotary_dim=cos_sin_cache.shape[-1],
        out=q if in_place else None, k_out=k if in_place else None,
    )  # fmt: skip


@adapter(**_CACHE)
def apply_rope_with_cos_sin_cache(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """Rotate query and key, ``(tokens, heads * head_size)``, by a cache of cosines, then sines."""
    rotated = _by_cache(positions, query, key, head_size, cos_sin_cache, is_neox, in_place=False)
    return tuple(t.view(given.shape) for t, given in zip(rotated, (query, key), strict=True))


@adapter(**_CACHE)
def apply_rope_with_cos_sin_cache_inplace(
    positions, query, key, head_size, cos_sin_cache, is_neox=True
):
    """The same over query and key."""
    _by_cache(positions, query, key, head_size, cos_sin_cache, is_neox, in_place=True)


__all__ = list(own_names(globals()))
