# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_gated_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import itertools

import arrays
import gated_norms
import gradients
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import LONG, ROUNDINGS, WEIGHTS, needs, rows_for
from gated_norms import ORDERS, WIDTHS
from gradients import FRAMEWORKS, Case, check
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

GRADIENTS = ("dx", "dz", "dweight")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_some_widths(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in map(int, rng.choice(WIDTHS, 3, replace=False)):
        case = Case(one, dtype, cols, rows_for(cols), gated=True, layout=layout, rng=rng)
        case.weight = rng.choice(WEIGHTS)
        gradients.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_option_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = gradients.dweight_forms(one)
    for order, rounding, dweight in itertools.product(ORDERS, ROUNDINGS, forms):
        case = Case(one, dtype, int(rng.choice((1, 33, 520, 2048))), 3, gated=True, rng=rng)
        case.weight, case.weight_offset = weight, float(rng.choice((0.0, 1.0, -0.25)))
        case.norm_before_gate, case.rounding, case.dweight = order, rounding, dweight
        case.dx, case.dz = map(str, rng.permutation(gradients.dx_forms(one, gated=True))[:2])
        case.dweight_dtype = str(rng.choice(one.dtypes))
        check(case)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for layout, order in itertools.product(("contiguous", "off by one"), ORDERS):
        if LAYOUTS[layout].fits(one):
            case = Case(one, dtype, cols, 2, gated=True, layout=layout, rng=rng)
            case.norm_before_gate = order
            check(case)


@pytest.mark.parametrize("shape", [(129, 64), (1000, 33), (300, 1000), (2, 70001)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    """Sums over rows are split over several blocks, threads and partial sums."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    rows, cols = shape
    order = bool(rng.integers(2))
    check(Case(one, dtype, cols, rows, gated=True, norm_before_gate=order, rng=rng))


def draw(rng, rows, cols, dtype, order):
    """dy, x, z, weight and rstd in NumPy."""
    kind = NUMPY_DTYPES[dtype]
    dy, x, z = (rng.standard_normal((rows, cols)).astype(kind) for _ in range(3))
    rstd = gated_norms.statistics_of(x, z, dtype, norm_before_gate=order)
    return dy, x, z, rng.standard_normal(cols).astype(kind), rstd


@pytest.mark.parametrize(("dtype", "order"), [("bfloat16", True), ("float32", False)])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_gradient_depends_on_which_others_are_wanted(name, dtype, order, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (64, 4097):
        inputs = [one.array(a) for a in draw(rng, 40, cols, dtype, order)]
        options = {"norm_before_gate": order}
        whole = membound.rms_norm_gated_backward(*inputs, **options)
        whole = [one.numpy(a).tobytes() for a in whole]
        for wanted in itertools.product((True, False), repeat=3):
            needed = {f"need_{n}": flag for n, flag in zip(GRADIENTS, wanted, strict=True)}
            found = membound.rms_norm_gated_backward(*inputs, **options, **needed)
            for got, right, flag in zip(found, whole, wanted, strict=True):
                assert (got is not None) == flag
                assert got is None or one.numpy(got).tobytes() == right, (cols, wanted)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_rows_give_a_gradient_of_zero(name):
    one = arrays.framework(name)
    x, weight = one.array(np.empty((0, 8), np.float32)), one.array(np.ones(8, np.float32))
    dx, dz, dweight = membound.rms_norm_gated_backward(
        x, x, x, weight, one.array(np.empty(0, np.float32))
    )
    assert one.numpy(dx).shape == one.numpy(dz).shape == (0, 8)
    np.testing.assert_array_equal(one.numpy(dweight), np.zeros(8, np.float32))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_gates_wide_open_and_shut(name, dtype, order):
    """silu's derivative is 1 far above 0 and 0 far below: no 0 * inf occurs in between."""
    one = arrays.framework(name)
    z = np.array([[-1e4, -800.0, -104.0, -30.0, 0.0, 30.0, 90.0, 800.0, 1e4]], dtype)
    x, dy = np.ones_like(z), np.ones_like(z)
    rstd = gated_norms.statistics_of(x, z, dtype, norm_before_gate=order)
    inputs = (dy, x, z, None, rstd)
    wanted = norms.rms_norm_gated_backward(*inputs, dtype, norm_before_gate=order)
    there = [None if a is None else one.array(a) for a in inputs]
    got = membound.rms_norm_gated_backward(*there, norm_before_gate=order)
    tiny = float(np.finfo(np.dtype(dtype)).smallest_normal) * 1e5
    for gradient, right in zip(got[:2], wanted[:2], strict=True):
        slack = right.terms.astype(np.float64) * 1e-5 + tiny
        off = np.abs(one.numpy(gradient).astype(np.float64) - right.values.astype(np.float64))
        assert (off <= slack).all(), (one.numpy(gradient), right.values)


# --- against independently computed derivatives ---


def forward(x, z, weight, **options):
    return membound.rms_norm_gated(x, z, weight, eps=1e-3, return_rstd=True, **options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_finite_differences(offset, order, seed):
    rng = np.random.default_rng(seed)
    x, z, dy = (rng.standard_normal((3, 17)) for _ in range(3))
    weight, step = rng.standard_normal(17), 1e-6
    options = {"weight_offset": offset, "norm_before_gate": order}
    _, rstd = forward(x, z, weight, **options)
    found = membound.rms_norm_gated_backward(dy, x, z, weight, rstd, **options)
    for array, gradient in zip((x, z, weight), found, strict=True):
        for at in np.ndindex(array.shape):
            kept, sides = array[at], []
            for sign in (1, -1):
                array[at] = kept + sign * step
                sides.append((dy * forward(x, z, weight, **options)[0]).sum())
            array[at] = kept
            assert abs((sides[0] - sides[1]) / (2 * step) - gradient[at]) < 1e-7


TORCH_DEVICES = ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)]


def torch_formula(torch, x, z, weight, offset, order):
    """The formula in steps, so that autograd differentiates each of them."""
    gate = z / (1 + torch.exp(-z))
    row = x if order else x * gate
    y = row * torch.rsqrt(row.square().mean(-1, keepdim=True) + 1e-3)
    y = y if weight is None else y * (weight + offset)
    return y * gate if order else y


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(1, 5), (7, 64), (2, 3, 33), (40, 1000), (3, 4097)])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_float64_against_autograd(name, shape, weighted, order, seed):
    one = arrays.framework(name)
    torch = one.torch
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(one.device)

    for offset in (0.0, 1.0) if weighted else (0.0,):
        x, z, dy = draw(*shape).requires_grad_(), draw(*shape).requires_grad_(), draw(*shape)
        weight = draw(shape[-1]).requires_grad_() if weighted else None
        torch_formula(torch, x, z, weight, offset, order).backward(dy)
        options = {"weight_offset": offset, "norm_before_gate": order}
        with torch.no_grad():
            _, rstd = forward(x, z, weight, **options)
            found = membound.rms_norm_gated_backward(dy, x, z, weight, rstd, **options)
        for gradient, leaf in zip(found, (x, z, weight), strict=True):
            if leaf is None:
                assert gradient is None
            else:
                torch.testing.assert_close(gradient, leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_before_weight_differentiates_what_was_rounded(dtype, order, seed):
    """One row, so that dweight is one product, and dz a product of the rounded values."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    x, z, dy = (torch.randn(1, 512, generator=generator).to(kind) for _ in range(3))
    weight = torch.randn(512, generator=generator).to(kind)
    options = {"norm_before_gate": order, "rounding": "before_weight"}
    _, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **options)
    gate = torch.nn.functional.silu(z.float())
    normal = ((x.float() if order else x.float() * gate) * rstd[:, None]).to(kind)
    of_norm = dy.float() * gate if order else dy.float()

    def gradients_of(rounding):
        into = torch.zeros(512)
        options["rounding"] = rounding
        _, dz, _ = membound.rms_norm_gated_backward(
            dy, x, z, weight, rstd, dweight=into, need_dx=False, **options
        )
        return into, dz

    dweight, dz = gradients_of("before_weight")
    near = torch.isclose(dweight, (of_norm * normal.float())[0], rtol=2e-6, atol=0.0)
    assert near.float().mean() > 0.99
    once = torch.isclose(gradients_of("once")[0], (of_norm * normal.float())[0], rtol=2e-6, atol=0)
    assert once.float().mean() < 0.9
    if order:
        s = torch.sigmoid(z.double())
        slope = s * (1 + z.double() * (1 - s))
        wanted = (dy.double() * (weight * normal).double() * slope).to(kind)
        assert (dz == wanted).float().mean() > 0.95
        assert not torch.equal(dz, gradients_of("once")[1])


def test_autograd_notices_what_was_overwritten():
    torch = pytest.importorskip("torch")
    x, weight, rstd = torch.ones(2, 8), torch.ones(8), torch.ones(2)
    into = {"dx": torch.ones(2, 8), "dz": torch.ones(2, 8), "dweight": torch.ones(8)}
    versions = {name: array._version for name, array in into.items()}
    membound.rms_norm_gated_backward(x, x, x, weight, rstd, **into)
    for name, array in into.items():
        assert array._version > versions[name]
    assert x._version == weight._version == rstd._version == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_gradients_have_the_callers_kind(dtype, seed):
    rng = np.random.default_rng(seed)
    for name in ("numpy", "torch-cpu", "jax-cpu"):
        one = arrays.framework(name)
        dy, x, z, _, rstd = draw(rng, 6, 8, dtype, True)
        inputs = (dy, x, z, np.ones(8, np.float32), rstd)
        dx, dz, dweight = membound.rms_norm_gated_backward(*map(one.array, inputs))
        for found in (dx, dz):
            assert (one.numpy(found).shape, one.numpy(found).dtype) == (x.shape, x.dtype)
            assert one.numpy(found).flags.c_contiguous
        assert (one.numpy(dweight).shape, one.numpy(dweight).dtype) == ((8,), np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_accumulating_in_float32(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    rng = np.random.default_rng(seed)
    total, into = np.zeros(96), one.array(np.zeros(96, np.float32))
    for order in ORDERS * 2:
        inputs = draw(rng, 50, 96, dtype, order)
        options = {"norm_before_gate": order}
        *_, got = membound.rms_norm_gated_backward(
            *map(one.array, inputs), dweight=into, accumulate=True, need_dx=False, **options
        )
        assert got is into
        wanted = norms.rms_norm_gated_backward(*inputs, dtype, **options)
        total += wanted[2].values.astype(np.float64)
    np.testing.assert_allclose(one.numpy(into), total, rtol=1e-5, atol=1e-4)
