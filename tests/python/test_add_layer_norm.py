# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_layer_norm in every framework, dtype, layout, width and option, against wider arithmetic."""

from __future__ import annotations

import itertools

import arrays
import layer_norms
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS, LAYOUTS, ON_GPU
from cases import LONG, WEIGHTS, drawn_for, needs, rows_for
from layer_norms import ADDED_FORMS, WIDTHS, Case, check
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms


def call(one, *inputs, **options):
    return membound.add_layer_norm(*inputs, **one.options, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_every_width(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        case = Case(one, dtype, cols, rows_for(cols), added=True, layout=layout, rng=rng)
        layer_norms.vary(case)
        check(case)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_parameter_with_every_option(name, dtype, weight, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    forms = ADDED_FORMS if one.takes_out else ("returned",)
    for bias, form in itertools.product(("none", "same", "float16"), forms):
        cols, offset = int(rng.choice((1, 33, 520, 4096))), rng.choice((0.0, 1.0, -0.25))
        check(
            Case(one, dtype, cols, 2, added=True, weight=weight, bias=bias, weight_offset=offset,
                 form=form, return_stats=bool(rng.integers(2)), rng=rng)
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
            check(Case(one, dtype, cols, 2, added=True, layout=layout, rng=rng))


@pytest.mark.parametrize("shape", [(3000, 64), (400, 1000), (65, 4096), (2, 70001)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_many_rows_and_long_ones(name, dtype, shape, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rows, cols = shape
    check(Case(one, dtype, cols, rows, added=True, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_bits_are_those_of_layer_norm_of_the_sum(name, dtype, seed):
    """If the sum needs no second rounding, two steps give the bits of the fused op."""
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    for cols in (1, 7, 64, 1000, 4097, 16384):
        x, residual = (rng.standard_normal((5, cols)).astype(dtype) for _ in range(2))
        parameters = [one.array(rng.standard_normal(cols).astype(dtype)) for _ in range(2)]
        y, _, *statistics = call(
            one, one.array(x), one.array(residual), *parameters, return_stats=True
        )
        wanted = arrays.call_layer_norm(
            one, one.array(x + residual), *parameters, return_stats=True
        )
        for got, right in zip((y, *statistics), wanted, strict=True):
            assert one.numpy(got).tobytes() == one.numpy(right).tobytes(), cols


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_norm_is_of_the_sum_before_it_is_rounded(name, dtype, seed):
    """Magnitudes differ, so that rounding the sum first would change the result."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((64, 256)).astype(NUMPY_DTYPES[dtype])
    residual = (8 * rng.standard_normal((64, 256))).astype(NUMPY_DTYPES[dtype])
    y, total, mean, rstd = call(one, one.array(x), one.array(residual), return_stats=True)
    unrounded = x.astype(np.float32) + residual.astype(np.float32)
    centre, root = (one.numpy(a)[:, None] for a in (mean, rstd))
    got = one.numpy(y)
    np.testing.assert_array_equal(got, ((unrounded - centre) * root).astype(got.dtype))
    rounded = one.numpy(total).astype(np.float32)
    assert (got != ((rounded - centre) * root).astype(got.dtype)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_hard_sums(name, dtype):
    """Sums that cancel, overflow when squared, vanish when squared, are constant, infinite, NaN."""
    one = arrays.framework(name)
    big, small = (1e30, 1e-30) if dtype == "float32" else (1e200, 1e-200)
    base = np.linspace(-1.0, 1.0, 260)
    rows = [(base, 1.0 - base), (base * big, base * big), (base * small, base * small)]
    rows += [(base * 0, base * 0), (base + 1e3, -base), (base * np.inf, base), (base, base * big)]
    rows += [(base * np.nan, base)]
    with np.errstate(all="ignore"):
        x, residual = (np.array(part).astype(dtype) for part in zip(*rows, strict=True))
    wanted, total = norms.add_layer_norm(x, residual, None, None, dtype)
    y, got, *statistics = call(one, one.array(x), one.array(residual), return_stats=True)
    np.testing.assert_array_equal(one.numpy(got), total)
    reference.assert_centred_right(one.numpy(y), wanted, tuple(map(one.numpy, statistics)))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_results_are_of_the_callers_kind(name):
    one = arrays.framework(name)
    x, residual = (one.array(np.ones((2, 3, 8), np.float32)) for _ in range(2))
    found = call(one, x, residual, return_stats=True)
    assert [one.numpy(a).shape for a in found] == [(2, 3, 8), (2, 3, 8), (2, 3), (2, 3)]
    assert one.numpy(found[0]).flags.c_contiguous
    assert len(call(one, x, residual)) == 2


def test_autograd_notices_that_both_outputs_were_overwritten():
    torch = pytest.importorskip("torch")
    x, residual, out, total = (torch.ones(2, 8) for _ in range(4))
    versions = out._version, total._version
    membound.add_layer_norm(x, residual, out=out, residual_out=total)
    assert out._version > versions[0]
    assert total._version > versions[1]
    assert x._version == residual._version == 0
