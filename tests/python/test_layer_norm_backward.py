# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""layer_norm_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import itertools

import arrays
import gradients
import numpy as np
import pytest
import reference
from arrays import LAYOUTS
from cases import LONG, WEIGHTS, drawn_for, needs, rows_for
from gradients import DWEIGHT_FORMS, FRAMEWORKS, Case, check
from layer_norms import WIDTHS
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_every_width(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        case = Case(one, dtype, cols, rows_for(cols), centred=True, layout=layout, rng=rng)
        case.weight = rng.choice(WEIGHTS)
        gradients.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_form_with_every_weight(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = DWEIGHT_FORMS if one.takes_out else ("returned", "none")
    for dweight, dbias in itertools.product(forms, forms):
        cols = int(rng.choice((1, 33, 520, 4096)))
        dx = str(rng.choice(gradients.dx_forms(one, False)))
        check(
            Case(one, dtype, cols, 3, centred=True, weight=weight, dx=dx, dweight=dweight,
                 dbias=dbias, weight_offset=float(rng.choice((0.0, 1.0, -0.25))),
                 dweight_dtype=str(rng.choice(one.dtypes)), rng=rng)
        )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for layout in ("contiguous", "off by one", "columns, off by one"):
        if LAYOUTS[layout].fits(one):
            check(Case(one, dtype, cols, 2, centred=True, layout=layout, rng=rng))


@pytest.mark.parametrize(
    "shape", [(127, 64), (129, 64), (1000, 33), (3000, 64), (400, 1000), (129, 4096), (2, 70001)]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    """Sums over rows are split over several blocks, threads and partial sums."""
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, centred=True, rng=np.random.default_rng(seed)))


def draw(rng, rows, cols, dtype):
    """dy, x, weight, mean and rstd in NumPy."""
    kind = NUMPY_DTYPES[dtype]
    dy, x = (rng.standard_normal((rows, cols)).astype(kind) for _ in range(2))
    return dy, x, rng.standard_normal(cols).astype(kind), *gradients.centred_statistics_of(x, dtype)


GRADIENTS = ("dx", "dweight", "dbias")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_gradient_depends_on_which_others_are_wanted(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (64, 1000, 4097):
        inputs = [one.array(a) for a in draw(rng, 40, cols, dtype)]
        whole = [one.numpy(a).tobytes() for a in membound.layer_norm_backward(*inputs)]
        for wanted in itertools.product((True, False), repeat=3):
            needed = {f"need_{n}": flag for n, flag in zip(GRADIENTS, wanted, strict=True)}
            found = membound.layer_norm_backward(*inputs, **needed)
            for got, right, flag in zip(found, whole, wanted, strict=True):
                assert (got is not None) == flag
                assert got is None or one.numpy(got).tobytes() == right, (cols, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_without_a_weight_dbias_has_the_dtype_of_dy(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    dy, x, _, *statistics = draw(np.random.default_rng(seed), 50, 96, dtype)
    inputs = [one.array(dy), one.array(x), None, *map(one.array, statistics)]
    dx, dweight, dbias = membound.layer_norm_backward(*inputs)
    assert dweight is None
    wanted = norms.layer_norm_backward(dy, x, None, *statistics, dtype)
    reference.assert_within(one.numpy(dx), wanted[0])
    reference.assert_within(one.numpy(dbias), wanted[2])
    assert membound.layer_norm_backward(*inputs, need_dbias=False)[1:] == (None, None)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_rows_give_gradients_of_zero(name):
    one = arrays.framework(name)
    x, weight = one.array(np.empty((0, 8), np.float32)), one.array(np.ones(8, np.float32))
    none = one.array(np.empty(0, np.float32))
    dx, *sums = membound.layer_norm_backward(x, x, weight, none, none)
    assert one.numpy(dx).shape == (0, 8)
    for found in sums:
        np.testing.assert_array_equal(one.numpy(found), np.zeros(8, np.float32))
    if one.takes_out:
        for accumulate in (True, False):
            into = {n: one.array(np.ones(8, np.float32)) for n in GRADIENTS[1:]}
            membound.layer_norm_backward(x, x, weight, none, none, accumulate=accumulate, **into)
            for found in into.values():
                np.testing.assert_array_equal(one.numpy(found), np.full(8, float(accumulate)))


@pytest.mark.parametrize("name", [n for n in FRAMEWORKS if n != "jax-cpu"])
def test_accumulating_many_times(name, seed):
    """Gradient accumulation over micro-batches, in the float32 that optimisers keep."""
    one = arrays.framework(name)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    rng = np.random.default_rng(seed)
    totals = [np.zeros(96), np.zeros(96)]
    into = {name: one.array(np.zeros(96, np.float32)) for name in GRADIENTS[1:]}
    for _ in range(8):
        inputs = draw(rng, 50, 96, "float16")
        found = membound.layer_norm_backward(
            *map(one.array, inputs), accumulate=True, need_dx=False, **into
        )
        assert found[1] is into["dweight"]
        assert found[2] is into["dbias"]
        wanted = norms.layer_norm_backward(*inputs, "float16")
        for total, right in zip(totals, wanted[1:], strict=True):
            total += right.values
    for got, total in zip(into.values(), totals, strict=True):
        np.testing.assert_allclose(one.numpy(got), total, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_magnitude_and_a_mean_far_above_the_spread(name, seed):
    """With the statistics that the forward gives for x."""
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    for magnitude, far in ((1e-30, 0), (1e-20, 3), (1.0, 1e4), (1e20, 3), (1e30, 0)):
        for cols in (7, 128, 4097):
            x = (magnitude * (far + rng.standard_normal((3, cols)))).astype(np.float32)
            dy = rng.standard_normal((3, cols)).astype(np.float32)
            weight = rng.standard_normal(cols).astype(np.float32)
            found = arrays.call_layer_norm(one, one.array(x), eps=0.0, return_stats=True)
            statistics = [one.numpy(a) for a in found[1:]]
            wanted = norms.layer_norm_backward(dy, x, weight, *statistics, "float32")
            got = membound.layer_norm_backward(*map(one.array, (dy, x, weight, *statistics)))
            for gradient, right in zip(got, wanted, strict=True):
                reference.assert_within(one.numpy(gradient), right, (magnitude, far, cols))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_infinities_and_nan_stay_in_their_rows(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (5, 64, 1000):
        dy, x, weight, *statistics = draw(rng, 6, cols, dtype)
        dy[1, cols // 2], dy[3, 0], x[4, cols - 1] = np.nan, np.inf, np.nan
        wanted, *_ = norms.layer_norm_backward(dy, x, weight, *statistics, dtype)
        inputs = [one.array(a) for a in (dy, x, weight, *statistics)]
        options = {"need_dweight": False, "need_dbias": False}
        dx = one.numpy(membound.layer_norm_backward(*inputs, **options)[0])
        clean = [0, 2, 5]
        assert np.isfinite(dx[clean].astype(np.float64)).all()
        for row in (1, 3, 4):
            assert not np.isfinite(dx[row].astype(np.float64)).any(), row
        wanted.values, wanted.terms = wanted.values[clean], wanted.terms[clean]
        reference.assert_within(dx[clean], wanted)


# --- against independently computed derivatives ---


def forward(x, weight, bias, **options):
    return membound.layer_norm(x, weight, bias, eps=1e-3, return_stats=True, **options)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_finite_differences(offset, seed):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((3, 17)), rng.standard_normal((3, 17))
    weight, bias, step = rng.standard_normal(17), rng.standard_normal(17), 1e-6
    _, *statistics = forward(x, weight, bias, weight_offset=offset)
    found = membound.layer_norm_backward(dy, x, weight, *statistics, weight_offset=offset)
    for array, gradient in zip((x, weight, bias), found, strict=True):
        for at in np.ndindex(array.shape):
            kept, sides = array[at], []
            for sign in (1, -1):
                array[at] = kept + sign * step
                sides.append((dy * forward(x, weight, bias, weight_offset=offset)[0]).sum())
            array[at] = kept
            assert abs((sides[0] - sides[1]) / (2 * step) - gradient[at]) < 1e-7


TORCH_DEVICES = ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("affine", ["none", "bias", "both"])
@pytest.mark.parametrize("shape", [(1, 5), (7, 64), (2, 3, 33), (40, 1000), (3, 4097)])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_float64_against_autograd(name, shape, affine, seed):
    """The formula written out, so that autograd differentiates each step."""
    one = arrays.framework(name)
    torch = one.torch
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(one.device)

    for offset in (0.0, 1.0) if affine == "both" else (0.0,):
        x, dy = draw(*shape).requires_grad_(), draw(*shape)
        weight = draw(shape[-1]).requires_grad_() if affine == "both" else None
        bias = draw(shape[-1]).requires_grad_() if affine != "none" else None
        apart = x - x.mean(-1, keepdim=True)
        y = apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-3)
        y = y if weight is None else y * (weight + offset)
        (y if bias is None else y + bias).backward(dy)
        with torch.no_grad():
            _, *statistics = forward(x, weight, bias, weight_offset=offset)
            found = membound.layer_norm_backward(
                dy, x, weight, *statistics, weight_offset=offset, need_dbias=bias is not None
            )
        for gradient, leaf in zip(found, (x, weight, bias), strict=True):
            if leaf is None:
                assert gradient is None
            else:
                torch.testing.assert_close(gradient, leaf.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_torchs_own_backward_agrees(name, dtype, seed):
    """F.layer_norm's gradients, within the roundings of both."""
    one = arrays.framework(name)
    torch = one.torch
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    for shape in ((64, 128), (33, 1000), (8, 4096)):
        x, dy = (torch.randn(*shape, generator=generator).to(one.device, kind) for _ in range(2))
        weight, bias = (
            torch.randn(shape[1], generator=generator).to(one.device, kind) for _ in range(2)
        )
        leaves = [leaf.requires_grad_() for leaf in (x, weight, bias)]
        torch.nn.functional.layer_norm(x, shape[1:], weight, bias, 1e-6).backward(dy)
        with torch.no_grad():
            _, *statistics = membound.layer_norm(x, weight, bias, return_stats=True)
            found = membound.layer_norm_backward(dy, x, weight, *statistics)
        rtol = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
        for ours, leaf in zip(found, leaves, strict=True):
            scale = leaf.grad.float().abs().max().item()
            torch.testing.assert_close(ours, leaf.grad, rtol=rtol, atol=rtol * scale)


def test_autograd_notices_what_was_overwritten():
    torch = pytest.importorskip("torch")
    x, weight, rows = torch.ones(2, 8), torch.ones(8), torch.ones(2)
    into = {"dx": torch.ones(2, 8), "dweight": torch.ones(8), "dbias": torch.ones(8)}
    versions = {name: array._version for name, array in into.items()}
    membound.layer_norm_backward(x, x, weight, rows, rows, **into)
    for name, array in into.items():
        assert array._version > versions[name]
    assert x._version == weight._version == rows._version == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_gradients_have_the_callers_kind(dtype, seed):
    rng = np.random.default_rng(seed)
    for name in ("numpy", "torch-cpu", "jax-cpu"):
        one = arrays.framework(name)
        dy, x, _, *statistics = draw(rng, 6, 8, dtype)
        inputs = (dy, x, np.ones(8, np.float32), *statistics)
        dx, *sums = membound.layer_norm_backward(*map(one.array, inputs))
        assert (one.numpy(dx).shape, one.numpy(dx).dtype) == (x.shape, x.dtype)
        for found in sums:
            assert (one.numpy(found).shape, one.numpy(found).dtype) == ((8,), np.float32)
        assert one.numpy(dx).flags.c_contiguous
