# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients have the same bits on every run: dweight in any number of threads, dx in any batch."""

from __future__ import annotations

import arrays
import gradients
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import drawn_for, layouts_like, needs
from reference import DTYPES, NUMPY_DTYPES

import membound

# Rows around the number of partial sums, blocks and threads; widths around vectors and blocks.
SHAPES = ((1, 4096), (2, 33), (127, 64), (129, 257), (1000, 128), (3001, 96), (300, 4097))


@pytest.fixture(params=gradients.FRAMEWORKS)
def one(request):
    return arrays.framework(request.param)


NORMS = ("rms_norm", "layer_norm", "rms_norm_gated")


@pytest.fixture(params=NORMS)
def norm(request):
    return request.param


def backward(norm, dy, x, *rest, **options):
    """x is its own gate."""
    rows = (dy, x, x) if norm == "rms_norm_gated" else (dy, x)
    return getattr(membound, f"{norm}_backward")(*rows, *rest, **options)


def draw(norm, rng, rows, cols, dtype):
    """dy, x, weight and the statistics in NumPy."""
    kind = NUMPY_DTYPES[dtype]
    dy, x = (rng.standard_normal((rows, cols)).astype(kind) for _ in range(2))
    statistics = (gradients.statistics_of(x, dtype),)
    if norm == "layer_norm":
        statistics = gradients.centred_statistics_of(x, dtype)
    return dy, x, rng.normal(1.0, 0.5, cols).astype(kind), *statistics


def bits(one, arrays_):
    return [one.numpy(a).tobytes() for a in arrays_ if a is not None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ten_runs(one, norm, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for rows, cols in drawn_for(one, SHAPES, rng, 2):
        dy, *rest = map(one.array, draw(norm, rng, rows, cols, dtype))
        first = bits(one, backward(norm, dy, *rest))
        for _ in range(10):
            assert bits(one, backward(norm, dy, *rest)) == first
        if norm == "rms_norm_gated":  # which has no added form
            continue
        added = bits(one, backward(f"add_{norm}", dy, rest[0], *rest))
        assert added[1:] == first[1:]
        for _ in range(10):
            assert bits(one, backward(f"add_{norm}", dy, rest[0], *rest)) == added


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(norm, dtype, seed):
    rng = np.random.default_rng(seed)
    shapes = (*SHAPES, (4096, 512), (3, 1 << 17))
    data = [draw(norm, rng, rows, cols, dtype) for rows, cols in shapes]
    one = arrays.framework("numpy")
    try:
        membound.set_cpu_threads(1)
        wanted = [bits(one, backward(norm, *inputs)) for inputs in data]
        for threads in (2, 3, 8, 0):
            membound.set_cpu_threads(threads)
            for inputs, right in zip(data, wanted, strict=True):
                got = bits(one, backward(norm, *inputs))
                assert got == right, (threads, inputs[0].shape)
    finally:
        membound.set_cpu_threads(0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_alignment_change_nothing(one, norm, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 33, 257, 1000, 4096):
        rows = 6
        dy, x, *rest = draw(norm, rng, rows, cols, dtype)
        there = list(map(one.array, rest))
        wanted = bits(one, backward(norm, one.array(dy), one.array(x), *there))
        for name in layouts_like("contiguous", one, writable=True):
            placed = [
                arrays.place(
                    one, LAYOUTS[name], lambda _, a=a: a.astype(np.float64), dtype, rows, cols
                ).array
                for a in (dy, x)
            ]
            assert bits(one, backward(norm, *placed, *there)) == wanted, (cols, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_dx_does_not_depend_on_its_batch(one, norm, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    shapes = ((300, 64), (300, 1000), (150, 4097), (40, 16384))
    for rows, cols in drawn_for(one, shapes, rng, 1):
        dy, x, weight, *statistics = draw(norm, rng, rows, cols, dtype)
        there = one.array(weight)
        rest = map(one.array, statistics)
        whole = one.numpy(backward(norm, one.array(dy), one.array(x), there, *rest)[0])
        for first, last in ((0, 1), (rows - 1, rows), (3, 5), (7, 16), (1, 34)):
            part = [one.array(a[first:last]) for a in (dy, x, *statistics)]
            part.insert(2, there)
            for wanted in ({}, {"need_dweight": False}):
                dx = one.numpy(backward(norm, *part, **wanted)[0])
                assert dx.tobytes() == whole[first:last].tobytes(), (cols, first, last)


# Above 64 to 1024 rows, depending on the width, CUDA sums dweight in the kernel that writes dx;
# above 16 MiB that kernel also writes dx alone. Widths in 16-byte vectors, around those where a row
# takes one more warp, block or cluster.
VECTORS = (1, 3, 32, 33, 63, 65, 384, 511, 513, 640, 1024, 1025, 2048, 2049, 5000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("less", [0, 1], ids=["aligned", "odd"])
def test_a_row_of_dx_does_not_depend_on_the_number_of_rows(framework, norm, dtype, less, seed):
    one = arrays.framework(framework)
    rng = np.random.default_rng(seed)
    bytes_of = NUMPY_DTYPES[dtype].itemsize
    for vectors in VECTORS[: 6 if framework == "numpy" else None]:
        cols = max(1, vectors * 16 // bytes_of - less)
        rows = min(1025, (16 << 20) // (cols * bytes_of) + 1)
        some = draw(norm, rng, 40, cols, dtype)
        # The compared rows, among copies of them: random values for all rows would take seconds.
        many = [np.resize(a, (rows, *a.shape[1:])) for a in some]
        many[2] = some[2]  # the weight
        whole = one.numpy(backward(norm, *map(one.array, many))[0])
        alone = {"need_dweight": False} | ({"need_dbias": False} if norm == "layer_norm" else {})
        dx = one.numpy(backward(norm, *map(one.array, many), **alone)[0])
        assert dx.tobytes() == whole.tobytes(), (cols, rows)
        for wanted in ({}, {"need_dweight": False}, alone):
            dx = one.numpy(backward(norm, *map(one.array, some), **wanted)[0])
            assert dx.tobytes() == whole[:40].tobytes(), (cols, rows, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_writing_over_an_input_changes_nothing(one, norm, dtype, seed):
    needs(one, dtype)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    rng = np.random.default_rng(seed)
    for rows, cols in SHAPES:
        dy, x, *rest = draw(norm, rng, rows, cols, dtype)
        there = list(map(one.array, rest))
        wanted = bits(one, backward(norm, one.array(dy), one.array(x), *there))
        for over in (0, 1):
            inputs = one.array(dy), one.array(x)
            got = backward(norm, *inputs, *there, dx=inputs[over])
            assert bits(one, got) == wanted, (rows, cols, over)


@pytest.mark.parametrize("norm", NORMS[:2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_added_norm_does_not_depend_on_threads_batch_or_output(one, norm, dtype, seed):
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES[dtype]
    centred = norm == "layer_norm"
    statistics = {"return_stats" if centred else "return_rstd": True}

    def add(*inputs, **options):
        parameters = (weight, weight) if centred else (weight,)
        function = getattr(membound, f"add_{norm}")
        return function(*inputs, *parameters, **statistics, **options)

    def run(first, last, **options):
        part = [one.array(a[first:last]) for a in (x, residual)]
        return bits(one, add(*part, **options))

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
            assert bits(one, add(*both, out=both[0], residual_out=both[1])) == whole
