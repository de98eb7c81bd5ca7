# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of every kind, read and written, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from ndarrays import (
    DEVICES,
    DTYPES,
    assert_same,
    every,
    numbers,
    shapes,
    strided,
    to_ndarray,
    values,
)

import membound.ndarray as nd


@st.composite
def basic_cases(draw):
    x = draw(values())
    return x, draw(of_numpy.basic_indices(x.shape, allow_newaxis=True))


@st.composite
def array_keys(draw):
    """An array, and a key with index arrays, masks, integers, slices, None and Ellipsis."""
    x = draw(values(shape=draw(shapes(min_dims=1, max_dims=4).filter(lambda s: 0 not in s))))
    common = draw(shapes(max_side=3, max_dims=2))
    key, axis = [], 0
    while axis < x.ndim:
        kind = draw(st.sampled_from(("array", "array", "integer", "slice", "mask", "ellipsis")))
        length = x.shape[axis]
        if kind == "ellipsis":
            if Ellipsis not in [part for part in key if not isinstance(part, np.ndarray)]:
                key.append(Ellipsis)
                axis += draw(st.integers(0, x.ndim - axis))
            continue
        if kind == "array":
            dtype = draw(st.sampled_from(("int64", "int32", "int8", "uint8")))
            lowest = -length if dtype[0] == "i" else 0
            indices = st.integers(lowest, length - 1)
            key.append(draw(of_numpy.arrays(dtype, common, elements=indices)))
        elif kind == "integer":
            key.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            key.append(draw(st.slices(length)))
        elif not any(isinstance(part, np.ndarray) for part in key):
            # Two masks or a mask and an array need equal numbers of elements.
            covered = draw(st.integers(0, x.ndim - axis))
            key.append(draw(of_numpy.arrays(bool, x.shape[axis : axis + covered])))
            common = (int(key[-1].sum()),)
            axis += covered - 1
        else:
            continue
        axis += 1
    if not any(isinstance(part, np.ndarray) for part in key):
        key.insert(0, np.asarray(draw(st.booleans())))
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return x, tuple(key)


def translated(key, device):
    if isinstance(key, tuple):
        return tuple(translated(part, device) for part in key)
    return nd.asarray(np.array(key), device=device) if isinstance(key, np.ndarray) else key


@every(basic_cases(), examples=150)
def test_basic_keys_give_views(device, case):
    array, key = case
    x = strided(array, device)
    view = x[key]
    assert_same(view, np.asarray(array[key]), key)
    if view.size:
        first = nd.zeros((), dtype=x.dtype, device=device)
        view[...] = first
        assert bool(nd.all(x[key] == first))


@every(basic_cases(), st.data(), examples=90)
def test_writing_to_basic_keys(device, case, data):
    array, key = case
    expected = np.array(array)
    x = strided(array, device)
    part = np.asarray(array[key])
    shape = tuple(length if data.draw(st.booleans()) else 1 for length in part.shape)
    value = data.draw(values([array.dtype.name], shape))
    expected[key] = value
    x[key] = strided(value, device)
    assert_same(x, expected, key)


@every(array_keys(), examples=180)
def test_keys_with_arrays(device, case):
    array, key = case
    assert_same(strided(array, device)[translated(key, device)], np.asarray(array[key]), key)


@every(array_keys(), st.data(), examples=90)
def test_writing_to_keys_with_arrays(device, case, data):
    """Where an element is named twice the value is the same for both: any may win."""
    array, key = case
    expected = np.array(array)
    x = strided(array, device)
    value = data.draw(values([array.dtype.name], ()))
    expected[key] = value
    x[translated(key, device)] = strided(value, device)
    assert_same(x, expected, key)


@every(values(shape=(4, 3)), st.permutations(range(4)), examples=30)
def test_writing_rows_in_another_order(device, array, order):
    expected = np.array(array)
    x = strided(array, device)
    expected[list(order)] = np.array(array)
    x[nd.asarray(list(order), device=device)] = strided(array, device)
    assert_same(x, expected)


@every(values(), st.data(), examples=40)
def test_a_mask_takes_a_value_for_each_element(device, array, data):
    mask = data.draw(of_numpy.arrays(bool, array.shape))
    count = int(mask.sum())
    value = data.draw(values([array.dtype.name], (count,)))
    expected = np.array(array)
    expected[mask] = value
    x = strided(array, device)
    x[nd.asarray(mask, device=device, copy=True)] = strided(value, device)
    assert_same(x, expected)


@st.composite
def overlaps(draw):
    """Two keys of one array whose results have one shape."""
    length = draw(st.integers(2, 300))
    count = draw(st.integers(1, length))
    steps = []
    for _ in range(2):
        most = (length - 1) // max(count - 1, 1)
        step = draw(st.integers(1, max(1, min(most, 3))))
        first = draw(st.integers(0, length - 1 - (count - 1) * step))
        last = first + (count - 1) * step
        forward = slice(first, last + 1, step)
        backward = slice(last, first - 1 if first else None, -step)
        steps.append(draw(st.sampled_from((forward, backward))))
    return length, steps[0], steps[1]


@every(overlaps(), st.sampled_from(DTYPES), examples=120)
def test_overlapping_writes_read_before_they_write(device, case, dtype):
    length, target, source = case
    for rows in (1, 3):
        array = (np.arange(rows * length) % 120).reshape(rows, length).astype("f4")
        x = nd.astype(to_ndarray(array, device), dtype)
        expected = np.array(nd.astype(x, nd.float32).to_device("cpu"))
        expected[:, target] = np.array(expected[:, source])
        x[:, target] = x[:, source]
        assert_same(nd.astype(x, nd.float32), expected, case)


@pytest.mark.parametrize("device", DEVICES)
def test_a_transposed_copy_of_itself(device):
    array = np.arange(49.0).reshape(7, 7)
    x = to_ndarray(array, device)
    x[...] = x.T
    assert_same(x, array.T)
    x += x.T
    assert_same(x, array.T + array)


X = nd.reshape(nd.arange(6), (2, 3))
WRONG_KEYS = [
    (2, IndexError, "index"),
    ((0, 0, 0), IndexError, "2 indices, got 3"),
    ((..., ...), IndexError, "llipsis"),
    (nd.asarray([0, 2]), IndexError, "2"),
    (nd.asarray([0.0]), IndexError, "float64"),
    (nd.asarray([True, False, True]), IndexError, r"\(2,\)"),
    ((nd.asarray([0, 1]), nd.asarray([0, 1, 1])), (IndexError, ValueError), "shape|broadcast"),
    ("name", IndexError, "str"),
    ((nd.asarray([0]), 1.5), IndexError, "float"),
]


@pytest.mark.parametrize(("key", "error", "text"), WRONG_KEYS)
def test_wrong_keys(key, error, text):
    with pytest.raises(error, match=text):
        X[key]
    with pytest.raises(error, match=text):
        X[key] = 1


WRONG_VALUES = [
    (nd.int64, 1.5, TypeError),
    (nd.int8, 300, ValueError),
    (nd.uint8, -1, ValueError),
    (nd.int64, nd.asarray(1.5), TypeError),
    (nd.bool, nd.asarray(1), TypeError),
    (nd.float32, nd.ones(4), ValueError),
    (nd.float32, "text", TypeError),
    (nd.float32, 1j, TypeError),
]


@pytest.mark.parametrize(
    "key", [..., slice(0, 2), nd.asarray([1, 0]), nd.asarray([True, True, True])], ids=repr
)
@pytest.mark.parametrize(("dtype", "value", "error"), WRONG_VALUES)
def test_values_that_an_assignment_does_not_take(dtype, value, error, key):
    x = nd.zeros(3, dtype=dtype)
    with pytest.raises(error):
        x[key] = value
    assert not nd.any(x)


@pytest.mark.parametrize("key", [0, slice(0, 1), nd.asarray([0]), nd.asarray([True, False])])
def test_one_value_is_taken_by_every_kind_of_key(key):
    for dtype, value in (("uint64", nd.asarray(1)), ("int8", nd.uint64), ("bool", 1)):
        x = nd.zeros(2, dtype=getattr(nd, dtype))
        x[key] = nd.asarray(1, dtype=value) if value is nd.uint64 else value
        assert x.tolist() == [1, 0]


@pytest.mark.parametrize(("key", "value"), [([0, 9], 1), (nd.asarray([2**63], dtype=nd.uint64), 1)])
def test_errors_name_what_was_written(key, value):
    x = nd.zeros(3)
    with pytest.raises(IndexError, match=r"^indexing: index [0-9]+ is out of range"):
        x[key]
    with pytest.raises(IndexError, match=r"^__setitem__: index [0-9]+ is out of range"):
        x[key] = value


def test_assignment_casts_within_a_kind():
    x = nd.zeros(2, dtype=nd.float32)
    x[0] = nd.asarray(1.5, dtype=nd.float64)
    x[1] = nd.asarray(3, dtype=nd.int8)
    assert x.tolist() == [1.5, 3.0]


def test_a_repeated_element_takes_no_writes():
    x = nd.broadcast_to(nd.zeros(3), (2, 3))
    with pytest.raises(ValueError, match=r"overlap|broadcast|share"):
        x[0] = 1.0


@pytest.mark.parametrize("device", DEVICES)
def test_an_assignment_may_write_over_its_indices(device, seed):
    rng = np.random.default_rng(seed)
    known, values = rng.permutation(1000), rng.integers(0, 2**62, 1000)
    wanted = known.copy()
    wanted[known] = values
    x = to_ndarray(known, device)
    x[x] = to_ndarray(values, device)
    assert_same(x, wanted)


def test_an_assignment_may_write_over_indices_of_another_array(seed):
    """Which shares the memory of a NumPy array, as the one that is written does."""
    rng = np.random.default_rng(seed)
    known, values = rng.permutation(1000), rng.integers(0, 2**62, 1000)
    wanted = known.copy()
    wanted[known] = values
    x, indices = nd.from_dlpack(known), nd.from_dlpack(known)
    x[indices] = nd.asarray(values)
    assert_same(x, wanted)


@pytest.mark.parametrize("first", [0, 1, 500, 999])
def test_an_assignment_may_write_over_some_of_its_indices(first, seed):
    rng = np.random.default_rng(seed)
    known, values = rng.integers(0, 1000, 2000), rng.integers(0, 1000, 1000)
    wanted = known.copy()
    wanted[:1000][known[first : first + 1000]] = values
    x = nd.asarray(known, copy=True)
    part = x[:1000]
    part[x[first : first + 1000]] = nd.asarray(values)
    assert_same(x, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_the_last_of_several_values_for_an_element_stays(device, dtype, seed):
    rng = np.random.default_rng(seed)
    values = numbers(dtype, 5_000, int(rng.integers(2**32)), finite=True)
    indices = rng.integers(0, 700, 5_000)
    wanted = np.zeros(700, values.dtype)
    wanted[indices] = values
    for step in (1, 3, -1):
        x = nd.zeros(700 * abs(step), dtype=dtype, device=device)[::step]
        x[nd.asarray(indices, device=device)] = to_ndarray(values, device)
        assert_same(x.copy(), wanted)
        with pytest.raises(IndexError, match="700"):
            x[nd.asarray(np.append(indices, 700), device=device)] = False
        assert_same(x.copy(), wanted)


def test_an_assignment_may_write_over_its_values_in_another_array(seed):
    rng = np.random.default_rng(seed)
    known, indices = rng.random(1000), rng.permutation(1000)
    wanted = known.copy()
    wanted[indices] = known.copy()
    x, values = nd.from_dlpack(known), nd.from_dlpack(known)
    x[nd.asarray(indices)] = values
    assert_same(x, wanted)


def test_empty_arrays_take_assignments():
    """NumPy gives them strides of 0, as to elements that share memory."""
    x = nd.asarray(np.zeros((0, 3)))
    x[...] = 5
    x[:, 0] = 1
    x[nd.zeros(0, dtype=nd.bool)] = 2
    assert x.shape == (0, 3)
