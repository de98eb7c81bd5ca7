# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries' activations and quantising functions, paired with the formula."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from peer_formulas import (
    case,
    gelu,
    gelu_tanh,
    gpt_oss,
    halves,
    rms,
    silu,
    unbound,
    values,
)  # fmt: skip

GATE, UP, PACKED = values(6, 8), values(6, 8, seed=1), 4 * values(6, 16)
CONFIG = SimpleNamespace(hidden_size=8, intermediate_size=12, hidden_act="silu")
GELU_CONFIG = SimpleNamespace(hidden_size=8, intermediate_size=12, hidden_act="gelu_pytorch_tanh")


def sigmoid(x):
    return 1 / (1 + (-x).exp())


def relu(x):
    return x.clamp(min=0)


def relu2(x):
    return x.clamp(min=0).square()


def quick(x):
    return silu(x, 1.702)


def pairs(x):
    """gpt-oss's activation of interleaved gate and up."""
    return gpt_oss(x[..., ::2], x[..., 1::2])


# --- one packed tensor ---

ACTS = {
    "silu_and_mul": silu, "gelu_and_mul": gelu, "gelu_tanh_and_mul": gelu_tanh,
    "gelu_new": gelu_tanh, "gelu_fast": gelu_tanh, "gelu_quick": quick,
    "SiluAndMul": silu, "NewGELU": gelu_tanh,
    "FastGELU": gelu_tanh, "QuickGELU": quick, "ReLUSquaredActivation": relu2, "GLU": sigmoid,
    "GEGLU": gelu_tanh, "QGEGLU": quick, "SReGLU": relu2, "GELU": gelu_tanh, "QGELU": quick,
    "ReGLU": relu, "ReLU": relu,
    "SReLU": relu2, "SiLU": silu, "SwiGLU": silu,
}  # fmt: skip


def register_packed(peer, name, call):
    act = ACTS[name]
    lone = name in ("gelu_new", "gelu_fast", "gelu_quick", "NewGELU", "FastGELU", "QuickGELU",
                    "ReLUSquaredActivation", "ReLU", "GELU", "QGELU", "SReLU", "SiLU")  # fmt: skip
    x, expected = (GATE, act(GATE)) if lone else (PACKED, halves(act, PACKED))

    @case(f"{peer}.{name}")
    def calls(f):
        yield call(f, x, expected), expected


def _into(f, x, expected):
    out = torch.empty_like(expected)
    assert f(out, x) is None
    return out


for _name in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
    register_packed("flashinfer", _name, lambda f, x, _: f(x, torch.empty_like(x[..., :8])))
for _name in (
    "silu_and_mul",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gelu_new",
    "gelu_fast",
    "gelu_quick",
):
    register_packed("vllm", _name, _into)
for _name in ("SiluAndMul", "NewGELU", "FastGELU", "QuickGELU", "ReLUSquaredActivation"):
    register_packed("vllm", _name, lambda f, x, _: f()(x))
for _name in (
    "GLU",
    "GEGLU",
    "QGEGLU",
    "ReGLU",
    "SReGLU",
    "GELU",
    "QGELU",
    "ReLU",
    "SReLU",
    "SiLU",
):
    register_packed("transformer_engine", _name, lambda f, x, _: f()(x))


@case("vllm.mul_and_silu")
def mul_and_silu(f):
    out = torch.empty_like(GATE)
    f(out, PACKED)
    up, gate = PACKED.chunk(2, dim=-1)
    yield out, up * silu(gate)


@case("vllm.MulAndSilu")
def mul_and_silu_module(f):
    up, gate = PACKED.chunk(2, dim=-1)
    yield f()(PACKED), up * silu(gate)


@case("vllm.GeluAndMul")
def gelu_and_mul_module(f):
    yield f()(PACKED), halves(gelu, PACKED)
    yield f("tanh")(PACKED), halves(gelu_tanh, PACKED)


@case("vllm.swigluoai_and_mul")
def swigluoai_and_mul(f):
    out = torch.empty_like(GATE)
    f(out, PACKED)
    yield out, pairs(PACKED)
    f(out, PACKED, 1.0, 2.0)
    yield out, gpt_oss(PACKED[..., ::2], PACKED[..., 1::2], 1.0, 2.0)


@case("vllm.SwigluOAIAndMul")
def swigluoai_module(f):
    yield f()(PACKED), pairs(PACKED)
    yield f(1.0, 2.0)(PACKED), gpt_oss(PACKED[..., ::2], PACKED[..., 1::2], 1.0, 2.0)


@case("transformer_engine.SwiGLU")
def te_swiglu(f):
    yield f()(PACKED), halves(silu, PACKED)
    yield f(glu_interleave_size=1)(PACKED), silu(PACKED[..., ::2]) * PACKED[..., 1::2]


@case("transformer_engine.ClampedSwiGLU")
def te_clamped(f):
    yield f()(PACKED), gpt_oss(*PACKED.chunk(2, dim=-1))
    options = {"limit": 2.0, "alpha": 1.0, "glu_linear_offset": 0.5}
    yield f(**options)(PACKED), gpt_oss(*PACKED.chunk(2, dim=-1), 1.0, 2.0, 0.5)


@case("transformer_engine.SiTUGLU")
def te_situ(f):
    gate, up = PACKED.chunk(2, dim=-1)

    def formula(first, second):
        return first * (gate / first).tanh() * sigmoid(gate) * second * (up / second).tanh()

    yield f()(PACKED), formula(4.0, 25.0)
    yield f(beta1=2.0, beta2=3.0)(PACKED), formula(2.0, 3.0)


@case("functional.glu")
def glu(f):
    up, gate = PACKED.chunk(2, dim=-1)
    yield f(PACKED), up * sigmoid(gate)
    yield f(PACKED.mT, 0), (up * sigmoid(gate)).mT


@case("functional.silu")
def torch_silu(f):
    yield f(GATE), silu(GATE)
    x = GATE.clone()
    f(x, True)
    yield x, silu(GATE)


@case("functional.gelu")
def torch_gelu(f):
    yield f(GATE), gelu(GATE)
    yield f(GATE, approximate="tanh"), gelu_tanh(GATE)


# --- two tensors, one, and modules ---


@case("liger.liger_swiglu", "flash_attention.swiglu", "unsloth.swiglu_fg_kernel")
def swiglu(f):
    yield f(GATE, UP), silu(GATE) * UP
    yield f(GATE[None], UP[None]), (silu(GATE) * UP)[None]


@case("liger.liger_geglu", "unsloth.geglu_approx_forward_kernel")
def geglu(f):
    yield f(GATE, UP), gelu_tanh(GATE) * UP


@case("unsloth.geglu_exact_forward_kernel")
def geglu_exact(f):
    yield f(GATE, UP), gelu(GATE) * UP


@case("liger.liger_relu_squared", "flash_attention.sqrelu_fwd")
def relu_squared(f):
    yield f(GATE), relu2(GATE)


@case("liger.LigerReLUSquared")
def relu_squared_module(f):
    yield f()(GATE), relu2(GATE)


def register_backward(name, act):
    @case(f"unsloth.{name}")
    def calls(f):
        dy, e, g = values(6, 8, seed=5), GATE.clone(), UP.clone()
        leaf = GATE.clone().requires_grad_()
        (de,) = torch.autograd.grad(act(leaf) * UP, leaf, dy)
        df, buffers = dy * act(GATE), (dy.clone(), e, g)
        for got, given in zip(f(*buffers), buffers, strict=True):
            assert got is given
        yield buffers[0], act(GATE) * UP
        yield buffers[1], df
        yield buffers[2], de


register_backward("swiglu_DWf_DW_dfg_kernel", silu)
register_backward("geglu_exact_backward_kernel", gelu)
register_backward("geglu_approx_backward_kernel", gelu_tanh)


@case("liger.LigerSwiGLUMLP", "liger.LigerQwen3MoeSwiGLUMLP")
def liger_mlp(f):
    for mlp in (f(CONFIG).double(), f(CONFIG, 20).double()):
        gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        yield mlp(GATE), down(silu(gate(GATE)) * up(GATE))


@case("liger.LigerMLP", "liger.LigerTiledSwiGLUMLP")
def liger_whole_mlp(f):
    mlp = f(CONFIG).double()
    assert list(mlp.state_dict()) == [f"{one}_proj.weight" for one in ("gate", "up", "down")]
    yield mlp(GATE), mlp.down_proj(silu(mlp.gate_proj(GATE)) * mlp.up_proj(GATE))
    with pytest.raises(ValueError, match="argument 'config' must have the hidden_act 'silu' or"):
        f(GELU_CONFIG)


@case("liger.LigerGEGLUMLP", "liger.LigerTiledGEGLUMLP")
def liger_geglu_mlp(f):
    mlp = f(GELU_CONFIG).double()
    yield mlp(GATE), mlp.down_proj(gelu_tanh(mlp.gate_proj(GATE)) * mlp.up_proj(GATE))


@case("liger.LigerPhi3SwiGLUMLP")
def liger_phi3_mlp(f):
    mlp = f(CONFIG).double()
    assert list(mlp.state_dict()) == ["gate_up_proj.weight", "down_proj.weight"]
    yield mlp(GATE), mlp.down_proj(halves(silu, mlp.gate_up_proj(GATE)))


@case("liger.LigerBlockSparseTop2MLP")
def liger_mixtral_mlp(f):
    mlp = f(CONFIG).double()
    assert list(mlp.state_dict()) == ["w1.weight", "w2.weight", "w3.weight"]
    yield mlp(GATE), mlp.w2(silu(mlp.w1(GATE)) * mlp.w3(GATE))


@case("flash_attention.GatedMlp")
def gated_mlp(f):
    for act, formula in ((torch.nn.functional.sigmoid, sigmoid), (torch.nn.functional.silu, silu)):
        mlp = f(8, 12, 4, multiple_of=8, **unbound(f, activation=act)).double()
        assert mlp.fc1.weight.shape == (32, 8)
        up, gate = mlp.fc1(GATE).chunk(2, dim=-1)
        yield mlp(GATE), mlp.fc2(up * formula(gate))
    assert f(8, return_residual=True, **unbound(f, activation=act)).double()(GATE)[1] is GATE


# --- 8-bit codes of float32 rows: the formula determines them up to one rounding ---

ROWS, ADDED, WEIGHT = (values(*s, dtype=torch.float32) for s in ((6, 256), (7, 256), (256,)))
ADDED = ADDED[:6]
STEP = torch.tensor(0.05)


def dynamic(y, top, groups=1, bound=None):
    """The scale of each row, or of each group of its columns."""
    largest = y.unflatten(-1, (groups, -1)).abs().amax(-1)
    return (largest if bound is None else largest.clamp(max=bound)) / top


def near(codes, scales, y, relative):
    """Codes times scales are y, to a step of float8 or int8; returned so that a case can yield."""
    wide = scales.double().repeat_interleave(y.shape[-1] // scales.shape[-1], dim=-1)
    error = (codes.double() * wide - y).abs()
    assert (error <= relative * y.abs() + 0.51 * wide).all(), error.max()
    return torch.zeros(()), torch.zeros(())


@case("flashinfer.rmsnorm_quant")
def rmsnorm_quant(f):
    for scale in (STEP, 0.05):
        out = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn)
        f(out, ROWS, WEIGHT, scale, 1e-2)
        yield near(out, STEP.expand(6, 1), rms(ROWS.double(), WEIGHT.double(), 1e-2), 2**-4)


@case("flashinfer.fused_add_rmsnorm_quant")
def fused_add_rmsnorm_quant(f):
    out, residual = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn), ADDED.clone()
    f(out, ROWS, residual, WEIGHT, STEP, 1e-2)
    total = ROWS.double() + ADDED.double()
    yield residual, total
    yield near(out, STEP.expand(6, 1), rms(total, WEIGHT.double(), 1e-2), 2**-4)


@case("flashinfer.fused_add_rmsnorm_fp8_block_quant")
def fused_add_rmsnorm_fp8_block_quant(f):
    out, residual = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn), ADDED.clone()
    normed, scales = torch.empty_like(ROWS), torch.empty(2, 8)
    f(out, scales, normed, ROWS, residual, WEIGHT, 1e-2)
    total = ROWS.double() + ADDED.double()
    y = rms(total, WEIGHT.double(), 1e-2)
    yield residual, total
    yield normed, y
    yield scales.T[:6], dynamic(y, 448, 2)
    yield near(out, scales.T[:6], y, 2**-4)


@case("vllm.rms_norm_static_fp8_quant")
def rms_norm_static_fp8_quant(f):
    out = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn)
    f(out, ROWS, WEIGHT, STEP, 1e-2)
    yield near(out, STEP.expand(6, 1), rms(ROWS.double(), WEIGHT.double(), 1e-2), 2**-4)


@case("vllm.fused_add_rms_norm_static_fp8_quant")
def fused_add_rms_norm_static_fp8_quant(f):
    out, residual = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn), ADDED.clone()
    f(out, ROWS, residual, WEIGHT, STEP, 1e-2)
    total = ROWS.double() + ADDED.double()
    yield residual, total
    yield near(out, STEP.expand(6, 1), rms(total, WEIGHT.double(), 1e-2), 2**-4)


@case("vllm.rms_norm_dynamic_per_token_quant")
def rms_norm_dynamic_per_token_quant(f):
    y = rms(ROWS.double(), WEIGHT.double(), 1e-2)
    codes, scales = f(ROWS, WEIGHT, 1e-2, torch.int8)
    yield scales, dynamic(y, 127)
    yield near(codes, scales, y, 0)
    bound = unbound(f, scale_ub=1.0)
    yield f(ROWS, WEIGHT, 1e-2, torch.float8_e4m3fn, **bound)[1], dynamic(y, 448, bound=1.0)
    residual = ADDED.clone()
    codes, scales = f(ROWS, WEIGHT, 1e-2, torch.int8, residual=residual)
    total = ROWS.double() + ADDED.double()
    yield residual, total
    yield near(codes, scales, rms(total, WEIGHT.double(), 1e-2), 0)


@case("vllm.rms_norm_per_block_quant")
def rms_norm_per_block_quant(f):
    y = rms(ROWS.double(), WEIGHT.double(), 1e-2)
    given = ROWS, WEIGHT, 1e-2, torch.float8_e4m3fn, [1, 128]
    codes, scales = f(*given)
    assert scales.is_contiguous()
    yield scales, dynamic(y, 448, 2)
    yield near(codes, scales, y, 2**-4)
    residual = ADDED.clone()
    codes, scales = f(*given, residual=residual, is_scale_transposed=True, tma_alignment=4)
    assert scales.stride() == (1, 8)
    total = ROWS.double() + ADDED.double()
    yield residual, total
    yield near(codes, scales, rms(total, WEIGHT.double(), 1e-2), 2**-4)


@case("vllm.silu_and_mul_per_block_quant")
def silu_and_mul_per_block_quant(f):
    packed = torch.cat((ROWS, ADDED), dim=1)
    y = halves(silu, packed.double())
    codes, scales = f(packed, 128, torch.int8)
    yield scales, dynamic(y, 127, 2)
    yield near(codes, scales, y, 0)
    assert f(packed, 128, torch.int8, is_scale_transposed=True)[1].stride() == (1, 6)


@case("vllm.silu_and_mul_quant")
def silu_and_mul_quant(f):
    packed = torch.cat((ROWS, ADDED), dim=1)
    out = torch.empty_like(ROWS, dtype=torch.float8_e4m3fn)
    f(out, packed, STEP)
    yield near(out, STEP.expand(6, 1), halves(silu, packed.double()), 2**-4)
