# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Creation, views and copies in other shapes, products, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from ndarrays import (
    DEVICES,
    DTYPES,
    FLOATS,
    INTEGERS,
    assert_same,
    every,
    numpy_dtype,
    shapes,
    strided,
    to_numpy,
    values,
)

import membound.ndarray as nd


@st.composite
def axes_of(draw, array, min_size=0):
    chosen = draw(st.lists(st.integers(0, array.ndim - 1), unique=True, min_size=min_size))
    return tuple(axis - array.ndim if draw(st.booleans()) else axis for axis in chosen)


@every(values(), st.data(), examples=120)
def test_chains_of_views(device, array, data):
    """Each view has NumPy's elements, and a write to the last one is one to the first array."""
    expected = np.array(array)
    x = strided(expected, device)
    first, mine = x, expected
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(("permute", "move", "flip", "expand", "squeeze", "slice")))
        if kind == "permute":
            order = tuple(data.draw(st.permutations(range(mine.ndim))))
            x, mine = nd.permute_dims(x, order), mine.transpose(order)
        elif kind == "move" and mine.ndim:
            source = data.draw(axes_of(mine))
            target = tuple(data.draw(st.permutations(range(mine.ndim))))[: len(source)]
            x, mine = nd.moveaxis(x, source, target), np.moveaxis(mine, source, target)
        elif kind == "flip" and mine.ndim:
            axes = data.draw(axes_of(mine))
            x, mine = nd.flip(x, axis=axes), np.flip(mine, axes)
        elif kind == "expand" and mine.ndim < 6:
            axis = data.draw(st.integers(-mine.ndim - 1, mine.ndim))
            x, mine = nd.expand_dims(x, axis), np.expand_dims(mine, axis)
        elif kind == "squeeze":
            axes = tuple(axis for axis, length in enumerate(mine.shape) if length == 1)
            x, mine = nd.squeeze(x, axes), mine.squeeze(axes)
        elif kind == "slice":
            key = data.draw(of_numpy.basic_indices(mine.shape, allow_ellipsis=False))
            key = key if isinstance(key, tuple) else (key,)
            x, mine = x[(*key, ...)], mine[(*key, ...)]
    assert_same(x, mine)
    if mine.size:
        value = data.draw(values([array.dtype.name], ()))
        mine[...] = value
        x[...] = strided(value, device)
        assert_same(first, expected)


@every(values(), st.data(), examples=70)
def test_reshape(device, array, data):
    x = strided(array, device)
    flat = nd.reshape(x, (-1,))
    assert_same(flat, array.reshape(-1))
    shape = data.draw(shapes().filter(lambda shape: math.prod(shape) > 0))
    count = math.prod(shape)
    whole = np.resize(array if array.size else np.zeros(1, array.dtype), count)
    assert_same(nd.reshape(strided(whole, device), shape), whole.reshape(shape))
    try:
        expected = np.reshape(array, (-1,), copy=False) if array.size else array.reshape(-1)
    except ValueError:
        expected = None
    if expected is None:
        with pytest.raises(ValueError, match="reshape"):
            nd.reshape(x, (-1,), copy=False)
    else:
        assert_same(nd.reshape(x, (-1,), copy=False), expected)
    copied = nd.reshape(x, (-1,), copy=True)
    copied[...] = nd.zeros((), dtype=x.dtype, device=device)
    assert_same(x, array)


@every(values(), st.integers(1, 4), st.data(), examples=70)
def test_joining(device, array, count, data):
    x = strided(array, device)
    axis = data.draw(st.integers(-array.ndim - 1, array.ndim))
    assert_same(nd.stack([x] * count, axis=axis), np.stack([array] * count, axis=axis))
    assert_same(nd.concat([x] * count, axis=None), np.concatenate([array] * count, axis=None))
    if array.ndim:
        axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
        part = array[(slice(None),) * (axis % array.ndim) + (slice(1),)]
        parts = [array, part] * count
        joined = nd.concat([strided(own, device) for own in parts], axis=axis)
        assert_same(joined, np.concatenate(parts, axis=axis))
        for mine, expected in zip(
            nd.unstack(x, axis=axis), np.unstack(array, axis=axis), strict=True
        ):
            assert_same(mine, np.asarray(expected))


@every(values(), st.data(), examples=70)
def test_moving_and_repeating(device, array, data):
    x = strided(array, device)
    by = data.draw(st.integers(-9, 9))
    assert_same(nd.roll(x, by), np.roll(array, by))
    times = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4)))
    assert_same(nd.tile(x, times), np.tile(array, times))
    assert_same(nd.repeat(x, 2), np.repeat(array, 2))
    if array.ndim:
        axes = data.draw(axes_of(array))
        shifts = tuple(data.draw(st.integers(-9, 9)) for _ in axes)
        assert_same(nd.roll(x, shifts, axis=axes), np.roll(array, shifts, axes))
        axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
        each = data.draw(of_numpy.arrays("int64", array.shape[axis], elements=st.integers(0, 3)))
        times = strided(each, device)
        assert_same(nd.repeat(x, times, axis=axis), np.repeat(array, each, axis))
        assert_same(nd.repeat(x, 3, axis=axis), np.repeat(array, 3, axis))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_elements_of_long_arrays_are_repeated(device, dtype):
    array = np.arange(3 * 1031).astype(dtype).reshape(3, 1031)
    x = nd.asarray(array, device=device)
    for times in (2, 3, 4, 5, 17, 63, 64):
        for step in (1, -1, 2):
            assert_same(nd.repeat(x[:, ::step], times), np.repeat(array[:, ::step], times))
        assert_same(nd.repeat(x.T, times, axis=1), np.repeat(array.T, times, axis=1))
        assert_same(nd.repeat(x, times, axis=0), np.repeat(array, times, axis=0))
        columns = x[..., None].broadcast_to((*x.shape, times))
        expected = np.repeat(array, times).reshape(columns.shape)
        other = nd.zeros((*x.shape, 2 * times), dtype=nd.int32, device=device)
        other[..., 1::2] = nd.astype(columns, nd.int32)
        assert_same(other[..., 1::2].copy(), expected.astype("int32"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_fills(device, dtype):
    """By numbers whose bytes are equal, and by others, of whole arrays and of parts."""
    numbers = [0, 1] if dtype == "bool" else [0, 1, 7] + [-1] * (not dtype.startswith("u"))
    for number in numbers:
        expected = np.full(9_001, number).astype(numpy_dtype(dtype))
        x = nd.full(9_001, bool(number) if dtype == "bool" else number, dtype=dtype, device=device)
        assert_same(x, expected)
        for key in (slice(1, None), slice(None, None, 3), slice(5, 5), slice(None, None, -1)):
            parts, mine = np.ones_like(expected), nd.ones(9_001, dtype=dtype, device=device)
            parts[key] = expected[key]
            mine[key] = bool(number) if dtype == "bool" else number
            assert_same(mine, parts, (number, key))


@every(values(), st.data(), examples=60)
def test_taking(device, array, data):
    if array.ndim == 0 or 0 in array.shape:
        return
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    length = array.shape[axis]
    indices = data.draw(of_numpy.arrays("int64", 4, elements=st.integers(-length, length - 1)))
    x = strided(array, device)
    assert_same(nd.take(x, strided(indices, device), axis=axis), np.take(array, indices, axis))
    shape = list(array.shape)
    shape[axis] = 2
    along = data.draw(of_numpy.arrays("int64", shape, elements=st.integers(-length, length - 1)))
    result = nd.take_along_axis(x, strided(along, device), axis=axis)
    assert_same(result, np.take_along_axis(array, along, axis))


@every(values(["int64", "float32", "bool"], shape=(3, 4, 5)), st.integers(-6, 6), examples=30)
def test_triangles(device, array, k):
    x = strided(array, device)
    assert_same(nd.tril(x, k=k), np.tril(array, k))
    assert_same(nd.tril(x, k=2**70), array)
    assert_same(nd.triu(x, k=2**70), np.zeros_like(array))
    assert_same(nd.triu(x, k=k), np.triu(array, k))
    assert_same(nd.eye(4, 3, k=k, device=device), np.eye(4, 3, k))
    if array.dtype == np.int64:
        assert_same(nd.diff(x, axis=1, n=2), np.diff(array, n=2, axis=1))


@st.composite
def products(draw):
    """Operands of matmul: vectors, matrices and stacks that broadcast."""
    dtype = draw(st.sampled_from(["int8", "int64", "uint32", "float32", "float64"]))
    rows, inner, columns = (draw(st.integers(0, 9)) for _ in range(3))
    found = draw(of_numpy.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3))
    first, second = (
        (*found.input_shapes[0], rows, inner),
        (*found.input_shapes[1], inner, columns),
    )
    first = (inner,) if draw(st.integers(0, 5)) == 0 else first
    second = (inner,) if draw(st.integers(0, 5)) == 0 else second
    return tuple(draw(values([dtype], shape, finite=True)) for shape in (first, second))


@every(products(), examples=120)
def test_products_of_matrices(device, pair):
    result = strided(pair[0], device) @ strided(pair[1], device)
    expected = np.asarray(np.matmul(*pair))
    if expected.dtype.kind == "f":
        assert result.shape == expected.shape
        assert result.dtype.name == expected.dtype.name
        np.testing.assert_allclose(to_numpy(result), expected, rtol=1e-5, atol=1e-5)
    else:
        assert_same(result, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(65, 130, 33), (1, 300, 1), (200, 7, 129)])
def test_larger_products(device, dtype, shape, seed):
    rows, inner, columns = shape
    rng = np.random.default_rng(seed)
    first = strided(rng.integers(-4, 5, (inner, rows)).astype(np.float32), device).T
    second = strided(rng.integers(-4, 5, (inner, columns)).astype(np.float32), device)
    result = nd.astype(first, dtype) @ nd.astype(second, dtype)
    expected = to_numpy(first).astype(np.float64) @ to_numpy(second).astype(np.float64)
    assert result.dtype.name == dtype
    rounding = {"float16": 1e-3, "bfloat16": 8e-3}.get(
        dtype, 0
    )  # of the result; the sums are exact
    np.testing.assert_allclose(to_numpy(nd.astype(result, nd.float64)), expected, rtol=rounding)


@every(st.data(), examples=40)
def test_sums_of_products(device, data):
    array = data.draw(values(["int64"], finite=True, shape=data.draw(shapes(4, 1, 4))))
    order = data.draw(st.permutations(range(array.ndim)))
    other = array.transpose(order)
    count = data.draw(st.integers(0, array.ndim))
    mine = tuple(data.draw(st.permutations(range(array.ndim))))[:count]
    theirs = tuple(list(order).index(axis) for axis in mine)
    x, y = strided(array, device), strided(other, device)
    expected = np.tensordot(array, other, axes=(mine, theirs))
    assert_same(nd.tensordot(x, y, axes=(mine, theirs)), np.asarray(expected))
    expected = np.asarray((array * array).sum(-1))
    assert_same(nd.vecdot(x, x), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_creation(device, dtype):
    options = {"dtype": dtype, "device": device}
    assert nd.empty((2, 0), **options).shape == (2, 0)
    for x in (
        nd.zeros((2, 3), **options),
        nd.ones((2, 3), **options),
        nd.full((2, 3), 1, **options) if dtype != "bool" else nd.full((2, 3), True, **options),
    ):
        assert x.dtype.name == dtype
        assert str(x.device).startswith(device)
        assert x.shape == (2, 3)
    assert bool(nd.all(nd.ones((2, 3), **options)))
    assert not bool(nd.any(nd.zeros((2, 3), **options)))
    like = nd.zeros_like(x, dtype=nd.int32)
    assert (like.shape, like.dtype.name, like.device) == ((2, 3), "int32", x.device)
    if dtype != "bool":
        assert nd.arange(2, 12, 3, **options).tolist() == [2, 5, 8, 11]
        assert nd.arange(3, **options).tolist() == [0, 1, 2]


@pytest.mark.parametrize("last", [2**63 - 1, 2**64 - 1, -(2**63) + 4])
def test_ranges_beyond_the_integers_of_doubles(last):
    dtype = nd.uint64 if last > 2**63 else nd.int64
    for step in (1, 2, 3):
        assert nd.arange(last - 4, last, step, dtype=dtype).tolist() == list(
            range(last - 4, last, step)
        )
        assert nd.arange(last, last - 4, -step, dtype=dtype).tolist() == list(
            range(last, last - 4, -step)
        )


@pytest.mark.parametrize("count", [1, 127, 4096, 9_001])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_long_ranges(dtype, count):
    """Integers are exact; floats are start + i * step of float64, rounded once."""
    of = numpy_dtype(dtype)
    if dtype in INTEGERS:
        count = min(count, 127)
        for start, step in ((0, 1), (127, -1), (1, 3)):
            stop = min(start + count * step, 127)
            expected = np.arange(start, stop, step).astype(of)
            assert_same(nd.arange(start, stop, step, dtype=dtype), expected)
        return
    step = 0.1
    expected = (2.5 + np.arange(count) * step).astype(of)
    assert_same(nd.arange(2.5, 2.5 + (count - 0.5) * step, step, dtype=dtype), expected)
    for endpoint in (True, False):
        parts = max(count - endpoint, 1)
        expected = 2.5 + np.arange(count) * ((9 - 2.5) / parts)
        if endpoint and count > 1:
            expected[-1] = 9
        found = nd.linspace(2.5, 9, count, dtype=dtype, endpoint=endpoint)
        assert_same(found, expected.astype(of))


def test_a_range_of_integers_counts_on_past_a_block():
    for dtype in ("int32", "int64", "uint64", "uint16"):
        assert_same(nd.arange(9_001, dtype=dtype), np.arange(9_001, dtype=dtype))
        assert_same(nd.arange(60_000, 3, -7, dtype=dtype), np.arange(60_000, 3, -7).astype(dtype))


@every(st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 9), st.booleans(), examples=30)
def test_equal_distances(device, start, stop, count, endpoint):
    result = nd.linspace(start, stop, count, endpoint=endpoint, device=device)
    expected = np.linspace(start, stop, count, endpoint=endpoint)
    np.testing.assert_allclose(to_numpy(result), expected, rtol=1e-14, atol=1e-14)


@every(st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-2, -1, 1, 3, 0.5]), examples=30)
def test_ranges(device, start, stop, step):
    assert_same(nd.arange(start, stop, step, device=device), np.arange(start, stop, step))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_grids(device, indexing):
    vectors = [np.arange(length) for length in (2, 3, 4)]
    for count in range(4):
        mine = nd.meshgrid(*(strided(own, device) for own in vectors[:count]), indexing=indexing)
        expected = np.meshgrid(*vectors[:count], indexing=indexing)
        for x, array in zip(mine, expected, strict=True):
            assert_same(x, array)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_a_scalar_of_numpy_has_its_dtype(dtype):
    number = np.dtype(dtype).type(1)
    assert_same(nd.asarray(number), np.asarray(number))
    assert nd.asarray(number, dtype=nd.float64).dtype == nd.float64
    with pytest.raises(ValueError, match="copy=False"):
        nd.asarray(number, copy=False)


WRONG = [
    (lambda x: nd.reshape(x, (4,)), ValueError, "reshape.*6 elements.*(4,)"),
    (lambda x: nd.reshape(x, (-1, -1)), ValueError, "reshape"),
    (lambda x: nd.permute_dims(x, (0,)), ValueError, "permute_dims.*'axes'.*2 axes"),
    (lambda x: nd.permute_dims(x, (0, 0)), ValueError, "permute_dims.*distinct"),
    (lambda x: nd.expand_dims(x, 4), IndexError, "expand_dims.*'axis'.*-3 to 2.*4"),
    (lambda x: nd.squeeze(x, 0), ValueError, "squeeze.*length 1"),
    (lambda _: nd.concat([]), ValueError, "concat.*'arrays'.*none"),
    (lambda x: nd.concat([x, x.T]), ValueError, r"concat.*\(2, 3\) and \(3, 2\)"),
    (lambda x: nd.concat([x[0, 0]]), IndexError, "concat"),
    (lambda x: nd.stack([x, x.T]), ValueError, "stack"),
    (lambda x: nd.broadcast_to(x, (3, 2)), ValueError, "broadcast_to"),
    (lambda x: nd.take(x, nd.asarray([0])), ValueError, "take.*'axis'"),
    (lambda x: nd.take(x, nd.asarray([2]), axis=0), IndexError, "2"),
    (lambda x: nd.matmul(x, x), ValueError, "matmul"),
    (lambda x: x @ 2, TypeError, "int"),
    (lambda x: nd.take(x, nd.asarray([2**64 - 1], dtype=nd.uint64), axis=0), IndexError, "take"),
    (lambda x: nd.take_along_axis(x, nd.full((2, 3), 2**63, dtype=nd.uint64)), IndexError, "take_"),
    (lambda x: nd.tensordot(x, x, axes=1), ValueError, "tensordot"),
    (lambda x: nd.tensordot(x, x, axes=-1), ValueError, "tensordot.*'axes'.*-1"),
    (lambda x: nd.repeat(x, -1), ValueError, "repeat.*'repeats'.*-1"),
    (lambda x: nd.repeat(x, nd.asarray([-1, 3]), axis=0), ValueError, "repeat.*'repeats'"),
    (lambda x: nd.repeat(x, nd.asarray([1.0, 2.0]), axis=0), TypeError, "repeats.*float64"),
    (lambda x: nd.repeat(x, nd.asarray([2**62, 2**62]), axis=0), ValueError, "repeats.*2.63"),
    (lambda x: nd.diff(x, prepend=0), TypeError, "diff.*'prepend'.*int"),
    (lambda x: nd.sort(x, descending=1), TypeError, "sort.*'descending'.*int"),
    (lambda x: nd.argsort(x, stable=None), TypeError, "argsort.*'stable'.*None"),
    (lambda x: nd.cumulative_sum(x[0], include_initial=1), TypeError, "'include_initial'.*int"),
    (lambda x: nd.vecdot(x, x, axis=0), ValueError, "vecdot.*'axis'.*negative"),
    (lambda _: nd.zeros((-1,)), ValueError, "-1"),
    (lambda _: nd.zeros("3"), TypeError, "zeros.*'shape'.*str"),
    (lambda _: nd.zeros(2, device="tpu"), ValueError, "tpu"),
    (lambda _: nd.arange(0, 3, 0), ValueError, "arange"),
    (lambda _: nd.arange(127, 129, dtype=nd.int8), ValueError, "arange.*128.*int8"),
    (lambda _: nd.arange(-1, 2, dtype=nd.uint8), ValueError, "arange.*-1.*uint8"),
    (lambda _: nd.arange(-1, 2, dtype=nd.uint64), ValueError, "arange.*-1.*uint64"),
    (lambda _: nd.linspace(0, 1, -1), ValueError, "linspace"),
    (lambda _: nd.linspace(0, 300, 4, dtype=nd.uint8), TypeError, "linspace.*'dtype'.*uint8"),
    (lambda _: nd.asarray([[1], [1, 2]]), ValueError, "asarray"),
    (lambda _: nd.asarray([1j]), TypeError, "complex"),
    (lambda _: nd.asarray("text"), TypeError, "str"),
    (lambda _: nd.asarray([300], dtype=nd.int8), ValueError, "300"),
    (lambda _: nd.asarray([1], copy=False), ValueError, "asarray.*copy=False"),
    (lambda x: nd.asarray(x, dtype=nd.int8, copy=False), ValueError, "asarray.*copy=False"),
    (lambda x: nd.meshgrid(x), ValueError, "meshgrid"),
    (lambda x: nd.tril(x[0]), ValueError, "tril"),
    (lambda x: nd.roll(x, (1, 2), axis=0), ValueError, "roll"),
    (lambda _: nd.finfo(nd.int8), TypeError, "finfo"),
    (lambda _: nd.iinfo(nd.float32), TypeError, "iinfo"),
    (lambda _: nd.isdtype(nd.int8, "letters"), ValueError, "isdtype"),
    (lambda _: nd.ad, AttributeError, "did you mean 'add'"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_what_raises(call, error, text):
    with pytest.raises(error, match=text):
        call(nd.ones((2, 3)))


# Tiles with remainders, results past the cache, rows that stay, few and many columns.
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2053, 2077), (1, 0)),
        ((2048, 2112), (1, 0)),
        ((514, 1028), (1, 0)),
        ((64, 20, 260), (1, 2, 0)),
        ((32, 4, 136), (1, 2, 0)),
        ((3, 132, 200), (0, 2, 1)),
        ((2, 40, 72, 66), (2, 0, 3, 1)),
        ((130, 7, 257), (2, 1, 0)),
        ((65, 33, 70), (0, 2, 1)),
        ((40, 30, 50, 6), (0, 2, 1, 3)),
        ((3, 70_001), (1, 0)),
        ((70_001, 3), (1, 0)),
        ((4, 20_011), (1, 0)),
        ((20_011, 4), (1, 0)),
        ((5000, 9), (1, 0)),
        ((9, 5000), (1, 0)),
        ((4160, 2112), (1, 0)),  # past the cache
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_permuted_copies(device, shape, axes, dtype):
    values = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    permuted = nd.permute_dims(nd.asarray(values, device=device), axes)
    np.testing.assert_array_equal(to_numpy(permuted.copy()), values.transpose(axes))
    part = permuted[:, 1:]  # of other alignment
    np.testing.assert_array_equal(to_numpy(part.copy()), values.transpose(axes)[:, 1:])
    other = nd.empty(
        (*permuted.shape[:-1], 2 * permuted.shape[-1]), dtype=nd.float32, device=device
    )
    other[..., ::2] = permuted  # converted, into every other element
    np.testing.assert_array_equal(
        to_numpy(other[..., ::2].copy()), values.transpose(axes).astype("float32")
    )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_long_rows_are_sorted(dtype, descending):
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((2, 20_011)) * 100
    wide[0, ::1001], wide[0, 5:9] = (0, [-0.0, np.inf, -np.inf, 0]) if "float" in dtype else (0, 7)
    values = nd.astype(nd.asarray(np.abs(wide) if "uint" in dtype else wide), dtype)
    found = np.asarray(nd.astype(nd.sort(values, descending=descending), nd.float64))
    expected = np.sort(np.asarray(nd.astype(values, nd.float64)))
    np.testing.assert_array_equal(found, expected[:, ::-1] if descending else expected)
    order = nd.argsort(values, descending=descending)
    again = nd.take_along_axis(values, order, axis=-1)
    np.testing.assert_array_equal(np.asarray(nd.astype(again, nd.float64)), found)
