# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A row's bits depend on its values, width and dtype, and on nothing else."""

from __future__ import annotations

import multiprocessing
import warnings
from concurrent.futures import ThreadPoolExecutor

import arrays
import gated_norms
import numpy as np
import pytest
from arrays import FRAMEWORKS, LAYOUTS
from cases import drawn_for
from reference import DTYPES, NUMPY_DTYPES

import membound

WIDTHS = (1, 33, 64, 257, 1000, 4096, 4097, 16384)


def _rows(rng, rows, cols, dtype):
    """Random rows and one weight; some rows take the overflow-safe path."""
    x = rng.standard_normal((rows, cols))
    x[:: max(1, rows // 3)] *= {"float16": 1e4, "float64": 1e200}.get(dtype, 1e30)
    kind = NUMPY_DTYPES[dtype]
    return x.astype(kind), rng.normal(1.0, 0.5, cols).astype(kind)


def _same_bits(a, b):
    assert a.dtype == b.dtype
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.fixture(params=FRAMEWORKS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture(params=["rms_norm", "layer_norm", "rms_norm_gated"])
def call(request):
    """The op by that name; layer_norm with the weight as its bias, too, and x as its own gate."""
    if request.param == "rms_norm":
        return arrays.call
    if request.param == "rms_norm_gated":
        return lambda one, x, weight, **options: gated_norms.call(
            one, x, x, weight, norm_before_gate=False, **options
        )
    return lambda one, x, weight, **options: arrays.call_layer_norm(
        one, x, weight, weight, **options
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_batch(one, call, dtype, seed):
    if dtype not in one.dtypes:
        pytest.skip(f"no {dtype} in it")
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        rows = 300 if cols <= 4097 else 40
        x, weight = _rows(rng, rows, cols, dtype)
        there = one.array(weight)
        whole = np.array(one.numpy(call(one, one.array(x), there)))
        for first, last in ((0, 1), (rows - 1, rows), (3, 5), (7, 16), (1, 34), (5, 38)):
            part = one.numpy(call(one, one.array(x[first:last]), there))
            assert _same_bits(np.ascontiguousarray(part), whole[first:last]), (cols, first, last)


# 16-byte vectors per row, the number of rows, and the rows of a call with few. First two to four
# items per thread, computed by one warp if rows are many; then four vectors per thread, held in
# registers if rows are few.
MANY_AND_FEW = [
    *((vectors, 8195, 500) for vectors in (65, 80, 96, 97, 125, 128, 129, 144, 192, 193, 200, 256)),
    *((vectors, 603, 120) for vectors in (1025, 1152, 1376, 2048)),
]
OPTIONS_OF_OPS = {
    "rms_norm": {"return_rstd": True},
    "add_rms_norm": {"return_rstd": True},
    "layer_norm": {"return_stats": True},
    "add_layer_norm": {"return_stats": True},
    "rms_norm_gated": {"return_rstd": True},
    "rms_norm_quant": {"dtype": "int8"},
    "rms_norm_quant in groups": {"dtype": "int8", "group_size": 128},
}


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", OPTIONS_OF_OPS)
def test_many_rows_have_the_bits_of_few(op, dtype, offset, seed):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    generator = torch.Generator("cuda").manual_seed(seed)
    norm = getattr(membound, op.split()[0])

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)

    for vectors, rows, step in MANY_AND_FEW:
        cols = vectors * 16 // kind.itemsize
        if "groups" in op and cols % 128:
            continue
        x = normal(rows, cols)
        x[::97] *= 1e4 if dtype == "float16" else 1e30  # sums out of range
        x[5], x[6, 1], x[7, 2] = 0.0, float("nan"), float("inf")
        arrays_of_rows = [x.to(kind)]
        if op.startswith("add") or op.endswith("gated"):
            arrays_of_rows.append(normal(rows, cols).to(kind))
        columns = [normal(cols).to(kind) for _ in range(1 + op.endswith("layer_norm"))]

        def call(first, last, arrays_of_rows=arrays_of_rows, columns=columns):
            parts = [array[first:last] for array in arrays_of_rows]
            return norm(*parts, *columns, weight_offset=offset, **OPTIONS_OF_OPS[op])

        whole = call(0, rows)
        few = [call(first, min(rows, first + step)) for first in range(0, rows, step)]
        for at, results in enumerate(whole):
            apart = torch.cat([results_of_few[at] for results_of_few in few])
            assert torch.equal(results.view(torch.uint8), apart.view(torch.uint8)), (cols, at)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_strides_or_alignment(one, call, dtype, seed):
    if dtype not in one.dtypes:
        pytest.skip(f"no {dtype} in it")
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        x, weight = _rows(rng, 6, cols, dtype)
        weight = one.array(weight)
        wanted = np.array(one.numpy(call(one, one.array(x), weight)))
        for name, layout in LAYOUTS.items():
            at = arrays.Spot(6, cols)
            shape = layout.buffer_shape(at)
            if not (layout.writable and layout.fits(one)) or name.startswith(("1-D", "one row")):
                continue
            if (
                np.prod(shape) < x.size
                or layout.matrix(arrays.Spot(6, cols, np.empty(shape, x.dtype))).size != x.size
            ):
                continue
            fill = lambda view, x=x: x.astype(np.float64).reshape(view)  # noqa: E731
            placed = arrays.place(one, layout, fill, dtype, 6, cols)
            got = one.numpy(call(one, placed.array, weight))
            got = np.ascontiguousarray(got).reshape(x.shape)
            assert _same_bits(got, wanted), (cols, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_of_every_element_in_a_vector(one, call, dtype, seed):
    if dtype not in one.dtypes or not one.strided:
        pytest.skip(f"no {dtype} or no views in it")
    rng = np.random.default_rng(seed)
    for cols in (64, 257, 1024, 4096):
        x, weight = _rows(rng, 2, cols, dtype)
        wanted = np.array(one.numpy(call(one, one.array(x), one.array(weight))))
        for offset in range(17):
            buffer = np.full(2 * cols + 16, np.nan, x.dtype)
            buffer[offset : offset + 2 * cols] = x.ravel()
            shifted = one.array(buffer)[offset : offset + 2 * cols].reshape((2, cols))
            weights = np.full(cols + 16, np.nan, x.dtype)
            weights[16 - offset : 16 - offset + cols] = weight
            moved = one.array(weights)[16 - offset : 16 - offset + cols]
            got = np.ascontiguousarray(one.numpy(call(one, shifted, moved)))
            assert _same_bits(got, wanted), (cols, offset)


@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_repeat_and_in_place_changes_nothing(one, call, dtype, seed):
    if dtype not in one.dtypes:
        pytest.skip(f"no {dtype} in it")
    x, weight = _rows(np.random.default_rng(seed), 257, 1000, dtype)
    there = one.array(weight)
    wanted = np.array(one.numpy(call(one, one.array(x), there)))
    for _ in range(20):
        assert _same_bits(np.array(one.numpy(call(one, one.array(x), there))), wanted)
    if one.takes_out:
        both = one.array(x)
        call(one, both, there, out=both)
        assert _same_bits(np.array(one.numpy(both)), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(call, dtype, seed):
    one = arrays.framework("numpy")
    rng = np.random.default_rng(seed)
    shapes = [(4096, 64), (300, 4097), (3, 1 << 18), (1, 1 << 20)]
    data = [_rows(rng, rows, cols, dtype) for rows, cols in shapes]
    try:
        membound.set_cpu_threads(1)
        wanted = [call(one, x, weight) for x, weight in data]
        for threads in (2, 3, 8, 0):
            membound.set_cpu_threads(threads)
            for (x, weight), right in zip(data, wanted, strict=True):
                assert _same_bits(call(one, x, weight), right), (threads, x.shape)
    finally:
        membound.set_cpu_threads(0)


def test_python_threads_share_the_library(seed):
    """Eight threads call concurrently with small and large arrays; each gets its own result."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 64), (3, 1000), (600, 1024), (2000, 333)] * 4
    data = [_rows(rng, rows, cols, "float32") for rows, cols in shapes]
    wanted = [membound.rms_norm(x, weight) for x, weight in data]

    def work(_):
        return all(
            _same_bits(membound.rms_norm(x, weight), right)
            for (x, weight), right in zip(data, wanted, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


def _in_a_child(x, weight, wanted):
    assert _same_bits(membound.rms_norm(x, weight), wanted)


def test_a_forked_child_computes_too(seed):
    """The child has none of the parent's threads; the pool must notice."""
    x, weight = _rows(np.random.default_rng(seed), 2000, 1024, "float32")
    wanted = membound.rms_norm(x, weight)  # the threads of the parent run now
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        # Python and jax warn that forking a process with threads can deadlock: that is the test.
        warnings.simplefilter("ignore")
        children = [context.Process(target=_in_a_child, args=(x, weight, wanted)) for _ in range(3)]
        for child in children:
            child.start()
    for child in children:
        child.join(timeout=60)
        if child.is_alive():
            child.kill()
            pytest.fail("the child hangs")
        assert child.exitcode == 0
    assert _same_bits(membound.rms_norm(x, weight), wanted)
