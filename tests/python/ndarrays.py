# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of membound.ndarray beside the same ones of NumPy, drawn by hypothesis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from seeds import SEED

import membound.ndarray as nd

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["bfloat16", "float16", "float32", "float64"]
STANDARD = ["bool", *INTEGERS, "float32", "float64"]
DTYPES = ["bool", *INTEGERS, *FLOATS]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def to_numpy(x: nd.NDArray) -> np.ndarray:
    """Return the elements as NumPy has them; bfloat16 by way of float32."""
    x = x.to_device("cpu")
    if x.dtype == nd.bfloat16:
        return np.asarray(nd.astype(x, nd.float32)).astype(ml_dtypes.bfloat16)
    return np.asarray(x)


def to_ndarray(values: np.ndarray, device: str = "cpu") -> nd.NDArray:
    """Return a copy on a device."""
    if values.dtype == ml_dtypes.bfloat16:
        return nd.astype(nd.asarray(values.astype(np.float32), device=device), nd.bfloat16)
    return nd.asarray(values, device=device, copy=True)


def assert_same(x: Any, values: np.ndarray, what: object = "") -> None:
    """Shape, dtype and every bit pattern that NumPy tells apart, NaN being equal to NaN."""
    assert isinstance(x, nd.NDArray), what
    assert x.shape == values.shape, what
    assert x.dtype.name == values.dtype.name, what
    wide = np.float32 if x.dtype == nd.bfloat16 else values.dtype  # ml_dtypes' NaN is not NumPy's
    found = to_numpy(x).astype(wide)
    np.testing.assert_array_equal(found, values.astype(wide), err_msg=str(what))


def shapes(max_side: int = 5, min_dims: int = 0, max_dims: int = 4) -> st.SearchStrategy:
    return of_numpy.array_shapes(
        min_dims=min_dims, max_dims=max_dims, min_side=0, max_side=max_side
    )


def numbers(dtype: str, count: int, seed: int, *, finite: bool) -> np.ndarray:
    """Small numbers, which repeat, and unless finite the extremes of the dtype too."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        near = rng.integers(max(-9, limits.min), 10, count).astype(dtype)
        extremes = rng.choice(np.array([limits.min, limits.max], dtype=dtype), count)
    else:
        near = (rng.integers(-12, 13, count) / 4 * rng.choice([1, -1], count)).astype("f4")
        extremes = rng.choice([np.nan, np.inf, -np.inf], count)
    some = rng.random(count) < (0 if finite else 0.15)
    return np.where(some, extremes, near).astype(numpy_dtype(dtype))


@st.composite
def values(draw, dtypes=DTYPES, shape=None, *, finite=False):
    """A NumPy array of a shape, whose strides are of any sign and any order."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(shapes()) if shape is None else shape
    order = draw(st.permutations(range(len(shape))))
    size = [shape[axis] for axis in order]
    base = numbers(dtype, math.prod(shape), draw(st.integers(0, 2**32 - 1)), finite=finite)
    turned = draw(st.integers(0, 2 ** len(shape) - 1))
    steps = tuple(slice(None, None, -1 if turned >> axis & 1 else 1) for axis in range(len(shape)))
    in_order = base.reshape(size).transpose([order.index(axis) for axis in range(len(shape))])
    return in_order[(*steps, ...)]


def strided(values: np.ndarray, device: str) -> nd.NDArray:
    """Return an array on a device with the values, and with the strides of a NumPy array."""
    order = sorted(range(values.ndim), key=lambda axis: -abs(values.strides[axis]))
    turned = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in values.strides)
    plain = np.ascontiguousarray(values[turned].transpose(order))
    x = to_ndarray(plain.reshape([values.shape[axis] for axis in order]), device)
    return x.permute_dims(tuple(order.index(axis) for axis in range(values.ndim)))[turned]


def every(*strategies: st.SearchStrategy, examples: int) -> Callable[[Callable], Callable]:
    """Run a test of (device, *drawn) on every device, from the session's seed."""

    def decorate(check: Callable) -> Callable:
        @pytest.mark.parametrize("device", DEVICES)
        @functools.wraps(check, updated=())
        def test(device):
            @hypothesis.seed(SEED)
            @hypothesis.settings(max_examples=examples)
            @hypothesis.given(st.tuples(*strategies))
            def run(drawn):
                check(device, *drawn)

            run()

        del test.__wrapped__  # pytest would take its parameters for fixtures
        return test

    return decorate
