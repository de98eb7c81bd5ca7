# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_layer_norm_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import LONG, WEIGHTS, drawn_for, needs, rows_for
from gradients import FRAMEWORKS, Case, check
from layer_norms import WIDTHS
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
        rows = rows_for(cols)
        case = Case(one, dtype, cols, rows, added=True, centred=True, layout=layout, rng=rng)
        case.weight = rng.choice(WEIGHTS)
        gradients.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_place_of_dx_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for dx in gradients.dx_forms(one, True):
        case = Case(one, dtype, int(rng.choice((1, 33, 520, 4096))), 3, added=True, centred=True)
        case.weight, case.rng = weight, rng
        gradients.vary(case)
        case.layouts, case.dx = {}, dx
        check(case)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    check(Case(one, dtype, cols, 2, added=True, centred=True, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("shape", [(129, 64), (1030, 96), (300, 1000), (2, 70001)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, added=True, centred=True, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_sums_have_the_bits_of_layer_norm_backward(name, dtype, seed):
    """The second gradient affects only dx; if it is zero, dx is the plain one too."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (33, 1000, 4096):
        dy, x, dsum = (rng.standard_normal((70, cols)).astype(NUMPY_DTYPES[dtype]) for _ in "abc")
        weight = one.array(rng.standard_normal(cols).astype(NUMPY_DTYPES[dtype]))
        rest = (weight, *map(one.array, gradients.centred_statistics_of(x, dtype)))
        dy, x = one.array(dy), one.array(x)
        dx, *sums = [one.numpy(a) for a in membound.layer_norm_backward(dy, x, *rest)]
        _, *found = membound.add_layer_norm_backward(dy, one.array(dsum), x, *rest)
        for got, right in zip(found, sums, strict=True):
            assert one.numpy(got).tobytes() == right.tobytes()
        zeros = one.array(np.zeros_like(dsum))
        found = membound.add_layer_norm_backward(dy, zeros, x, *rest)[0]
        np.testing.assert_array_equal(one.numpy(found), dx)


def test_finite_differences(seed):
    """For x and for residual, with both outputs in the loss."""
    rng = np.random.default_rng(seed)
    x, residual, dy, dtotal = (rng.standard_normal((2, 13)) for _ in range(4))
    weight, bias, step = rng.standard_normal(13), rng.standard_normal(13), 1e-6

    def loss():
        y, total = membound.add_layer_norm(x, residual, weight, bias, eps=1e-3)
        return (dy * y).sum() + (dtotal * total).sum()

    _, total, *statistics = membound.add_layer_norm(
        x, residual, weight, bias, eps=1e-3, return_stats=True
    )
    dx, *sums = membound.add_layer_norm_backward(dy, dtotal, total, weight, *statistics)
    for array, gradient in zip((x, residual, weight, bias), (dx, dx, *sums), strict=True):
        for at in np.ndindex(array.shape):
            kept, sides = array[at], []
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

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(one.device)

    x, residual, dy, dtotal = (draw(*shape) for _ in range(4))
    weight, bias = draw(shape[-1]), draw(shape[-1])
    leaves = [a.requires_grad_() for a in (x, residual, weight, bias)]
    total = x + residual
    y = torch.nn.functional.layer_norm(total, shape[-1:], weight + 1.0, bias, 1e-6)
    torch.autograd.backward([y, total], [dy, dtotal])
    with torch.no_grad():
        _, total, *statistics = membound.add_layer_norm(
            x, residual, weight, bias, weight_offset=1.0, return_stats=True
        )
        dx, *sums = membound.add_layer_norm_backward(
            dy, dtotal, total, weight, *statistics, weight_offset=1.0
        )
    for leaf, gradient in zip(leaves, (dx, dx, *sums), strict=True):
        torch.testing.assert_close(gradient, leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_step_of_training_in_place(dtype, seed):
    """The forward overwrites its inputs, the backward the forward's results: no new matrix."""
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    x, residual, dy, dtotal = (rng.standard_normal((20, 96)).astype(kind) for _ in range(4))
    weight, bias = (rng.standard_normal(96).astype(kind) for _ in range(2))
    parameters = (weight, bias)
    y, total, *statistics = membound.add_layer_norm(x, residual, *parameters, return_stats=True)
    wanted = membound.add_layer_norm_backward(dy, dtotal, total, weight, *statistics)
    _, _, *statistics = membound.add_layer_norm(
        x, residual, *parameters, out=x, residual_out=residual, return_stats=True
    )
    found = membound.add_layer_norm_backward(dy, dtotal, residual, weight, *statistics, dx=residual)
    assert found[0] is residual
    assert x.tobytes() == y.tobytes()
    for got, right in zip(found, wanted, strict=True):
        assert got.tobytes() == right.tobytes()
