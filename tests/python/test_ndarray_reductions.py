# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Reductions over any axes, cumulative sums, sorting and sets, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from ndarrays import (
    DEVICES,
    DTYPES,
    FLOATS,
    INTEGERS,
    assert_same,
    every,
    numbers,
    shapes,
    strided,
    to_ndarray,
    to_numpy,
    values,
)

import membound
import membound.ndarray as nd

NUMBERS = [*INTEGERS, *FLOATS]
TOLERANCE = {"bfloat16": 8e-3, "float16": 1e-3, "float32": 1e-5, "float64": 1e-12}


@st.composite
def reductions(draw, dtypes, min_side=0, finite=True):
    shape = tuple(max(length, min_side) for length in draw(shapes()))
    array = draw(values(dtypes, shape, finite=finite))
    axes = st.lists(st.integers(0, len(shape) - 1), unique=True) if shape else st.just([])
    signs = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    chosen = [axis - len(shape) if sign else axis for axis, sign in zip(draw(axes), signs)]  # noqa: B905
    one = st.just(chosen[0]) if chosen else st.just(None)
    axis = draw(st.one_of(st.none(), st.just(tuple(chosen)), one))
    return array, axis, draw(st.booleans())


def accumulated(array):
    kind = array.dtype.kind
    return {"i": np.int64, "u": np.uint64}.get(kind, np.float64)


@every(reductions(NUMBERS), st.sampled_from(["sum", "prod"]), examples=120)
def test_sums_and_products(device, case, name):
    array, axis, keepdims = case
    result = getattr(nd, name)(strided(array, device), axis=axis, keepdims=keepdims)
    expected = getattr(np, name)(array, axis=axis, keepdims=keepdims, dtype=accumulated(array))
    expected = np.asarray(expected)
    if array.dtype.kind in "iu":
        assert_same(result, expected)
        return
    assert result.dtype.name == array.dtype.name
    assert result.shape == expected.shape
    found = to_numpy(result).astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = expected.astype(array.dtype).astype(np.float64)
    np.testing.assert_allclose(found, rounded, rtol=TOLERANCE[array.dtype.name], atol=1e-5)


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
@pytest.mark.filterwarnings("ignore:invalid value")
@every(reductions(FLOATS), st.sampled_from(["mean", "var", "std"]), examples=90)
def test_moments(device, case, name):
    array, axis, keepdims = case
    result = getattr(nd, name)(strided(array, device), axis=axis, keepdims=keepdims)
    expected = getattr(np, name)(array.astype(np.float64), axis=axis, keepdims=keepdims)
    expected = np.asarray(expected)
    assert result.dtype.name == array.dtype.name
    assert result.shape == expected.shape
    tolerance = TOLERANCE[array.dtype.name]
    np.testing.assert_allclose(
        to_numpy(result).astype(np.float64), expected, rtol=tolerance, atol=tolerance
    )


@every(
    reductions(NUMBERS, min_side=1, finite=False),
    st.sampled_from(["max", "min"]),
    examples=120,
)
def test_extremes(device, case, name):
    array, axis, keepdims = case
    result = getattr(nd, name)(strided(array, device), axis=axis, keepdims=keepdims)
    wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(wide, axis=axis, keepdims=keepdims))
    assert_same(result, expected.astype(array.dtype))


@every(
    reductions(NUMBERS, min_side=1, finite=False),
    st.sampled_from(["argmax", "argmin"]),
    examples=90,
)
def test_places_of_extremes(device, case, name):
    array, axis, keepdims = case
    axis = axis[0] if isinstance(axis, tuple) and axis else None if axis == () else axis
    result = getattr(nd, name)(strided(array, device), axis=axis, keepdims=keepdims)
    wide = array.astype(np.float64) if array.dtype.kind not in "iu" else array
    # NumPy flattens in the order of memory for keepdims.
    expected = np.asarray(
        getattr(np, name)(np.array(wide, order="C"), axis=axis, keepdims=keepdims)
    )
    assert_same(result, expected)


@every(
    reductions(["bool", *NUMBERS], finite=False),
    st.sampled_from(["all", "any", "count_nonzero"]),
    examples=90,
)
def test_tests(device, case, name):
    array, axis, keepdims = case
    result = getattr(nd, name)(strided(array, device), axis=axis, keepdims=keepdims)
    expected = np.asarray(getattr(np, name)(array.astype(bool), axis=axis, keepdims=keepdims))
    assert_same(result, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_among_many_decides(device, dtype, seed):
    """All and any of large arrays, wherever it is; -0. is zero, the lowest integer is not."""
    rng = np.random.default_rng(seed)
    lowest = nd.iinfo(getattr(nd, dtype)).min if dtype.startswith("int") else 1
    for size in (513, 4097, 100_003):
        zeros = nd.zeros(size, dtype=getattr(nd, dtype), device=device)
        if dtype in FLOATS:
            zeros[::3] = -0.0
        for x in (zeros, zeros[::2], zeros[::-1]):
            place = int(rng.integers(x.size))
            assert not nd.any(x)
            x[place] = lowest
            assert nd.any(x)
            assert not nd.all(x)
            ones = x.copy()
            ones[:] = lowest
            assert nd.all(ones)
            ones[place] = 0
            assert not nd.all(ones)
            x[place] = 0


@every(values(NUMBERS, finite=True), st.booleans(), st.data(), examples=70)
def test_cumulative(device, array, include_initial, data):
    if array.ndim == 0:
        return
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    for name, start in (("cumulative_sum", 0), ("cumulative_prod", 1)):
        x = strided(array, device)
        result = getattr(nd, name)(x, axis=axis, include_initial=include_initial)
        function = np.cumsum if start == 0 else np.cumprod
        expected = function(array, axis=axis, dtype=accumulated(array))
        if include_initial:
            head = list(array.shape)
            head[axis] = 1
            expected = np.concatenate([np.full(head, start, expected.dtype), expected], axis=axis)
        assert result.shape == expected.shape
        if array.dtype.kind in "iu":
            assert_same(result, expected)
        else:
            tolerance = 4 * TOLERANCE[array.dtype.name]
            found = to_numpy(result).astype(np.float64)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(3, 70_001), (57, 4099), (3001, 65), (1, 1_000_003)])
def test_rows_from_any_address_on(device, dtype, shape, seed):
    """Sums of large rows have the bits of their copies, extremes their places."""
    rng = np.random.default_rng(seed)
    host = rng.integers(-99, 99, shape).astype("f4")
    x = nd.astype(to_ndarray(host, device), getattr(nd, dtype))
    view, rest = x[:, 1:], host[:, 1:]
    copy = view.copy()
    for axis in (None, 0, 1):
        for name in ("sum", "max", "argmin", "argmax"):
            function = getattr(nd, name)
            found = function(copy, axis=axis)
            assert_same(function(view, axis=axis), to_numpy(found), name)
            expected = getattr(np, name)(rest.astype("f8"), axis=axis)
            if name == "sum" and dtype in {"float16", "bfloat16"}:
                wide = nd.sum(copy, axis=axis, dtype=nd.float32)
                np.testing.assert_array_equal(to_numpy(wide), expected)
            else:
                np.testing.assert_array_equal(to_numpy(found).astype("f8"), expected)
    expected = np.cumsum(rest.astype("f8"), axis=1)
    found = nd.cumulative_sum(view, axis=1, dtype=nd.float32 if "float" in dtype else None)
    np.testing.assert_array_equal(to_numpy(found).astype("f8"), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("shape", [(20_000, 70), (70, 20_000), (3, 400, 600)])
def test_results_in_any_order(device, dtype, shape, seed):
    """Reversed and permuted results of long columns and rows, which several blocks make."""
    host = np.random.default_rng(seed).integers(-9, 9, shape).astype(dtype)
    x = to_ndarray(host, device)
    for axis in range(len(shape)):
        for turned, expected in (
            (nd.flip(x), np.flip(host)),
            (nd.permute_dims(x, range(x.ndim)[::-1]), host.T),
            (nd.flip(nd.permute_dims(x, range(x.ndim)[::-1]), axis=0), np.flip(host.T, 0)),
        ):
            wide = nd.sum(turned, axis=axis, dtype=nd.float32 if dtype == "float16" else None)
            np.testing.assert_array_equal(to_numpy(wide), expected.sum(axis, dtype="f8"))
            places = nd.argmin(turned, axis=axis)
            np.testing.assert_array_equal(to_numpy(places), expected.argmin(axis))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16", "float32", "float64", "int32"])
def test_places_among_the_worst(device, dtype, seed):
    """Where no element is better than the lowest number, the first; where one is NaN, that."""
    rng = np.random.default_rng(seed)
    is_float = "float" in dtype
    lowest = -float("inf") if is_float else nd.iinfo(getattr(nd, dtype)).min
    for size in (7, 4096, 100_000, 1_000_000):
        x = nd.full((2, size), lowest, dtype=getattr(nd, dtype), device=device)
        place = int(rng.integers(size))
        assert nd.argmax(x).item() == 0
        assert nd.argmax(x, axis=1).tolist() == [0, 0]
        assert nd.argmax(x.T, axis=0).tolist() == [0, 0]
        x[1, place:] = float("nan") if is_float else lowest + 1
        assert nd.argmax(x).item() == size + place
        assert nd.argmax(x, axis=1).tolist() == [0, place]
        assert nd.argmax(x.T, axis=0).tolist() == [0, place]
        x[1, :] = 0
        x[1, place] = -0.0 if is_float else 0
        assert nd.argmin(x[1, :]).item() == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_sums_do_not_stall(device, dtype):
    x = nd.ones(5000, dtype=dtype, device=device)
    assert abs(float(nd.sum(x)) - 5000) <= 16  # in the dtype itself it would stay at 2048 or 256
    assert float(nd.mean(x)) == 1.0


COLUMNS = [(1, 70), (2, 1100), (31, 9), (33, 40), (65, 3), (511, 130), (700, 1030), (33_000, 5)]


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("shape", COLUMNS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "int16"])
def test_columns_have_the_bits_of_rows(dtype, shape, first, seed):
    numbers = np.random.default_rng(seed).uniform(-9, 9, first + shape[0] * shape[1])
    numbers = nd.astype(to_ndarray(numbers), getattr(nd, dtype))
    places = np.arange(numbers.size) % (5 * shape[1] + 1) == first
    some_nan = numbers if dtype == "int16" else nd.where(to_ndarray(places), float("nan"), numbers)
    for name, flat in [("sum", numbers), ("prod", numbers), ("max", some_nan), ("min", some_nan)]:
        columns = nd.reshape(flat[first:], shape)
        found = getattr(nd, name)(columns, axis=0)
        expected = getattr(nd, name)(columns.T.copy(), axis=1)
        np.testing.assert_array_equal(
            *(np.asarray(nd.astype(x, nd.float64)) for x in (found, expected))
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_bits_of_sums_do_not_depend_on_threads(dtype, seed):
    array = np.random.default_rng(seed).standard_normal((1000, 333)).astype(dtype)
    x = to_ndarray(array)
    before = membound.cpu_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            membound.set_cpu_threads(threads)
            for view in (x, x.T, x[::-1]):
                results.append([to_numpy(nd.sum(view, axis=at)).tobytes() for at in (None, 0, 1)])
    finally:
        membound.set_cpu_threads(before)
    for at in range(3):
        assert results[at] == results[at + 3] == results[at + 6]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sum", "mean", "var", "max", "prod"])
def test_both_devices_agree(name, seed):
    array = np.random.default_rng(seed).standard_normal((129, 257)).astype(np.float32)
    for axis in (None, 0, 1):
        mine = [
            getattr(nd, name)(to_ndarray(array, device), axis=axis) for device in ("cpu", "cuda")
        ]
        # A sum near zero has the error of its terms.
        terms = 1e-6 * np.abs(array).sum(axis) if name in ("sum", "mean") else 0.0
        np.testing.assert_array_less(
            np.abs(to_numpy(mine[0]) - to_numpy(mine[1])),
            terms + 1e-5 * np.abs(to_numpy(mine[0])) + 1e-30,
        )


@every(values(["bool", *NUMBERS]), st.booleans(), st.data(), examples=90)
def test_sorting(device, array, descending, data):
    if array.ndim == 0:
        return
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    x = strided(array, device)
    result = nd.sort(x, axis=axis, descending=descending)
    order = to_numpy(nd.argsort(x, axis=axis, descending=descending))
    wide = array.astype(np.float64) if array.dtype.kind not in "biu" else array
    expected = np.argsort(wide, axis=axis, stable=True)
    if descending and wide.dtype.kind == "f":  # NaN stays last, equal elements keep their order
        expected = np.argsort(-wide, axis=axis, stable=True)
    elif descending:
        turned = np.argsort(np.flip(wide, axis), axis=axis, stable=True)
        expected = array.shape[axis] - 1 - np.flip(turned, axis)
    np.testing.assert_array_equal(order, expected)
    assert_same(result, np.take_along_axis(array, expected, axis))


@every(values(["int8", "int64", "uint64", "float32", "float64"]), examples=70)
def test_distinct_elements(device, array):
    x = strided(array, device)
    found = nd.unique_all(x)
    expected, indices, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    assert_same(found.values, expected)
    assert_same(found.counts, counts)
    assert_same(found.inverse_indices, inverse.reshape(array.shape))
    np.testing.assert_array_equal(array.ravel()[to_numpy(found.indices)], expected)
    assert_same(found.indices, indices)
    assert_same(nd.unique_values(x), expected)
    assert_same(nd.unique_counts(x).counts, counts)
    assert_same(nd.unique_inverse(x).values, expected)


@every(
    values(["int8", "int64", "float32"]),
    values(["int64", "float64"]),
    st.booleans(),
    examples=60,
)
def test_membership(device, first, second, invert):
    with np.errstate(invalid="ignore"):
        second = second.astype(first.dtype if first.dtype.kind == "f" else np.int16)
    result = nd.isin(strided(first, device), strided(second, device), invert=invert)
    assert_same(result, np.isin(first, second, invert=invert))


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_membership_among_few_and_many(device, dtype, invert, seed):
    """Known elements that are few, that are dense, that are neither; limits of the dtype."""
    rng = np.random.default_rng(seed)
    x = numbers(dtype, 2_000, int(rng.integers(2**32)), finite=False)
    x[::2] = rng.integers(0, 120, 1_000)
    for count in (1, 8, 9, 32, 33, 500):
        near = rng.integers(0, 100, count).astype(dtype)
        far = x[rng.integers(0, x.size, count)]
        ends = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype in INTEGERS else [np.nan, -0.0]
        at_ends = [np.append(near[:2], np.array(ends[:1], dtype)), np.append(far, ends[1])]
        close = (ends[1] - near).astype(dtype), (ends[0] + near).astype(dtype)
        for known in (near, far, *(own.astype(dtype) for own in at_ends), *close):
            found = nd.isin(to_ndarray(x, device), to_ndarray(known, device), invert=invert)
            assert_same(found, np.isin(x, known, invert=invert), (count, known))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_the_first_of_equal_extremes_of_long_rows(device, dtype, seed):
    """Wherever both are: in one block or one chunk, or in others."""
    rng = np.random.default_rng(seed)
    for count in (5_000, 33_000, 100_003):
        array = np.ones((2, count), dtype)
        first, second = np.sort(rng.choice(count, 2, replace=False))
        array[:, [first, second]] = np.nan if dtype == "float64" else 9
        for x, expected in (
            (to_ndarray(array, device), first),
            (to_ndarray(array[:, ::-1], device)[:, ::-1], first),
            (to_ndarray(array, device)[:, ::-1], count - 1 - second),
        ):
            assert nd.argmax(x[0]).item() == expected
            assert nd.argmax(x, axis=1).tolist() == [expected, expected]


@pytest.mark.filterwarnings("ignore:invalid value")
@every(
    values(["int64", "float64"]),
    values(["int64", "float64"]),
    st.sampled_from(["left", "right"]),
    examples=70,
)
def test_places_in_a_sorted_vector(device, known, wanted, side):
    known, wanted = known.ravel(), wanted.astype(known.dtype)
    order = np.argsort(known, stable=True)
    result = nd.searchsorted(
        strided(known, device), strided(wanted, device), side=side, sorter=to_ndarray(order, device)
    )
    assert_same(result, np.asarray(np.searchsorted(known, wanted, side=side, sorter=order)))


def test_a_sorter_of_another_length_raises():
    x = nd.asarray([30.0, 10.0, 20.0])
    with pytest.raises(ValueError, match=r"'sorter' must have shape \(3,\), got \(2,\)"):
        nd.searchsorted(x, 25.0, sorter=nd.asarray([1, 2]))
    with pytest.raises(TypeError, match="'sorter'"):
        nd.searchsorted(x, 25.0, sorter=[1, 2, 0])


WRONG = [
    (lambda x: nd.sum(x, axis=2), IndexError, "sum.*'axis'.*-2 to 1.*2"),
    (lambda x: nd.sum(x, axis=(0, 0)), ValueError, "sum"),
    (lambda x: nd.max(x[:0]), ValueError, "max"),
    (lambda x: nd.argmin(x[:0], axis=0), ValueError, "argmin"),
    (lambda _: nd.sum([1, 2]), TypeError, "sum.*'x'.*list"),
    (lambda x: nd.sum(x, dtype="floaty"), TypeError, "sum.*'dtype'.*floaty"),
    (lambda x: nd.cumulative_sum(x), ValueError, "cumulative_sum.*'axis'"),
    (lambda x: nd.sort(x, axis=5), IndexError, "sort.*'axis'.*-2 to 1.*5"),
    (lambda x: nd.searchsorted(x, x), ValueError, "searchsorted.*'x1'"),
    (lambda x: nd.searchsorted(x[0], x, side="up"), ValueError, "side.*'up'"),
    (lambda x: nd.nonzero(x[0, 0]), ValueError, "nonzero"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_what_raises(call, error, text):
    with pytest.raises(error, match=text):
        call(nd.ones((2, 3)))
