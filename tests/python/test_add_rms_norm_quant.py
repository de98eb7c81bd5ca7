# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm_quant in every framework, dtype and option, bit by bit."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import ROUNDINGS, WEIGHTS, drawn_for, layouts_like, needs
from quant_norms import NAMES, SCALES, Case, assert_same, check
from reference import DTYPES, NUMPY_DTYPES

import membound

WIDTHS = (1, 64, 130, 1000, 4097)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_scale_at_every_width(name, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        for scale in SCALES:
            case = Case(one, dtype, cols, rng.choice(one.quantised), scale, added=True, rng=rng)
            case.layout = str(rng.choice(layouts_like("contiguous", one, writable=False)))
            if one.takes_out and rng.integers(2):
                case.out_layout = str(rng.choice(layouts_like("contiguous", one, writable=True)))
            case.weight, case.rounding = rng.choice(WEIGHTS), rng.choice(ROUNDINGS)
            case.weight_offset = rng.choice((0.0, 1.0))
            check(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_layout(name, layout, seed):
    one = arrays.framework(name)
    needs(one, "float32", layout)
    rng = np.random.default_rng(seed)
    case = Case(one, "float32", 200, "int8", 64, layout=layout, added=True, rng=rng)
    if one.takes_out and LAYOUTS[layout].writable:
        case.out_layout = layout
    check(case)


@pytest.mark.parametrize("target", ["x", "residual"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_sum_in_place_of_an_input(name, dtype, target, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    if not one.takes_out:
        pytest.skip("its arrays are not written")
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal((40, 1000)).astype(NUMPY_DTYPES[dtype]) for _ in range(2)]
    wanted = membound.add_rms_norm_quant(*map(one.array, values), dtype="int8")
    x, residual = map(one.array, values)
    into = x if target == "x" else residual
    out, total, scale = membound.add_rms_norm_quant(x, residual, dtype="int8", residual_out=into)
    assert total is into
    for got, right in zip((out, total, scale), wanted, strict=True):
        assert_same(one.numpy(got), one.numpy(right), target)


@pytest.mark.parametrize("name", NAMES)
def test_a_static_scale_leaves_out_and_sum(name):
    one = arrays.framework(name)
    x, residual = (one.array(np.ones((2, 3, 8), np.float32)) for _ in range(2))
    scale = one.array(np.array(0.5, np.float32))
    out, total = membound.add_rms_norm_quant(x, residual, dtype="int8", scale=scale)
    assert (one.numpy(out) == 2).all()
    assert (one.numpy(total) == 2).all()


def test_autograd_notices_that_both_outputs_were_overwritten():
    torch = pytest.importorskip("torch")
    x, residual = torch.ones(2, 8), torch.ones(2, 8)
    out, total = torch.ones(2, 8, dtype=torch.int8), torch.ones(2, 8)
    membound.add_rms_norm_quant(x, residual, out=out, residual_out=total)
    assert out._version == total._version == 1
    assert x._version == residual._version == 0
