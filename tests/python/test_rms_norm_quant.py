# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_quant in every framework, dtype, layout and option, bit by bit."""

from __future__ import annotations

import arrays
import ml_dtypes
import numpy as np
import pytest
from arrays import LAYOUTS
from cases import LONG, ROUNDINGS, WEIGHTS, drawn_for, layouts_like, needs
from quant_norms import (
    LIMITS,
    NAMES,
    SCALES,
    Case,
    assert_same,
    check,
    numbers,
    quantised,
)
from reference import DTYPES, NUMPY_DTYPES, QUANTISED

import membound

WIDTHS = (1, 7, 64, 100, 128, 129, 257, 1000, 4097)


def fits(one, kind):
    if kind not in one.quantised:
        pytest.skip(f"it has no {kind}")


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_scale_at_every_width(name, dtype, kind, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        for scale in SCALES:
            case = Case(one, dtype, cols, kind, scale, rng=rng)
            case.layout = str(rng.choice(layouts_like("contiguous", one, writable=False)))
            if one.takes_out and rng.integers(2):
                case.out_layout = str(rng.choice(layouts_like("contiguous", one, writable=True)))
            case.weight, case.rounding = rng.choice(WEIGHTS), rng.choice(ROUNDINGS)
            case.weight_offset = rng.choice((0.0, 1.0))
            case.bound = rng.choice((None, 1.5 / LIMITS[kind])) if scale != "static" else None
            check(case)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_layout(name, layout, seed):
    one = arrays.framework(name)
    needs(one, "float32", layout)
    rng = np.random.default_rng(seed)
    for cols, scale in ((33, "row"), (200, 64), (128, "static")):
        case = Case(one, "float32", cols, "int8", scale, layout=layout, rng=rng)
        if one.takes_out and LAYOUTS[layout].writable:
            case.out_layout = layout
        check(case)


@pytest.mark.parametrize(("rows", "cols"), [(3000, 64), (70, 5000), (2, 131073)])
@pytest.mark.parametrize("name", NAMES)
def test_many_rows_and_long_ones(name, rows, cols, seed):
    """Enough for several blocks of a GPU and several threads of a CPU."""
    one = arrays.framework(name)
    kind = one.quantised[0]
    for scale in ("row", 128):
        check(Case(one, "float16", cols, kind, scale, rows=rows, rng=np.random.default_rng(seed)))


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["torch-cuda", "jax-cuda", "cupy"])
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for scale in SCALES:
        for layout in ("contiguous", "off by one"):
            if LAYOUTS[layout].fits(one):
                check(Case(one, dtype, cols, one.quantised[0], scale, layout=layout, rng=rng))


# --- numbers ---


def numbers_as_weights(one, values, dtype):
    """Rows that are normalised to given values: rows of ones without eps, times a weight.

    Their number is a power of two, so that the mean of squares is 1 in any order of summation.
    """
    values = np.asarray(values, np.float64)
    more = (1 << (values.size - 1).bit_length()) - values.size
    weight = np.pad(values, (0, more), mode="edge").astype(NUMPY_DTYPES[dtype])
    x = np.ones((3, weight.size), weight.dtype)
    y = np.broadcast_to(weight, x.shape)
    got = one.numpy(membound.rms_norm(one.array(x), one.array(weight), eps=0.0))
    assert_same(got, y, "the norm")
    return one.array(x), one.array(weight), y


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_code_comes_back_and_ties_go_to_the_even_one(name, dtype, kind):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    known = numbers(kind)
    middle = ((known[:-1] + known[1:]) / 2).astype(NUMPY_DTYPES[dtype])
    around = [np.nextafter(middle, middle.dtype.type(to)) for to in (-6e4, 6e4)]
    every = np.concatenate([known, *(part.astype(np.float64) for part in (middle, *around))])
    x, weight, y = numbers_as_weights(one, np.concatenate([every, -every]), dtype)
    scale = one.array(np.ones(1, np.float32))
    out = membound.rms_norm_quant(x, weight, eps=0.0, dtype=kind, scale=scale)
    assert_same(one.numpy(out), quantised(y, kind, "static")[0], kind)
    assert (one.numpy(out)[0, : known.size].astype(np.float64) == known).all()
    # The largest value is the limit, so that the row's dynamic scale is 1.
    again, scales = membound.rms_norm_quant(x, weight, eps=0.0, dtype=kind)
    assert_same(one.numpy(again), one.numpy(out), kind)
    assert (one.numpy(scales) == 1).all()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_zeros_extremes_infinities_and_nan(name, dtype, kind):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    info = ml_dtypes.finfo(NUMPY_DTYPES[dtype])
    tiny, huge = float(info.smallest_subnormal), float(info.max)
    rows = [(0.0, -0.0), (1.0, huge), (0.0, -huge), (tiny, -3 * tiny), (1.0, tiny)]
    rows += [(1.0, np.inf), (0.0, -np.inf), (-2.0, np.nan), (np.inf, np.nan)]
    for rest, special in rows:
        values = np.full(150, rest)
        values[70] = special
        x, weight, y = numbers_as_weights(one, values, dtype)
        for scale, bound in (("row", None), (64, None), (128, 1e-3), ("row", 1e-40)):
            options = {} if scale == "row" else {"group_size": scale}
            out, scales = membound.rms_norm_quant(
                x, weight, eps=0.0, dtype=kind, scale_upper_bound=bound, **options
            )
            wanted, wanted_scales = quantised(y, kind, scale, bound)
            assert_same(one.numpy(out), wanted, (rest, special, scale, bound))
            assert_same(one.numpy(scales), wanted_scales, (rest, special, scale, bound))
        for given in (0.25, -3.0, 0.0, 1e-42, np.inf, np.nan):
            static = one.array(np.array(given, np.float32))
            out = membound.rms_norm_quant(x, weight, eps=0.0, dtype=kind, scale=static)
            wanted, _ = quantised(y, kind, "static", given=given)
            assert_same(one.numpy(out), wanted, (rest, special, given))


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_for_each_head(name, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, 2, 3, 130)).astype(np.float32)
    weight = rng.standard_normal((3, 130)).astype(np.float32)
    y = np.stack(
        [one.numpy(membound.rms_norm(one.array(np.ascontiguousarray(x[..., head, :])),
                                     one.array(weight[head]))) for head in range(3)],
        axis=-2,
    )  # fmt: skip
    for group_size, scale in ((None, "row"), (64, 64)):
        out, scales = membound.rms_norm_quant(
            one.array(x), one.array(weight), dtype="int8", group_size=group_size
        )
        wanted, wanted_scales = quantised(y, "int8", scale)
        assert_same(one.numpy(out), wanted, scale)
        assert_same(one.numpy(scales), wanted_scales, scale)


# --- kinds of results and dtypes ---


@pytest.mark.parametrize("shape", [(7,), (1, 64), (2, 3, 130), (0, 8), (2, 0, 70)])
@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_of_the_callers_kind(name, shape):
    one = arrays.framework(name)
    x = one.array(np.ones(shape, np.float32))
    for kind in one.quantised:
        out, scale = map(one.numpy, membound.rms_norm_quant(x, dtype=kind))
        assert (out.dtype, out.shape, out.flags.c_contiguous) == (QUANTISED[kind], shape, True)
        assert (scale.dtype, scale.shape) == (np.float32, shape[:-1])
        _, scale = map(one.numpy, membound.rms_norm_quant(x, dtype=kind, group_size=64))
        assert scale.shape == (*shape[:-1], -(-shape[-1] // 64))


def own_dtypes(one, kind):
    """The dtype objects of a framework, and of NumPy."""
    objects = [kind, QUANTISED[kind], QUANTISED[kind].type]
    if hasattr(one, "torch"):
        objects.append(getattr(one.torch, kind))
    if hasattr(one, "jax"):
        objects.append(getattr(one.jax.numpy, kind))
    return objects


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_may_be_named_or_an_object(name):
    one = arrays.framework(name)
    x = one.array(np.ones((2, 70), np.float32))
    for kind in one.quantised:
        for dtype in own_dtypes(one, kind) * 2:
            out, _ = membound.rms_norm_quant(x, dtype=dtype)
            assert one.numpy(out).dtype == QUANTISED[kind], dtype
    if "float8_e4m3fn" in one.quantised:
        for options in ({}, {"dtype": None}):
            out, _ = membound.rms_norm_quant(x, **options)
            assert one.numpy(out).dtype == QUANTISED["float8_e4m3fn"]


@pytest.mark.parametrize("name", NAMES)
def test_out_brings_the_dtype(name, seed):
    one = arrays.framework(name)
    if not one.takes_out:
        pytest.skip("its arrays are not written")
    values = np.random.default_rng(seed).standard_normal((3, 70)).astype(np.float32)
    x = one.array(values)
    for kind in one.quantised:
        into = one.array(np.zeros((3, 70), QUANTISED[kind]))
        out, scale = membound.rms_norm_quant(x, out=into)
        assert out is into
        wanted, wanted_scale = quantised(one.numpy(membound.rms_norm(x)), kind)
        assert_same(one.numpy(out), wanted, kind)
        assert_same(one.numpy(scale), wanted_scale, kind)


def test_buffers_hold_int8(seed):
    values = np.random.default_rng(seed).standard_normal((3, 70)).astype(np.float32)
    out, scale = membound.rms_norm_quant(memoryview(values), dtype="int8")
    assert (type(out), out.format, scale.format) == (memoryview, "b", "f")
    wanted, wanted_scale = quantised(membound.rms_norm(values), "int8")
    assert_same(np.asarray(out), wanted, "out")
    assert_same(np.asarray(scale), wanted_scale, "scale")
    with pytest.raises(TypeError, match="'out' must be given: buffers have no float8_e4m3fn"):
        membound.rms_norm_quant(memoryview(values))


def test_numpy_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    x = np.ones((2, 8), np.float32)
    with pytest.raises(TypeError, match="'out' must be given: NumPy has float8_e5m2 from ml_dty"):
        membound.rms_norm_quant(x, dtype="float8_e5m2")
    assert membound.rms_norm_quant(x, dtype="int8")[0].dtype == np.int8


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_number_of_threads_changes_nothing(threads, seed):
    rng = np.random.default_rng(seed)
    data = [rng.standard_normal(shape).astype(np.float32) for shape in ((4096, 64), (300, 4097))]
    wanted = [membound.rms_norm_quant(x, group_size=128) for x in data]
    try:
        membound.set_cpu_threads(threads)
        for x, (out, scale) in zip(data, wanted, strict=True):
            got = membound.rms_norm_quant(x, group_size=128)
            assert_same(got[0], out, x.shape)
            assert_same(got[1], scale, x.shape)
    finally:
        membound.set_cpu_threads(0)


def test_autograd_notices_that_outputs_were_overwritten():
    torch = pytest.importorskip("torch")
    x, scale = torch.ones(2, 8), torch.ones(2)
    out = torch.ones(2, 8, dtype=torch.int8)
    membound.rms_norm_quant(x, out=out, scale_out=scale)
    assert out._version == scale._version == 1
    assert x._version == 0
