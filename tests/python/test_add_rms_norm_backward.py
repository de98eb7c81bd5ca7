# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import itertools

import arrays
import gradients
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import LONG, ROUNDINGS, WEIGHTS, WIDTHS, drawn_for, needs, rows_for
from gradients import FRAMEWORKS, Case, check
from reference import DTYPES, NUMPY_DTYPES

import membound


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_every_width(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        case = Case(one, dtype, cols, rows_for(cols), added=True, layout=layout, rng=rng)
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
    forms = itertools.product(gradients.dx_forms(one, True), gradients.dweight_forms(one))
    for (dx, dweight), rounding in itertools.product(forms, ROUNDINGS):
        cols = int(rng.choice((1, 33, 520, 4096)))
        check(
            Case(one, dtype, cols, 3, added=True, weight=weight, rounding=rounding, dx=dx,
                 dweight=dweight, weight_offset=float(rng.choice((0.0, 1.0, -0.25))),
                 dweight_dtype=str(rng.choice(one.dtypes)), rng=rng)
        )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    check(Case(one, dtype, cols, 2, added=True, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("shape", [(129, 64), (3000, 64), (700, 1000), (513, 4096), (2, 131073)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows(name, dtype, shape, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, added=True, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_dweight_has_the_bits_of_rms_norm_backward(name, dtype, seed):
    """The second gradient affects only dx; if it is zero, dx is the plain one too."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (33, 1000, 4096):
        dy, x, dsum = (rng.standard_normal((70, cols)).astype(NUMPY_DTYPES[dtype]) for _ in "abc")
        weight = one.array(rng.standard_normal(cols).astype(NUMPY_DTYPES[dtype]))
        rstd = one.array(gradients.statistics_of(x, dtype))
        dy, x = one.array(dy), one.array(x)
        plain = [one.numpy(a) for a in membound.rms_norm_backward(dy, x, weight, rstd)]
        _, dweight = membound.add_rms_norm_backward(dy, one.array(dsum), x, weight, rstd)
        assert one.numpy(dweight).tobytes() == plain[1].tobytes()
        zeros = one.array(np.zeros_like(dsum))
        dx, _ = membound.add_rms_norm_backward(dy, zeros, x, weight, rstd)
        np.testing.assert_array_equal(one.numpy(dx), plain[0])


def test_finite_differences(seed):
    """For x and for residual, with both outputs in the loss."""
    rng = np.random.default_rng(seed)
    x, residual, dy, dtotal = (rng.standard_normal((2, 13)) for _ in range(4))
    weight, step = rng.standard_normal(13), 1e-6

    def loss():
        y, total = membound.add_rms_norm(x, residual, weight, eps=1e-3)
        return (dy * y).sum() + (dtotal * total).sum()

    _, total, rstd = membound.add_rms_norm(x, residual, weight, eps=1e-3, return_rstd=True)
    dx, dweight = membound.add_rms_norm_backward(dy, dtotal, total, weight, rstd)
    for array, gradient in ((x, dx), (residual, dx), (weight, dweight)):
        for at in np.ndindex(array.shape):
            kept = array[at]
            sides = []
            for sign in (1, -1):
                array[at] = kept + sign * step
                sides.append(loss())
            array[at] = kept
            assert abs((sides[0] - sides[1]) / (2 * step) - gradient[at]) < 1e-7


@pytest.mark.parametrize("shape", [(1, 5), (7, 64), (2, 3, 33), (40, 1000)])
@pytest.mark.parametrize("name", ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def test_float64_against_autograd(name, shape, seed):
    one = arrays.framework(name)
    torch = one.torch
    generator = torch.Generator().manual_seed(seed)
    x, residual, dy, dtotal = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(one.device)
        for _ in range(4)
    )
    weight = torch.randn(shape[-1], generator=generator, dtype=torch.float64).to(one.device)
    leaves = [a.requires_grad_() for a in (x, residual, weight)]
    total = x + residual
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * (weight + 1.0)
    torch.autograd.backward([y, total], [dy, dtotal])
    with torch.no_grad():
        _, total, rstd = membound.add_rms_norm(
            x, residual, weight, weight_offset=1.0, return_rstd=True
        )
        dx, dweight = membound.add_rms_norm_backward(
            dy, dtotal, total, weight, rstd, weight_offset=1.0
        )
    for leaf, gradient in zip(leaves, (dx, dx, dweight), strict=True):
        torch.testing.assert_close(gradient, leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_step_of_training_in_place(dtype, seed):
    """The forward overwrites its inputs, the backward the forward's results: no new matrix."""
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    x, residual, dy, dtotal = (rng.standard_normal((20, 96)).astype(kind) for _ in range(4))
    weight = rng.standard_normal(96).astype(kind)
    y, total, rstd = membound.add_rms_norm(x, residual, weight, return_rstd=True)
    wanted, wanted_dweight = membound.add_rms_norm_backward(dy, dtotal, total, weight, rstd)
    rstd = membound.add_rms_norm(
        x, residual, weight, out=x, residual_out=residual, return_rstd=True
    )[2]
    dx, dweight = membound.add_rms_norm_backward(dy, dtotal, residual, weight, rstd, dx=residual)
    assert dx is residual
    assert x.tobytes() == y.tobytes()
    assert dx.tobytes() == wanted.tobytes()
    assert dweight.tobytes() == wanted_dweight.tobytes()
