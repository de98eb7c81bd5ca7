# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of apex's, Transformer Engine's, flash-attention's, quack's and torch's norms."""

from __future__ import annotations

import torch
from peer_cases_norms import B, R, W, X, filled, gradients
from peer_formulas import case, layer, rms, unbound, values

# Several axes that are normalised as one.
BLOCKS, MATRIX = values(3, 2, 8), (values(2, 8), values(2, 8, seed=1))
ROWS = BLOCKS.flatten(1)

# --- apex ---


@case("apex.fused_layer_norm_affine")
def fused_layer_norm_affine(f):
    yield f(X, W, B, (8,)), layer(X, W, B)
    yield f(X, W, B, [8], 1e-2), layer(X, W, B, 1e-2)
    weight, bias = MATRIX
    yield (
        f(BLOCKS, weight, bias, (2, 8)),
        layer(ROWS, weight.flatten(), bias.flatten()).view(3, 2, 8),
    )


@case("apex.mixed_dtype_fused_layer_norm_affine")
def mixed_layer_norm(f):
    y = f(X.bfloat16(), W.float(), B.float(), (8,), 1e-2)
    assert y.dtype == torch.float32
    yield y, layer(X.bfloat16().double(), W, B, 1e-2)


@case("apex.fused_layer_norm")
def fused_layer_norm(f):
    yield f(X, (8,)), layer(X)
    yield f(X, 8, 1e-2), layer(X, None, None, 1e-2)


@case("apex.fused_rms_norm_affine")
def fused_rms_norm_affine(f):
    yield f(X, W, (8,)), rms(X, W)
    yield f(X, W, 8, 1e-2), rms(X, W, 1e-2)
    yield f(BLOCKS, MATRIX[0], (2, 8)), rms(ROWS, MATRIX[0].flatten()).view(3, 2, 8)


@case("apex.mixed_dtype_fused_rms_norm_affine")
def mixed_rms_norm(f):
    y = f(X.bfloat16(), W.float(), (8,), 1e-2)
    assert y.dtype == torch.float32
    yield y, rms(X.bfloat16().double(), W, 1e-2)


@case("apex.fused_rms_norm")
def fused_rms_norm(f):
    yield f(X, (8,)), rms(X)
    yield f(X, 8, 1e-2), rms(X, None, 1e-2)


@case("apex.manual_rms_norm")
def manual_rms_norm(f):
    yield f(X, (8,), W, 1e-2), rms(X, W, 1e-2)
    yield f(X, (8,), None, 1e-2), rms(X, None, 1e-2)


@case("apex.FusedLayerNorm", "apex.MixedFusedLayerNorm", "apex.FastLayerNorm")
def apex_layer_module(f):
    assert list(f(8).state_dict()) == ["weight", "bias"]
    yield filled(f(8))(X), layer(X, W, B, 1e-5)
    yield filled(f(8, 1e-2))(X), layer(X, W, B, 1e-2)


@case("apex.FusedRMSNorm", "apex.MixedFusedRMSNorm")
def apex_rms_module(f):
    assert list(f(8).state_dict()) == ["weight"]
    yield filled(f((8,)))(X), rms(X, W, 1e-5)
    yield filled(f((8,), 1e-2))(X), rms(X, W, 1e-2)


# --- Transformer Engine, flash-attention, quack ---


@case("transformer_engine.RMSNorm")
def te_rms(f):
    norm = filled(f(8))
    norm.load_state_dict({"weight": W, "_extra_state": torch.empty(0)})
    yield norm(X), rms(X, W, 1e-5)
    norm = f(8, 1e-2, params_dtype=torch.float64, zero_centered_gamma=True)
    assert norm.weight.dtype == torch.float64
    yield filled(norm)(X), rms(X, W, 1e-2, 1)
    yield f(hidden_size=8, dtype=torch.float64, sm_margin=2)(X), rms(X, None, 1e-5)


@case("transformer_engine.LayerNorm")
def te_layer(f):
    norm = filled(f(8))
    norm.load_state_dict({"weight": W, "bias": B, "_extra_state": torch.empty(0)})
    yield norm(X), layer(X, W, B, 1e-5)
    norm = filled(f(8, 1e-2, zero_centered_gamma=True))
    yield norm(X), layer(X, W, B, 1e-2, 1)


@case("flash_attention.layer_norm_fn")
def layer_norm_fn(f):
    yield f(X, W, B), layer(X, W, B)
    y, total = f(X, W, B, R, eps=1e-2, prenorm=True, zero_centered_weight=True)
    yield y, layer(X + R, W, B, 1e-2, 1)
    yield total, X + R
    yield f(X, W, None, R, is_rms_norm=True), rms(X + R, W)
    out, kept = torch.empty_like(X), torch.empty_like(X)
    f(X, W, B, R, out=out, residual_out=kept)
    yield out, layer(X + R, W, B)
    yield kept, X + R
    yield f(X, W, B, prenorm=True, residual_in_fp32=True)[1], X.float()
    low, wide = X.bfloat16(), R.float()
    y, total = f(low, W, B, wide, prenorm=True, out_dtype=torch.float32)
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)
    yield total, low.double() + wide.double()
    yield y, layer(low.double() + wide.double(), W, B)
    torch.manual_seed(0)
    got = f(X, W, B, dropout_p=0.5)
    torch.manual_seed(0)
    yield got, layer(torch.nn.functional.dropout(X, 0.5), W, B)


@case("flash_attention.rms_norm_fn")
def rms_norm_fn(f):
    given = unbound(f, bias=None)
    yield f(X, W, **given), rms(X, W)
    y, total = f(X, W, residual=R, eps=1e-2, prenorm=True, zero_centered_weight=True, **given)
    yield y, rms(X + R, W, 1e-2, 1)
    yield total, X + R


@case("flash_attention.RMSNorm")
def flash_rms_module(f):
    yield filled(f(8))(X), rms(X, W, 1e-5)
    y, total = filled(f(8, 1e-2, 0.0, True))(X, R, True)
    yield y, rms(X + R, W, 1e-2, 1)
    yield total, X + R
    yield filled(f(8, 1e-2, 0.5)).eval()(X), rms(X, W, 1e-2)


@case("flash_attention.layer_norm")
def flash_layer_norm(f):
    yield f(X, W, B, 1e-2), layer(X, W, B, 1e-2)


@case("flash_attention.rms_norm")
def flash_rms_norm(f):
    yield f(X, W, 1e-2), rms(X, W, 1e-2)


@case("flash_attention.dropout_add_layer_norm")
def dropout_add_layer_norm(f):
    yield f(X, R, W, B, 0.0, 1e-2), layer(X + R, W, B, 1e-2)
    y, total = f(X, None, W, B, 0.0, 1e-2, prenorm=True)
    yield y, layer(X, W, B, 1e-2)
    yield total, X


@case("flash_attention.dropout_add_rms_norm")
def dropout_add_rms_norm(f):
    given = unbound(f, dropout_p=0.0, epsilon=1e-2, bias=None)
    yield f(X, R, W, **given), rms(X + R, W, 1e-2)


@case("flash_attention.DropoutAddLayerNorm")
def dropout_add_layer_module(f):
    y, total = filled(f(8, True, 0.5, 1e-2)).eval()(X, R)
    yield y, layer(X + R, W, B, 1e-2)
    yield total, X + R


@case("flash_attention.DropoutAddRMSNorm")
def dropout_add_rms_module(f):
    assert list(f(8).state_dict()) == ["weight"]
    yield filled(f(8))(X, R), rms(X + R, W, 1e-5)


HEADS, BY_HEAD = X.view(2, 3, 8), R[:3]  # a weight for each of three heads


@case("quack.rmsnorm")
def quack_rmsnorm(f):
    yield f(X), rms(X)
    yield f(X, W), rms(X, W)
    yield f(HEADS, BY_HEAD), rms(HEADS, BY_HEAD)
    y, total = f(X, W, residual=R, eps=1e-2, prenorm=True, weight_offset=1.0)
    yield y, rms(X + R, W, 1e-2, 1)
    yield total, X + R
    low, wide = X.bfloat16(), R.float()
    y, total = f(low, W, residual=wide, out_dtype=torch.float32, prenorm=True)
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)
    yield y, rms(low.double() + wide.double(), W)


@case("quack.rmsnorm_fwd")
def quack_rmsnorm_fwd(f):
    y, total, rstd = f(X, W, residual=R, eps=1e-2, store_rstd=True, weight_offset=1.0)
    yield y, rms(X + R, W, 1e-2, 1)
    yield rstd, ((X + R).square().mean(-1) + 1e-2).rsqrt()
    yield f(HEADS, BY_HEAD)[0], rms(HEADS, BY_HEAD)
    y, total, rstd = f(X, W)
    assert rstd is None
    yield y, rms(X, W)
    yield total, X


@case("quack.rmsnorm_bwd")
def quack_rmsnorm_bwd(f):
    rstd = (X.square().mean(-1) + 1e-2).rsqrt()
    dx, dw = gradients(lambda x, w: rms(x, w, 1e-2, 1), R, X, W)
    got = f(X, W, R, rstd, weight_offset=1.0)
    yield got[0], dx
    yield got[1], dw
    assert got[2] is got[3] is None
    got = f(X, W, R, rstd, X, has_residual=True, weight_offset=1.0)
    yield got[3], dx + X
    yield f(X, None, R, rstd)[0], gradients(lambda x: rms(x, None, 1e-2), R, X)[0]
    expected = gradients(lambda x, w: rms(x, w, 1e-2), R.view(2, 3, 8), HEADS, BY_HEAD)
    yield from zip(f(HEADS, BY_HEAD, R.view(2, 3, 8), rstd.view(2, 3))[:2], expected, strict=True)


@case("quack.QuackRMSNorm")
def quack_module(f):
    yield filled(f(8))(X), rms(X, W)
    yield f(8, 1e-2, False)(X), rms(X, None, 1e-2)


@case("quack.layernorm_fwd")
def quack_layernorm_fwd(f):
    yield f(X, W), layer(X, W)
    y, rstd, mean = f(X, W, B, 1e-2, True, True)
    yield y, layer(X, W, B, 1e-2)
    yield rstd, (X.var(-1, correction=0) + 1e-2).rsqrt()
    yield mean, X.mean(-1)


@case("quack.layernorm_bwd")
def quack_layernorm_bwd(f):
    mean, rstd = X.mean(-1), (X.var(-1, correction=0) + 1e-2).rsqrt()
    expected = gradients(lambda x, w, b: layer(x, w, b, 1e-2), R, X, W, B)
    yield from zip(f(X, W, R, rstd, mean), expected, strict=True)
    assert f(X, W, R, rstd, mean, False)[2] is None


# --- unsloth and torch ---


@case("unsloth.fast_rms_layernorm")
def fast_rms_layernorm(f):
    norm = filled(torch.nn.RMSNorm(8, 1e-2))
    yield f(norm, X), rms(X, W, 1e-2)
    yield f(norm, X, True), rms(X, W, 1e-2, 1)


@case("unsloth.fast_layernorm")
def fast_layernorm(f):
    yield f(filled(torch.nn.LayerNorm(8, 1e-2)), X), layer(X, W, B, 1e-2)


@case("functional.rms_norm")
def torch_rms_norm(f):
    yield f(X, (8,)), rms(X, None, torch.finfo(torch.float64).eps)
    yield f(X, [8], W, 1e-2), rms(X, W, 1e-2)
    yield f(BLOCKS, (2, 8), MATRIX[0], 1e-2), rms(ROWS, MATRIX[0].flatten(), 1e-2).view(3, 2, 8)


@case("functional.layer_norm")
def torch_layer_norm(f):
    yield f(X, (8,)), layer(X, None, None, 1e-5)
    yield f(X, (8,), W, B, 1e-2), layer(X, W, B, 1e-2)
    weight, bias = (t.flatten() for t in MATRIX)
    yield f(BLOCKS, (2, 8), *MATRIX), layer(ROWS, weight, bias, 1e-5).view(3, 2, 8)
