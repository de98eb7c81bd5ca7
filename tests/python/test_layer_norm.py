# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""layer_norm in every framework, dtype, layout, width and option, against wider arithmetic."""

from __future__ import annotations

import itertools

import arrays
import layer_norms
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, LAYOUTS, ON_GPU
from cases import LONG, WEIGHTS, drawn_for, needs, rows_for
from layer_norms import BIASES, FORMS, WIDTHS, Case, check
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound._ulps import ALLOWED
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
        layer_norms.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_parameter_with_every_option(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = FORMS if one.takes_out else ("returned",)
    for bias, form in itertools.product((*BIASES, "float16"), forms):
        cols, offset = int(rng.choice((1, 33, 520, 4096))), rng.choice((0.0, 1.0, -0.25))
        check(
            Case(one, dtype, cols, 2, weight=weight, bias=bias, weight_offset=offset, form=form,
                 return_stats=bool(rng.integers(2)), rng=rng)
        )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for layout in ("contiguous", "off by one", "columns, off by one"):
        if LAYOUTS[layout].fits(one):
            check(Case(one, dtype, cols, 2, layout=layout, rng=rng))


@pytest.mark.parametrize("shape", [(3000, 64), (400, 1000), (65, 4096), (2, 70001)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    """Enough for several blocks of a GPU and several threads of a CPU."""
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, rng=np.random.default_rng(seed)))


# --- values that are hard ---


def check_rows(one, x, dtype, what, rstd_allowed=ALLOWED, **options):
    weight = np.linspace(0.5, 1.5, x.shape[-1]).astype(x.dtype)
    bias = np.linspace(-1.0, 1.0, x.shape[-1]).astype(x.dtype)
    with np.errstate(all="ignore"):
        wanted = norms.layer_norm(x, weight, bias, dtype, **options)
    wanted.rstd.allowed = rstd_allowed
    inputs = map(one.array, (x, weight, bias))
    found = arrays.call_layer_norm(one, *inputs, return_stats=True, **options)
    y, *statistics = map(one.numpy, found)
    reference.assert_centred_right(y, wanted, tuple(statistics), what)
    return y


# Means in standard deviations: the most that the dtype resolves, and fewer.
FAR = {"float16": (8, 256), "bfloat16": (4, 32), "float32": (1e2, 1e5), "float64": (1e6, 1e13)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_mean_far_above_the_spread(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols, far, sign in itertools.product((3, 64, 1000, 4097, 16384), FAR[dtype], (1, -1)):
        x = (sign * far + rng.standard_normal((3, cols))).astype(NUMPY_DTYPES[dtype])
        y = check_rows(one, x, dtype, (cols, far))
        if cols >= 1000:  # digits are kept, which a difference of two large sums would lose
            assert 0.1 < np.abs(y.astype(np.float64)).max() < 20


# The variance shift may be at most 1.4 standard deviations off the mean. Then the shifted sums, and
# their rounding errors, are three times those about the mean: in a model of the float32 reduction
# tree rstd exceeds 5 ulp in 1 of 10,000 such rows, and is at most 5.3 in 80,000.
JUST_NEAR_ENOUGH = ALLOWED | {"float32": 6.0}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_first_elements_far_from_the_mean(name, dtype, seed):
    """The variance shift is the mean of a row's first elements: in range, just outside, far off."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols, mean in itertools.product((64, 1000, 4096, 16384), (0.0, 3.0)):
        x = mean + rng.standard_normal((9, cols))
        x[:, :16] += np.array([1.2, 1.4, 1.45, 2.5, 2.6, 2.7, 4.0, 30.0, 1000.0])[:, None]
        check_rows(one, x.astype(NUMPY_DTYPES[dtype]), dtype, (cols, mean), JUST_NEAR_ENOUGH)


# Magnitudes that a dtype can hold and whose squares it cannot.
MAGNITUDES = {
    "float16": (1.0, 3e4, 250.0, 6e-5),
    "bfloat16": (1.0, 1e30, 1e-30, 1e38),
    "float32": (1.0, 1e30, 1e-30, 1e38, 1e-38),
    "float64": (1.0, 1e30, 1e-30, 1e200, 1e-200, 1e307),
}


@pytest.mark.parametrize("eps", [1e-6, 0.0, 1e-30])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_magnitude(name, dtype, eps, seed):
    """One magnitude a row, and rows that mix them."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    magnitudes = MAGNITUDES[dtype]
    for cols in (1, 3, 64, 1000, 4097, 16384):
        signs = rng.choice((-1, 1), (len(magnitudes) + 3, cols))
        x = rng.uniform(0.5, 1.0, (len(magnitudes), cols)) * np.array(magnitudes)[:, None]
        mixed = rng.choice(magnitudes, (3, cols))
        x = (np.concatenate([x, mixed]) * signs).astype(NUMPY_DTYPES[dtype])
        if cols == 1 and eps == 0.0:
            continue  # constant rows give 0 * inf
        check_rows(one, x, dtype, (cols, eps), eps=eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_constant_rows(name, dtype):
    """Deviations are 0, so the result is the bias; with eps = 0 it is 0 * inf = NaN."""
    one = arrays.framework(name)
    needs(one, dtype)
    for cols in (1, 3, 64, 1000, 4097):
        x = np.repeat([[0.0], [1.0], [-3.0], [0.1], [96.0]], cols, 1).astype(NUMPY_DTYPES[dtype])
        bias = np.linspace(-1.0, 1.0, cols).astype(x.dtype)
        for eps in (1e-6, 1.0):
            check_rows(one, x, dtype, (cols, eps), eps=eps)
            y = one.numpy(arrays.call_layer_norm(one, one.array(x), None, one.array(bias), eps=eps))
            exact = [0, 1, 2, 4]  # sums that are exact in every dtype
            np.testing.assert_array_equal(y[exact], np.broadcast_to(bias, (4, cols)))
        y, mean, rstd = arrays.call_layer_norm(one, one.array(x[exact]), eps=0.0, return_stats=True)
        assert np.isnan(one.numpy(y).astype(np.float64)).all()
        assert np.isinf(one.numpy(rstd)).all()
        np.testing.assert_array_equal(one.numpy(mean), x[exact, 0].astype(one.numpy(mean).dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_infinities_and_nan_stay_in_their_rows(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (3, 64, 1000, 4097, 16384):
        x = rng.standard_normal((7, cols))
        x[1, rng.integers(cols)] = np.inf
        x[2, rng.integers(cols)] = -np.inf
        x[3, rng.integers(cols)] = np.nan
        x[5] = np.inf
        y = check_rows(one, x.astype(NUMPY_DTYPES[dtype]), dtype, cols).astype(np.float64)
        assert np.isfinite(y[[0, 4, 6]]).all()
        assert np.isnan(y[[1, 2, 3, 5]]).all()


# --- what it returns ---


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_results_are_of_the_callers_kind(name):
    one = arrays.framework(name)
    x = one.array(np.ones((2, 3, 8), np.float32))
    results = arrays.call_layer_norm(one, x, return_stats=True)
    assert [one.numpy(a).shape for a in results] == [(2, 3, 8), (2, 3), (2, 3)]
    assert one.numpy(results[0]).flags.c_contiguous
    assert not isinstance(arrays.call_layer_norm(one, x), tuple)


def test_the_default_eps_is_a_millionth():
    x = np.array([[-1e-3, 1e-3]], np.float32)
    np.testing.assert_array_equal(membound.layer_norm(x), membound.layer_norm(x, eps=1e-6))
    assert abs(float(membound.layer_norm(x)[0, 1]) - 2**-0.5) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_a_centred_row_it_is_the_rms_norm(dtype, seed):
    """For values with a mean of exactly 0 both norms have the same formula."""
    half = np.random.default_rng(seed).integers(-64, 65, (5, 500)).astype(dtype)
    x = np.concatenate([half, -half], 1)
    weight = np.linspace(0.5, 1.5, 1000).astype(dtype)
    wanted, rstd = membound.rms_norm(x, weight, return_rstd=True)
    y, mean, got = membound.layer_norm(x, weight, return_stats=True)
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_array_equal(got, rstd)
    np.testing.assert_array_equal(y, wanted)


TORCH_DEVICES = ["torch-cpu", pytest.param("torch-cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("affine", ["none", "weight", "both"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TORCH_DEVICES)
def test_torchs_own_function_agrees(name, dtype, affine, seed):
    """F.layer_norm's values, within the roundings of both; its default eps is 1e-5."""
    one = arrays.framework(name)
    torch = one.torch
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    for shape in ((64, 128), (33, 1000), (2, 4, 4096)):
        x, parameters = torch.randn(*shape, generator=generator), [None, None]
        x = x.to(one.device, kind)
        for at in range(("none", "weight", "both").index(affine)):
            parameters[at] = torch.randn(shape[-1], generator=generator).to(one.device, kind)
        wanted = torch.nn.functional.layer_norm(x, shape[-1:], *parameters)
        y = membound.layer_norm(x, *parameters, eps=1e-5)
        rtol = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-14}[dtype]
        torch.testing.assert_close(y, wanted, rtol=rtol, atol=4 * rtol)


def test_autograd_notices_that_out_was_overwritten():
    torch = pytest.importorskip("torch")
    x, out = torch.ones(2, 8), torch.ones(2, 8)
    version = out._version
    membound.layer_norm(x, out=out)
    assert out._version > version
    assert x._version == 0
