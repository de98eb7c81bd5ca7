# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_backward against wider arithmetic, finite differences and torch's autograd."""

from __future__ import annotations

import itertools

import arrays
import gradients
import numpy as np
import pytest
import reference
from arrays import LAYOUTS
from cases import LONG, ROUNDINGS, WEIGHTS, WIDTHS, drawn_for, needs, rows_for
from gradients import FRAMEWORKS, Case, check
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
        case = Case(one, dtype, cols, rows_for(cols), layout=layout, rng=rng)
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
    forms = itertools.product(gradients.dx_forms(one, False), gradients.dweight_forms(one))
    for (dx, dweight), rounding in itertools.product(forms, ROUNDINGS):
        cols = int(rng.choice((1, 33, 520, 4096)))
        check(
            Case(one, dtype, cols, 3, weight=weight, rounding=rounding, dx=dx, dweight=dweight,
                 weight_offset=float(rng.choice((0.0, 1.0, -0.25))),
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
            check(Case(one, dtype, cols, 2, layout=layout, rounding=rng.choice(ROUNDINGS), rng=rng))


@pytest.mark.parametrize("cols", [65536, 131073])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", arrays.ON_CPU)
def test_long_rows_on_the_cpu(name, dtype, cols, seed):
    check(Case(arrays.framework(name), dtype, cols, 2, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize(
    "shape", [(127, 64), (129, 64), (1000, 33), (3000, 64), (5000, 128), (700, 1000), (513, 4096)]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows(name, dtype, shape, seed):
    """Sums over rows are split over several blocks, threads and partial sums."""
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_one_dx_needs_no_dweight_and_the_other_way_round(name, dtype, seed):
    """The bits of a gradient do not depend on which others are wanted."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (64, 1000, 4097):
        dy, x = (rng.standard_normal((40, cols)).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
        weight = rng.standard_normal(cols).astype(NUMPY_DTYPES[dtype])
        inputs = [one.array(a) for a in (dy, x, weight, gradients.statistics_of(x, dtype))]
        dx, dweight = map(one.numpy, membound.rms_norm_backward(*inputs))
        only_dx, nothing = membound.rms_norm_backward(*inputs, need_dweight=False)
        assert nothing is None
        assert one.numpy(only_dx).tobytes() == dx.tobytes()
        nothing, only_dweight = membound.rms_norm_backward(*inputs, need_dx=False)
        assert nothing is None
        assert one.numpy(only_dweight).tobytes() == dweight.tobytes()
        assert membound.rms_norm_backward(*inputs, need_dx=False, need_dweight=False) == (
            None,
            None,
        )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_rows_give_a_gradient_of_zero(name):
    one = arrays.framework(name)
    x, weight = one.array(np.empty((0, 8), np.float32)), one.array(np.ones(8, np.float32))
    rstd = one.array(np.empty(0, np.float32))
    dx, dweight = membound.rms_norm_backward(x, x, weight, rstd)
    assert one.numpy(dx).shape == (0, 8)
    np.testing.assert_array_equal(one.numpy(dweight), np.zeros(8, np.float32))
    if one.takes_out:
        into = one.array(np.ones(8, np.float32))
        membound.rms_norm_backward(x, x, weight, rstd, dweight=into, accumulate=True)
        np.testing.assert_array_equal(one.numpy(into), np.ones(8, np.float32))
        membound.rms_norm_backward(x, x, weight, rstd, dweight=into)
        np.testing.assert_array_equal(one.numpy(into), np.zeros(8, np.float32))


@pytest.mark.parametrize("name", [n for n in FRAMEWORKS if n != "jax-cpu"])
def test_accumulating_many_times(name, seed):
    """Gradient accumulation over micro-batches, in the float32 that optimisers keep."""
    one = arrays.framework(name)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    rng = np.random.default_rng(seed)
    total = np.zeros(96)
    into = one.array(np.zeros(96, np.float32))
    weight = rng.standard_normal(96).astype(np.float16)
    for _ in range(8):
        dy, x = (rng.standard_normal((50, 96)).astype(np.float16) for _ in range(2))
        rstd = gradients.statistics_of(x, "float16")
        inputs = [one.array(a) for a in (dy, x, weight, rstd)]
        _, got = membound.rms_norm_backward(*inputs, dweight=into, accumulate=True, need_dx=False)
        assert got is into
        total += norms.rms_norm_backward(dy, x, weight, rstd, "float16")[1].values
    np.testing.assert_allclose(one.numpy(into), total, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_magnitude(name):
    """x whose squares leave float32, with the rstd that the forward gives for it."""
    one = arrays.framework(name)
    rng = np.random.default_rng(0)
    for magnitude in (1e-30, 1e-20, 1.0, 1e20, 1e30):
        for cols in (7, 128, 4097):
            x = (magnitude * rng.standard_normal((3, cols))).astype(np.float32)
            dy = rng.standard_normal((3, cols)).astype(np.float32)
            weight = rng.standard_normal(cols).astype(np.float32)
            rstd = one.numpy(arrays.call(one, one.array(x), eps=0.0, return_rstd=True)[1])
            wanted = norms.rms_norm_backward(dy, x, weight, rstd, "float32")
            got = membound.rms_norm_backward(*map(one.array, (dy, x, weight, rstd)))
            for gradient, right in zip(got, wanted, strict=True):
                reference.assert_within(one.numpy(gradient), right, (magnitude, cols))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_infinities_and_nan_stay_in_their_rows(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (5, 64, 1000):
        dy, x = (rng.standard_normal((6, cols)).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
        dy[1, cols // 2], dy[3, 0], x[4, cols - 1] = np.nan, np.inf, np.nan
        rstd = gradients.statistics_of(x, dtype)
        weight = rng.standard_normal(cols).astype(NUMPY_DTYPES[dtype])
        wanted, _ = norms.rms_norm_backward(dy, x, weight, rstd, dtype)
        inputs = [one.array(a) for a in (dy, x, weight, rstd)]
        dx = one.numpy(membound.rms_norm_backward(*inputs, need_dweight=False)[0])
        clean = [0, 2, 5]
        assert np.isfinite(dx[clean].astype(np.float64)).all()
        for row in (1, 3, 4):
            assert not np.isfinite(dx[row].astype(np.float64)).any(), row
        wanted.values, wanted.terms = wanted.values[clean], wanted.terms[clean]
        reference.assert_within(dx[clean], wanted)


# --- against independently computed derivatives ---


def forward(x, weight, **options):
    return membound.rms_norm(x, weight, eps=1e-3, return_rstd=True, **options)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_finite_differences(offset, seed):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((3, 17)), rng.standard_normal((3, 17))
    weight, step = rng.standard_normal(17), 1e-6
    _, rstd = forward(x, weight, weight_offset=offset)
    dx, dweight = membound.rms_norm_backward(dy, x, weight, rstd, weight_offset=offset)

    def slope(array, at):
        """The change of sum(dy * out) per change of one element, by central differences."""
        sides = []
        for sign in (1, -1):
            kept, array[at] = array[at], array[at] + sign * step
            sides.append((dy * forward(x, weight, weight_offset=offset)[0]).sum())
            array[at] = kept
        return (sides[0] - sides[1]) / (2 * step)

    for at in np.ndindex(x.shape):
        assert abs(slope(x, at) - dx[at]) < 1e-7
    for at in range(17):
        assert abs(slope(weight, at) - dweight[at]) < 1e-7


TORCH_DEVICES = ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)]


def torch_formula(torch, x, weight, offset):
    """The formula in steps, so that autograd differentiates each of them."""
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
    return x * rstd if weight is None else x * rstd * (weight + offset)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(1, 5), (7, 64), (2, 3, 33), (40, 1000), (3, 4097)])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_float64_against_autograd(name, shape, weighted, seed):
    one = arrays.framework(name)
    torch = one.torch
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(one.device)

    for offset in (0.0, 1.0) if weighted else (0.0,):
        x, dy = draw(*shape).requires_grad_(), draw(*shape)
        weight = draw(shape[-1]).requires_grad_() if weighted else None
        torch_formula(torch, x, weight, offset).backward(dy)
        with torch.no_grad():
            _, rstd = forward(x, weight, weight_offset=offset)
            dx, dweight = membound.rms_norm_backward(dy, x, weight, rstd, weight_offset=offset)
        torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)
        if weighted:
            torch.testing.assert_close(dweight, weight.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_torchs_own_backward_agrees(name, dtype, seed):
    """F.rms_norm's gradients, within the roundings of both."""
    one = arrays.framework(name)
    torch = one.torch
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    for shape in ((64, 128), (33, 1000), (8, 4096)):
        x, dy = (torch.randn(*shape, generator=generator).to(one.device, kind) for _ in range(2))
        weight = torch.randn(shape[1], generator=generator).to(one.device, kind)
        x.requires_grad_()
        weight.requires_grad_()
        torch.nn.functional.rms_norm(x, shape[1:], weight, 1e-6).backward(dy)
        with torch.no_grad():
            _, rstd = membound.rms_norm(x, weight, return_rstd=True)
            dx, dweight = membound.rms_norm_backward(dy, x, weight, rstd)
        rtol = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}[dtype]
        for ours, theirs in ((dx, x.grad), (dweight, weight.grad)):
            scale = theirs.float().abs().max().item()
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_before_weight_differentiates_the_rounded_product(dtype, seed):
    """dweight of Hugging Face's Llama-family modules, whose weight multiplies rounded values."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    x, dy = (torch.randn(1, 512, generator=generator).to(kind) for _ in range(2))
    weight = torch.randn(512, generator=generator).to(kind)
    _, rstd = membound.rms_norm(x, weight, rounding="before_weight", return_rstd=True)
    rounded = (x.float() * rstd[:, None]).to(kind).float()

    def dweight(rounding):
        into = torch.zeros(512)
        membound.rms_norm_backward(
            dy, x, weight, rstd, rounding=rounding, dweight=into, need_dx=False
        )
        return into

    # One row: its dweight is one product, and float32 holds products of 16 bits exactly.
    assert torch.equal(dweight("before_weight"), (dy.float() * rounded)[0])
    assert not torch.equal(dweight("once"), dweight("before_weight"))


def test_autograd_notices_what_was_overwritten():
    torch = pytest.importorskip("torch")
    x, dx, weight, dweight = torch.ones(2, 8), torch.ones(2, 8), torch.ones(8), torch.ones(8)
    versions = dx._version, dweight._version
    membound.rms_norm_backward(x, x, weight, torch.ones(2), dx=dx, dweight=dweight)
    assert dx._version > versions[0]
    assert dweight._version > versions[1]
    assert x._version == weight._version == 0


def test_parameters_and_their_gradients_under_no_grad():
    """The call of a training step: parameters in, accumulation into .grad."""
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(8))
    weight.grad = torch.zeros(8)
    x = torch.arange(16.0).reshape(2, 8)
    with torch.no_grad():
        _, rstd = membound.rms_norm(x, weight, return_rstd=True)
        for _ in range(2):
            membound.rms_norm_backward(
                torch.ones_like(x), x, weight, rstd, dweight=weight.grad, accumulate=True
            )
    wanted = 2 * (x * rstd[:, None]).sum(0)
    torch.testing.assert_close(weight.grad, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_gradients_have_the_callers_kind(dtype, seed):
    rng = np.random.default_rng(seed)
    for name in ("numpy", "torch-cpu", "jax-cpu"):
        one = arrays.framework(name)
        x = rng.standard_normal((2, 3, 8)).astype(NUMPY_DTYPES[dtype])
        weight = np.ones(8, np.float32)
        rstd = gradients.statistics_of(x, dtype)
        dx, dweight = membound.rms_norm_backward(*map(one.array, (x, x, weight, rstd)))
        assert (one.numpy(dx).shape, one.numpy(dx).dtype) == (x.shape, x.dtype)
        assert (one.numpy(dweight).shape, one.numpy(dweight).dtype) == ((8,), np.float32)
        assert one.numpy(dx).flags.c_contiguous
