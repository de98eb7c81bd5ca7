# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_gated in every framework, dtype, layout, width and option, against wider arithmetic."""

from __future__ import annotations

import itertools

import arrays
import gated_norms
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, LAYOUTS, ON_GPU
from cases import LONG, ROUNDINGS, WEIGHTS, needs, rows_for
from gated_norms import ORDERS, WIDTHS, Case, call, check
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound import oracle
from membound.oracle import norms


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_some_widths(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in map(int, rng.choice(WIDTHS, 3, replace=False)):
        case = Case(one, dtype, cols, rows_for(cols), layout=layout, rng=rng)
        gated_norms.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for order, rounding, offset in itertools.product(ORDERS, ROUNDINGS, (0.0, -0.25)):
        case = Case(one, dtype, int(rng.choice((1, 33, 520, 2048))), 2, weight=weight, rng=rng)
        case.norm_before_gate, case.rounding, case.weight_offset = order, rounding, offset
        case.form = str(rng.choice(gated_norms.forms_of(case)))
        check(case)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for layout, order in itertools.product(("contiguous", "off by one"), ORDERS):
        if LAYOUTS[layout].fits(one):
            check(Case(one, dtype, cols, 2, layout=layout, norm_before_gate=order, rng=rng))


@pytest.mark.parametrize("shape", [(3000, 64), (65, 4096), (2, 70001)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    """Enough for several blocks of a GPU and several threads of a CPU."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, norm_before_gate=bool(rng.integers(2)), rng=rng))


# --- values that are hard ---


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_gates_wide_open_and_shut(name, dtype, order):
    """silu is z far above 0, and 0 far below; values that underflow may be 0."""
    one = arrays.framework(name)
    z = np.array([-1e4, -800.0, -104.0, -90.0, -30.0, -1e-3, 0.0, 1e-3, 30.0, 90.0, 800.0, 1e4])
    x, z = np.ones((1, z.size), dtype), z[None].astype(dtype)
    wanted = norms.rms_norm_gated(x, z, None, dtype, norm_before_gate=order)
    got = one.numpy(call(one, one.array(x), one.array(z), norm_before_gate=order))
    tiny = float(np.finfo(np.dtype(oracle.statistics_dtype(dtype))).smallest_normal)
    tiny = max(tiny, float(np.finfo(np.dtype(dtype)).smallest_subnormal)) * (1 if order else 1e4)
    right = wanted.out.values.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), right, rtol=2e-3, atol=tiny)
    near = np.abs(z[0].astype(np.float64)) <= 30
    if order:
        wanted.out.candidates = [one_candidate[:, near] for one_candidate in wanted.out.candidates]
        reference.assert_right(np.ascontiguousarray(got[:, near]), wanted)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_squares_that_leave_the_range(name, dtype, order, seed):
    one = arrays.framework(name)
    big = 1e30 if dtype == "float32" else 1e200
    rng = np.random.default_rng(seed)
    x, z = (rng.standard_normal((4, 260)) for _ in range(2))
    x = (x * np.array([[big], [1 / big], [1.0], [0.0]])).astype(dtype)
    z = z.astype(dtype)
    for eps in (0.0, 1e-6):
        used = x if eps else x[:3]  # 0 / 0
        wanted = norms.rms_norm_gated(
            used, z[: len(used)], None, dtype, eps=eps, norm_before_gate=order
        )
        options = {"eps": eps, "norm_before_gate": order, "return_rstd": True}
        y, rstd = call(one, one.array(used), one.array(z[: len(used)]), **options)
        reference.assert_right(one.numpy(y), wanted, one.numpy(rstd), eps)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_infinities_and_nan_stay_in_their_rows(name, dtype, order, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    x, z = (rng.standard_normal((5, 129)).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    x[1, 3], z[3, 128] = np.nan, np.nan
    got = one.numpy(call(one, one.array(x), one.array(z), norm_before_gate=order))
    clean = [0, 2, 4]
    wanted = norms.rms_norm_gated(x[clean], z[clean], None, dtype, norm_before_gate=order)
    reference.assert_right(np.ascontiguousarray(got[clean]), wanted)
    assert np.isnan(got[1].astype(np.float64)).all()
    bad = np.isnan(got[3].astype(np.float64))
    assert bad[128]
    assert bad.all() == (not order)  # a gate after the norm affects only its own element


# --- the modules that the orders are named after ---

TORCH_DEVICES = ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)]


def qwen3_next_module(torch, x, z, weight, rstd):
    """Qwen3NextRMSNormGated: the gate in float32, after the weight in the input's dtype."""
    normal = (x.float() * rstd).to(x.dtype)
    return ((weight * normal) * torch.nn.functional.silu(z.float())).to(x.dtype)


def mamba2_module(torch, x, z, weight, rstd):
    """MambaRMSNormGated: x times the gate in float32, normalised, then as in Llama."""
    gated = x.float() * torch.nn.functional.silu(z.float())
    return weight * (gated * rstd).to(x.dtype)


@pytest.mark.parametrize("order", ORDERS, ids=["qwen3_next", "mamba2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_before_weight_rounds_where_the_modules_do(name, dtype, order, seed):
    """Given the same rstd, all elements but those near a rounding boundary agree."""
    one = arrays.framework(name)
    torch, kind = one.torch, getattr(one.torch, dtype)
    module = qwen3_next_module if order else mamba2_module
    generator = torch.Generator().manual_seed(seed)
    same = count = 0
    for cols in (64, 128, 1000, 4096):
        x, z = (torch.randn(32, cols, generator=generator).to(one.device, kind) for _ in range(2))
        weight = torch.randn(cols, generator=generator).to(one.device, kind)
        options = {"norm_before_gate": order, "return_rstd": True}
        y, rstd = membound.rms_norm_gated(x, z, weight, rounding="before_weight", **options)
        wanted = module(torch, x, z, weight, rstd[:, None])
        close = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-6}[dtype]
        torch.testing.assert_close(y, wanted, rtol=close, atol=1e-7)
        same, count = same + int((y == wanted).sum()), count + y.numel()
        once = membound.rms_norm_gated(x, z, weight, **options)[0]
        if dtype != "float32":
            assert not torch.equal(once, y)
    if dtype != "float32":
        assert same >= 0.995 * count  # rounding once differs in a third of them


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_whole_modules_agree(name, order, seed):
    """With their own statistics, in bfloat16, within a rounding or two."""
    one = arrays.framework(name)
    torch = one.torch
    module = qwen3_next_module if order else mamba2_module
    generator = torch.Generator().manual_seed(seed)
    x, z = (torch.randn(8, 6, 128, generator=generator).to(one.device, torch.bfloat16)
            for _ in range(2))  # fmt: skip
    weight = torch.randn(128, generator=generator).to(one.device, torch.bfloat16)
    row = x.float() if order else x.float() * torch.nn.functional.silu(z.float())
    rstd = torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-6)
    y = membound.rms_norm_gated(x, z, weight, norm_before_gate=order, rounding="before_weight")
    wanted = module(torch, x, z, weight, rstd)
    torch.testing.assert_close(y, wanted, rtol=2**-6, atol=1e-6)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_results_are_of_the_callers_kind(name):
    one = arrays.framework(name)
    x, z = (one.array(np.ones((2, 3, 8), np.float32)) for _ in range(2))
    y, rstd = call(one, x, z, return_rstd=True)
    assert [one.numpy(a).shape for a in (y, rstd)] == [(2, 3, 8), (2, 3)]
    assert one.numpy(y).flags.c_contiguous
    assert one.numpy(call(one, x, z)).shape == (2, 3, 8)


def test_autograd_notices_that_the_output_was_overwritten():
    torch = pytest.importorskip("torch")
    x, z, out = (torch.ones(2, 8) for _ in range(3))
    version = out._version
    membound.rms_norm_gated(x, z, out=out)
    assert out._version > version
    assert x._version == z._version == 0
