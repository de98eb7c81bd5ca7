# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm on hard values: sums that overflow or underflow, zeros, infinities, NaN, eps = 0."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS
from cases import drawn_for
from reference import DTYPES, NUMPY_DTYPES

from membound.oracle import norms

WIDTHS = (1, 3, 64, 1000, 4097, 16384)

# Magnitudes that a dtype can hold and whose squares it cannot, and rows that mix them.
MAGNITUDES = {
    "float16": (1.0, 6e4, 250.0, 6e-5, 6e-8),
    "bfloat16": (1.0, 1e20, 1e-20, 3e38, 1e-25, 1e-38, 1e-40),
    "float32": (1.0, 1e20, 1e-20, 3e38, 1e-25, 1e-38, 1e-40, 1e-45),
    "float64": (1.0, 1e20, 1e-20, 1e200, 1e-200, 1.7e308, 1e-308, 5e-324),
}
EPS = (1e-6, 0.0, 1e-30, 1e-12, 4.0)


def _check(one, x, dtype, what, **options):
    weight = np.linspace(0.5, 1.5, x.shape[-1]).astype(x.dtype)
    with np.errstate(all="ignore"):
        wanted = norms.rms_norm(x, weight, dtype, **options)
    y, rstd = arrays.call(one, one.array(x), one.array(weight), return_rstd=True, **options)
    reference.assert_right(one.numpy(y), wanted, one.numpy(rstd), what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_any_magnitude_with_any_eps(name, dtype, seed):
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"{name} has no {dtype}")
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        rows = [rng.uniform(0.5, 1.0, cols) * m * rng.choice((-1, 1)) for m in MAGNITUDES[dtype]]
        x = np.array(rows).astype(NUMPY_DTYPES[dtype])
        for eps in EPS:
            _check(one, x, dtype, f"{cols} columns, eps {eps}, one magnitude a row", eps=eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_rows_that_mix_magnitudes(name, dtype, seed):
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"{name} has no {dtype}")
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        drawn = rng.choice(MAGNITUDES[dtype], (6, cols)) * rng.choice((-1, 1), (6, cols))
        drawn[0, 1:] = MAGNITUDES[dtype][-1]  # one large value among the smallest
        drawn[0, 0] = MAGNITUDES[dtype][1]
        x = drawn.astype(NUMPY_DTYPES[dtype])
        for eps in EPS:
            _check(one, x, dtype, f"{cols} columns, eps {eps}, magnitudes mixed", eps=eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_zeros_infinities_and_nan_stay_in_their_rows(name, dtype, seed):
    """IEEE results: 0 * inf is NaN, x / inf is 0; other rows are unaffected."""
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"{name} has no {dtype}")
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        x = rng.standard_normal((9, cols))
        x[1] = 0.0
        x[2] = -0.0
        x[3, rng.integers(cols)] = np.inf
        x[4, rng.integers(cols)] = -np.inf
        x[5, rng.integers(cols)] = np.nan
        x[6] = np.inf
        x[7] = 0.0
        x[7, cols // 2] = 1.0
        for eps in (1e-6, 0.0):
            _check(one, x.astype(NUMPY_DTYPES[dtype]), dtype, f"{cols}, eps {eps}", eps=eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_long_sums_stay_accurate(name, dtype):
    """A float32 sum in one long chain loses a hundred ulps over these rows; a tree does not."""
    one = arrays.framework(name)
    if dtype not in one.dtypes:
        pytest.skip(f"{name} has no {dtype}")
    cols = 65536
    ramp = np.linspace(0.1, 3.0, cols)
    x = np.stack([np.full(cols, 1.1), ramp, ramp[::-1], np.where(np.arange(cols) == 0, 200.0, 0.3)])
    _check(one, x.astype(NUMPY_DTYPES[dtype]), dtype, "long sums")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.zeros((3, 5)), np.zeros((3, 5))),
        (np.full((2, 7), 1e20), np.ones((2, 7))),
        (np.full((2, 7), -1e20), -np.ones((2, 7))),
        (np.full((2, 7), 1e-20), np.full((2, 7), 1e-17)),
        (np.full(6, 2.0), np.ones(6)),
        ([[3.0, 4.0]], np.array([[3.0, 4.0]]) / np.sqrt(12.5)),
    ],
)
def test_numpy_matrices_of_the_first_release(dtype, values, wanted):
    got = arrays.call(arrays.framework("numpy"), np.asarray(values, dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_from_1e_minus_20_to_1e20(dtype):
    x = np.logspace(-20, 20, 41, dtype=dtype)[None]
    got = arrays.call(arrays.framework("numpy"), x)
    reference.assert_right(got, norms.rms_norm(x, None, dtype), what="1e-20 to 1e20")
    assert np.isfinite(got).all()
