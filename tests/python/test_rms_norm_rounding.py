# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Each rounding mode, bit by bit, against the module that it names, written out in torch."""

from __future__ import annotations

import pytest

import membound

torch = pytest.importorskip("torch")

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
WIDTHS = (64, 128, 256, 1024, 4096, 8192)
EPS = 1e-6


def torch_module(x, weight, rstd):
    """F.rms_norm: all in float32, rounded once."""
    return (x.float() * rstd * weight.float()).to(x.dtype)


def llama_module(x, weight, rstd):
    """LlamaRMSNorm: rounded to the input's dtype, then multiplied by the weight in that dtype."""
    return weight * (x.float() * rstd).to(x.dtype)


def gemma_module(x, weight, rstd):
    """GemmaRMSNorm: float32 times one plus the weight, rounded once."""
    return (x.float() * rstd * (1.0 + weight.float())).to(x.dtype)


MODES = {
    "torch": (torch_module, {"rounding": "once"}),
    "llama": (llama_module, {"rounding": "before_weight"}),
    "gemma": (gemma_module, {"rounding": "once", "weight_offset": 1.0}),
}


def _draw(rows, cols, dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator).to(dtype).to(device)
    return x, torch.randn(cols, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_given_the_same_rstd_every_bit_agrees(mode, dtype, device, seed):
    formula, options = MODES[mode]
    for cols in (*WIDTHS, 1, 7, 1000, 4097):
        x, weight = _draw(16, cols, dtype, device, seed)
        y, rstd = membound.rms_norm(x, weight, eps=EPS, return_rstd=True, **options)
        assert torch.equal(y, formula(x, weight, rstd[:, None])), f"{mode}, {cols} columns"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_of_a_sum_in_float32_every_bit_agrees(mode, dtype, device, seed):
    """add_rms_norm: the formulas on the sum before it is rounded."""
    _, options = MODES[mode]
    for cols in (*WIDTHS, 1, 7, 1000, 4097):
        x, weight = _draw(16, cols, dtype, device, seed)
        residual, _ = _draw(16, cols, dtype, device, seed + 1)
        y, total, rstd = membound.add_rms_norm(
            x, residual, weight, eps=EPS, return_rstd=True, **options
        )
        wide = x.float() + residual.float()
        normal = wide * rstd[:, None]
        wanted = {
            "torch": lambda n=normal, w=weight: (n * w.float()).to(n.dtype),
            "llama": lambda n=normal, w=weight: w * n.to(w.dtype),
            "gemma": lambda n=normal, w=weight: n * (1.0 + w.float()),
        }[mode]()
        assert torch.equal(y, wanted.to(dtype)), f"{mode}, {cols} columns"
        assert torch.equal(total, wide.to(dtype)), f"{mode}, {cols} columns"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_whole_modules_agree_where_the_sum_is_exact(mode, dtype, device, seed):
    """Small integers: their sum of squares is exact in float32, in any order of adding."""
    formula, options = MODES[mode]
    generator = torch.Generator().manual_seed(seed)
    for cols in WIDTHS:
        x = torch.randint(-8, 9, (64, cols), generator=generator).to(dtype).to(device)
        weight = torch.randn(cols, generator=generator).to(dtype).to(device)
        rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
        y = membound.rms_norm(x, weight, eps=EPS, **options)
        assert torch.equal(y, formula(x, weight, rstd)), f"{mode}, {cols} columns"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torchs_own_function_agrees_where_the_sum_is_exact(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    for cols in WIDTHS:
        x = torch.randint(-8, 9, (64, cols), generator=generator).to(dtype)
        weight = torch.randn(cols, generator=generator).to(dtype)
        y = membound.rms_norm(x, weight, eps=EPS)
        assert torch.equal(y, torch.nn.functional.rms_norm(x, (cols,), weight, EPS)), cols


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_the_modes_differ_in_16_bits(dtype, seed):
    """Otherwise the tests above could pass with the wrong mode."""
    x, weight = _draw(64, 1024, dtype, "cpu", seed)
    once = membound.rms_norm(x, weight)
    assert not torch.equal(once, membound.rms_norm(x, weight, rounding="before_weight"))
    assert not torch.equal(once, membound.rms_norm(x, weight, weight_offset=1.0))
