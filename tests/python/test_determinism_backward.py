# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients have the same bits on every run: dweight in any number of threads, dx in any batch."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import layouts_like, needs
from reference import DTYPES, NUMPY_DTYPES

import membound

# Rows around the number of partial sums, blocks and threads; widths around vectors and blocks.
SHAPES = ((1, 4096), (2, 33), (127, 64), (129, 257), (1000, 128), (3001, 96), (300, 4097))


@pytest.fixture(params=gradients.FRAMEWORKS)
def one(request):
    return arrays.framework(request.param)


def draw(rng, rows, cols, dtype):
    """dy, x, weight and rstd in NumPy."""
    kind = NUMPY_DTYPES[dtype]
    dy, x = (rng.standard_normal((rows, cols)).astype(kind) for _ in range(2))
    return dy, x, rng.normal(1.0, 0.5, cols).astype(kind), gradients.statistics_of(x, dtype)


def bits(one, arrays_):
    return [one.numpy(a).tobytes() for a in arrays_]


@pytest.mark.parametrize("dtype", DTYPES)
def test_twenty_runs(one, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for rows, cols in SHAPES:
        dy, x, weight, rstd = map(one.array, draw(rng, rows, cols, dtype))
        first = bits(one, membound.rms_norm_backward(dy, x, weight, rstd))
        added = bits(one, membound.add_rms_norm_backward(dy, x, x, weight, rstd))
        assert added[1] == first[1]
        for _ in range(20):
            assert bits(one, membound.rms_norm_backward(dy, x, weight, rstd)) == first
            assert bits(one, membound.add_rms_norm_backward(dy, x, x, weight, rstd)) == added


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(dtype, seed):
    rng = np.random.default_rng(seed)
    data = [draw(rng, rows, cols, dtype) for rows, cols in (*SHAPES, (4096, 512), (3, 1 << 17))]
    one = arrays.framework("numpy")
    try:
        membound.set_cpu_threads(1)
        wanted = [bits(one, membound.rms_norm_backward(*inputs)) for inputs in data]
        for threads in (2, 3, 8, 0):
            membound.set_cpu_threads(threads)
            for inputs, right in zip(data, wanted, strict=True):
                got = bits(one, membound.rms_norm_backward(*inputs))
                assert got == right, (threads, inputs[0].shape)
    finally:
        membound.set_cpu_threads(0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_alignment_change_nothing(one, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 33, 257, 1000, 4096):
        rows = 6
        dy, x, weight, rstd = draw(rng, rows, cols, dtype)
        there = one.array(weight), one.array(rstd)
        wanted = bits(one, membound.rms_norm_backward(one.array(dy), one.array(x), *there))
        for name in layouts_like("contiguous", one, writable=True):
            placed = [
                arrays.place(
                    one, LAYOUTS[name], lambda _, a=a: a.astype(np.float64), dtype, rows, cols
                ).array
                for a in (dy, x)
            ]
            assert bits(one, membound.rms_norm_backward(*placed, *there)) == wanted, (cols, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_dx_does_not_see_its_batch(one, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for rows, cols in ((300, 64), (300, 1000), (150, 4097), (40, 16384)):
        dy, x, weight, rstd = draw(rng, rows, cols, dtype)
        there = one.array(weight)
        whole = one.numpy(
            membound.rms_norm_backward(one.array(dy), one.array(x), there, one.array(rstd))[0]
        )
        for first, last in ((0, 1), (rows - 1, rows), (3, 5), (7, 16), (1, 34)):
            part = [one.array(a[first:last]) for a in (dy, x)]
            part += [there, one.array(rstd[first:last])]
            for wanted in ({}, {"need_dweight": False}):
                dx = one.numpy(membound.rms_norm_backward(*part, **wanted)[0])
                assert dx.tobytes() == whole[first:last].tobytes(), (cols, first, last)


@pytest.mark.parametrize("dtype", DTYPES)
def test_writing_over_an_input_changes_nothing(one, dtype, seed):
    needs(one, dtype)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    rng = np.random.default_rng(seed)
    for rows, cols in SHAPES:
        dy, x, weight, rstd = draw(rng, rows, cols, dtype)
        there = one.array(weight), one.array(rstd)
        wanted = bits(one, membound.rms_norm_backward(one.array(dy), one.array(x), *there))
        for over in (0, 1):
            inputs = one.array(dy), one.array(x)
            got = membound.rms_norm_backward(*inputs, *there, dx=inputs[over])
            assert bits(one, got) == wanted, (rows, cols, over)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_added_norm_does_not_see_threads_batch_or_place(one, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]

    def run(first, last, **options):
        part = [one.array(a[first:last]) for a in (x, residual)]
        found = membound.add_rms_norm(*part, weight, return_rstd=True, **options)
        return bits(one, found)

    for rows, cols in ((300, 64), (300, 1000), (150, 4097)):
        x, residual = (rng.standard_normal((rows, cols)).astype(kind) for _ in range(2))
        weight = one.array(rng.standard_normal(cols).astype(kind))
        try:
            membound.set_cpu_threads(1)
            whole = run(0, rows)
            membound.set_cpu_threads(2)
            assert run(0, rows) == whole
        finally:
            membound.set_cpu_threads(0)
        sizes = [len(part) // rows for part in whole]
        for first, last in ((0, 1), (rows - 1, rows), (3, 5), (7, 16)):
            cut = [p[first * n : last * n] for p, n in zip(whole, sizes, strict=True)]
            assert run(first, last) == cut, (cols, first, last)
        if one.takes_out:
            both = one.array(x), one.array(residual)
            found = membound.add_rms_norm(
                *both, weight, out=both[0], residual_out=both[1], return_rstd=True
            )
            assert bits(one, found) == whole
