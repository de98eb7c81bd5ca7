# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries' norms with their own argument order, paired with the formula."""

from __future__ import annotations

import torch
from peer_formulas import case, layer, rms, silu, values

X, R, W, B = values(6, 8), values(6, 8, seed=1), values(8, seed=2), values(8, seed=3)


def filled(module, weight=W, bias=B):
    """The module in float64, with parameters other than its initial ones."""
    module = module.double()
    for name, value in (("weight", weight), ("bias", bias)):
        if getattr(module, name, None) is not None:
            getattr(module, name).data.copy_(value)
    return module


# --- flashinfer ---


@case("flashinfer.rmsnorm")
def rmsnorm(f):
    yield f(X, W), rms(X, W)
    out = torch.empty_like(X)
    assert f(X, W, 1e-2, out) is out
    yield out, rms(X, W, 1e-2)


@case("flashinfer.gemma_rmsnorm")
def gemma_rmsnorm(f):
    out = torch.empty_like(X)
    yield f(X, W), rms(X, W, offset=1)
    f(X, W, 1e-2, out)
    yield out, rms(X, W, 1e-2, 1)


def _added_in_place(f, offset):
    for more, eps in (((), 1e-6), ((1e-2,), 1e-2)):
        x, residual = X.clone(), R.clone()
        assert f(x, residual, W, *more) is None
        yield residual, X + R
        yield x, rms(X + R, W, eps, offset)


@case("flashinfer.fused_add_rmsnorm")
def fused_add_rmsnorm(f):
    yield from _added_in_place(f, 0)


@case("flashinfer.gemma_fused_add_rmsnorm")
def gemma_fused_add_rmsnorm(f):
    yield from _added_in_place(f, 1)


@case("flashinfer.layernorm")
def layernorm(f):
    yield f(X, W, B), layer(X, W, B)
    yield f(X, W, B, 1e-2), layer(X, W, B, 1e-2)


@case("flashinfer.cake_rmsnorm")
def cake_rmsnorm(f):
    yield f(X, W), rms(X, W)
    y, total = f(X, W, 1e-2, R)
    yield y, rms(X + R, W, 1e-2)
    yield total, X + R


@case("flashinfer.cake_rmsnorm_silu_gate")
def cake_rmsnorm_silu_gate(f):
    yield f(X, R, W), rms(X, W) * silu(R)
    yield f(X, R, W, 1e-2), rms(X, W, 1e-2) * silu(R)


@case("flashinfer.cake_rmsnorm_train_forward")
def cake_rmsnorm_train_forward(f):
    y, rstd = f(X, W, 1e-2)
    yield y, rms(X, W, 1e-2)
    yield rstd, (X.square().mean(-1) + 1e-2).rsqrt()
    out, kept, total = torch.empty_like(X), torch.empty(6).double(), torch.empty_like(X)
    f(X, W, 1e-2, residual=R, out=out, rstd=kept, residual_out=total)
    yield out, rms(X + R, W, 1e-2)
    yield kept, ((X + R).square().mean(-1) + 1e-2).rsqrt()
    yield total, X + R


def gradients(formula, dy, *inputs):
    """Gradients of a formula, by autograd in float64."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(formula(*leaves), leaves, dy)


@case("flashinfer.cake_rmsnorm_train_backward")
def cake_rmsnorm_train_backward(f):
    rstd = (X.square().mean(-1) + 1e-2).rsqrt()
    dx, dw = gradients(lambda x, w: rms(x, w, 1e-2), R, X, W)
    got = f(R, X, W, rstd)
    yield got[0], dx
    yield got[1], dw
    out, dweight = torch.empty_like(X), torch.empty_like(W)
    f(R, X, W, rstd, g_residual=B.expand_as(X), dx=out, dw=dweight)
    yield out, dx + B
    yield dweight, dw


# --- vLLM ---


@case("vllm.rms_norm")
def vllm_rms_norm(f):
    for weight in (W, None):
        out = torch.empty_like(X)
        assert f(out, X, weight, 1e-2) is None
        yield out, rms(X, weight, 1e-2)


@case("vllm.fused_add_rms_norm")
def vllm_fused_add_rms_norm(f):
    for weight in (W, None):
        x, residual = X.clone(), R.clone()
        assert f(x, residual, weight, 1e-2) is None
        yield residual, X + R
        yield x, rms(X + R, weight, 1e-2)


@case("vllm.rms_norm_weightless")
def rms_norm_weightless(f):
    out = torch.empty_like(X)
    f(out, X, 1e-2)
    yield out, rms(X, None, 1e-2)


@case("vllm.fused_add_rms_norm_weightless")
def fused_add_rms_norm_weightless(f):
    x, residual = X.clone(), R.clone()
    f(x, residual, 1e-2)
    yield residual, X + R
    yield x, rms(X + R, None, 1e-2)


@case("vllm.RMSNorm")
def vllm_module(f):
    norm = filled(f(8))
    yield norm(X), rms(X, W)
    y, total = norm(X, R)
    yield y, rms(X + R, W)
    yield total, X + R
    assert f(8, 1e-2, None, False).state_dict() == {}
    yield f(8, 1e-2, None, False)(X), rms(X, None, 1e-2)
    assert f(8, dtype=torch.float16).weight.dtype == torch.float16


@case("vllm.GemmaRMSNorm")
def vllm_gemma_module(f):
    yield filled(f(8))(X), rms(X, W, offset=1)
    y, total = f(8, 1e-2).double()(X, R)
    yield y, rms(X + R, None, 1e-2)
    yield total, X + R


@case("vllm.LayerNorm")
def vllm_layer_norm(f):
    yield filled(f(8))(X), layer(X, W, B)
    yield f(8, 1e-2)(X.float()), layer(X, None, None, 1e-2)


# --- Liger-Kernel ---


@case("liger.liger_rms_norm")
def liger_rms_norm(f):
    yield f(X, W, 1e-2), rms(X, W, 1e-2)
    yield f(X, W, 1e-2, 1.0, "gemma"), rms(X, W, 1e-2, 1)
    yield f(X, W, 1e-2, casting_mode="none"), rms(X, W, 1e-2)


@case("liger.liger_fused_add_rms_norm")
def liger_fused_add_rms_norm(f):
    y, total = f(X, R, W, 1e-2, 1.0, "gemma")
    yield y, rms(X + R, W, 1e-2, 1)
    yield total, X + R


@case("liger.liger_layer_norm")
def liger_layer_norm(f):
    yield f(X, W, B, 1e-2), layer(X, W, B, 1e-2)


@case("liger.LigerRMSNorm", "liger.LigerRMSNormForOlmo2", "liger.LigerRMSNormForGlm4")
def liger_module(f):
    assert list(f(8).state_dict()) == ["weight"]
    yield f(8, 1e-2, 0.0, "llama", "ones").double()(X), rms(X, None, 1e-2)
    yield filled(f(8, 1e-2, 1.0, "gemma", "zeros"))(X), rms(X, W, 1e-2, 1)


@case(
    "liger.LigerRMSNormForGemma", "liger.LigerRMSNormForGemma2", "liger.LigerRMSNormForGemma3",
    "liger.LigerRMSNormForQwen3Next",
)  # fmt: skip
def liger_gemma_module(f):
    yield f(8).double()(X), rms(X)
    yield filled(f(8, 1e-2))(X), rms(X, W, 1e-2, 1)
    yield filled(f(8, 1e-2, 0.5, "llama", "ones"))(X), rms(X, W, 1e-2, 0.5)


@case("liger.LigerRMSNormForGemma4")
def liger_gemma4_module(f):
    yield filled(f(8))(X), rms(X, W)
    assert f(8, with_scale=False).state_dict() == {}
    yield f(8, 1e-2, with_scale=False)(X), rms(X, None, 1e-2)


@case("liger.LigerFusedAddRMSNorm")
def liger_added_module(f):
    y, total = filled(f(8, 1e-2, 1.0, "gemma", "zeros"))(X, R)
    yield y, rms(X + R, W, 1e-2, 1)
    yield total, X + R


@case("liger.LigerLayerNorm")
def liger_layer_module(f):
    assert list(f(8).state_dict()) == ["weight", "bias"]
    yield f(8, 1e-2, False, "ones").double()(X), layer(X, None, None, 1e-2)
    yield filled(f(8, bias=True, init_fn="zeros"))(X), layer(X, W, B)
