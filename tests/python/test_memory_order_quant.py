# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Quantised results on the CPU of transposed arrays, computed by tiled transposes through a buffer,
have the bits of contiguous ones, whichever of their arrays are transposed.
"""

from __future__ import annotations

from itertools import combinations

import ml_dtypes
import numpy as np
import pytest
from arrays import DTYPES, NUMPY_DTYPES
from quant_norms import LIMITS, SCALES
from reference import QUANTISED

import membound

# Around tiles of 16 bytes and a column's cache lines; 8, 16 or 32 rows fit the cache at once, and
# too few rows for a buffer to pay off.
SHAPES = ((3, 70), (5, 1), (17, 3), (33, 64), (67, 130), (200, 257), (131, 1000), (45, 9001))
# What each op reads.
OPS = {
    "rms_norm_quant": ("x",),
    "add_rms_norm_quant": ("x", "residual"),
    "gated_activation_quant": ("gate", "up"),
}
RESULTS = ("residual_out", "out", "scale_out")


def drawn(rng, dtype, rows, cols, op):
    """Random inputs; the first row has a sum of squares out of range."""
    bits = np.dtype(NUMPY_DTYPES[dtype])
    given = {name: rng.standard_normal((rows, cols)).astype(bits) for name in OPS[op]}
    extreme = bits.type(float(ml_dtypes.finfo(bits).max) / 4)
    for values in given.values():
        values[0, cols // 2] = extreme
        values[-1, 0] = np.nan
    return given


def called(op, given, weight, kind, scale, transposed, stride=1):
    """Return all results, and the bytes between the elements of the codes.

    Arrays named in `transposed` are column-major, with every `stride`-th column in use.
    """

    def placed(name, values):
        if name not in transposed:
            return np.ascontiguousarray(values)
        lines = np.repeat(values.swapaxes(0, -1), stride, 0)
        return np.ascontiguousarray(lines)[::stride].swapaxes(0, -1)

    x = next(iter(given.values()))
    options = {"out": placed("out", np.full(x.shape, 90, np.uint8).view(QUANTISED[kind]))}
    if scale == "static":
        options["scale"] = np.array(2 / LIMITS[kind], np.float32)
    else:
        groups = () if scale == "row" else (-(-x.shape[-1] // scale),)
        options["scale_out"] = placed("scale_out", np.zeros((len(x), *groups), np.float32))
        options["group_size"] = None if scale == "row" else scale
    if "residual" in given:
        options["residual_out"] = placed("residual_out", np.zeros_like(x))
    if "gate" in given:
        wide = np.float64 if x.dtype == np.float64 else np.float32
        options["row_scale"] = np.linspace(-1, 2, len(x), dtype=wide)
    else:
        options["weight"] = weight
    found = getattr(membound, op)(*(placed(*one) for one in given.items()), **options)
    whole = options["out"].base if "out" in transposed else options["out"]
    gaps = np.delete(np.asarray(whole).view(np.uint8), np.s_[::stride], 0) if stride > 1 else None
    return found if isinstance(found, tuple) else (found,), gaps


def assert_same(found, wanted, what):
    for got, right in zip(found, wanted, strict=True):
        assert np.ascontiguousarray(got).tobytes() == right.tobytes(), what


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_transposed_arrays_have_the_bits_of_contiguous_ones(dtype, kind, scale, op, seed):
    rng = np.random.default_rng(seed)
    arrays = (*OPS[op], *RESULTS)
    for rows, cols in SHAPES:
        given = drawn(rng, dtype, rows, cols, op)
        weight = rng.standard_normal(cols).astype(NUMPY_DTYPES[dtype])
        wanted, _ = called(op, given, weight, kind, scale, ())
        some = set(rng.choice(arrays, int(rng.integers(1, len(arrays)))).tolist())
        for transposed in ({arrays[0]}, {"out"}, set(arrays), some):
            found, _ = called(op, given, weight, kind, scale, transposed)
            assert_same(found, wanted, (seed, rows, cols, transposed))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("threads", [1, 2])
def test_any_of_the_arrays_for_any_number_of_threads(threads, op, seed):
    rng = np.random.default_rng(seed)
    arrays = (*OPS[op], *RESULTS)
    given = drawn(rng, "float32", 301, 700, op)
    wanted, _ = called(op, given, None, "float8_e4m3fn", 128, ())
    try:
        membound.set_cpu_threads(threads)
        for count in range(1, len(arrays) + 1):
            for transposed in combinations(arrays, count):
                found, _ = called(op, given, None, "float8_e4m3fn", 128, transposed)
                assert_same(found, wanted, (seed, transposed))
    finally:
        membound.set_cpu_threads(0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_second_column_leaves_the_others_alone(dtype, op, seed):
    given = drawn(np.random.default_rng(seed), dtype, 150, 210, op)
    wanted, _ = called(op, given, None, "int8", 64, ())
    found, gaps = called(op, given, None, "int8", 64, (*OPS[op], *RESULTS), stride=2)
    assert_same(found, wanted, seed)
    assert gaps.shape == (210, 150)
    assert (gaps == 90).all()


@pytest.mark.parametrize("target", ["x", "residual"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_in_place_of_a_transposed_input(dtype, target, seed):
    given = drawn(np.random.default_rng(seed), dtype, 150, 210, "add_rms_norm_quant")
    wanted = membound.add_rms_norm_quant(*given.values(), dtype="int8")
    arrays = {name: np.asfortranarray(values) for name, values in given.items()}
    into = arrays[target]
    found = membound.add_rms_norm_quant(*arrays.values(), dtype="int8", residual_out=into)
    assert found[1] is into
    assert_same(found, wanted, seed)


def test_batches_of_transposed_matrices(seed):
    """Rows without one common stride, and more than one batch per thread."""
    x = np.random.default_rng(seed).standard_normal((5, 70, 300)).astype(np.float32)
    inside = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    wanted = membound.rms_norm_quant(x, dtype="int8", group_size=64)
    assert_same(membound.rms_norm_quant(inside, dtype="int8", group_size=64), wanted, seed)
