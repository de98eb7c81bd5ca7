# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The array as a Python object: text, pickles, copies, conversion, the namespace it names."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import strategies as st
from ndarrays import (
    DEVICES,
    DTYPES,
    FLOATS,
    assert_same,
    every,
    shapes,
    strided,
    values,
)

import membound
import membound.ndarray as nd

FUNCTIONS = [
    name
    for name in nd.__all__
    if getattr(getattr(nd, name), "__module__", "").startswith("membound.ndarray")
    and callable(getattr(nd, name))
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_examples(name):
    function = getattr(nd, name)
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(function, name, globs={"nd": nd}):
        runner.run(test)
    results = runner.summarize()
    assert results.attempted >= 1
    assert results.failed == 0


def same_text(array):
    if np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("older releases print long arrays, and large numbers of 32 bits, differently")
    x = strided(array, "cpu")
    assert repr(x) == repr(array)
    assert str(x) == str(array)


EXACT = st.floats(allow_nan=True, width=16)


@every(values([dtype for dtype in DTYPES if dtype != "bfloat16"]), examples=90)
def test_text_is_numpys(device, array):
    if device == "cpu":
        same_text(array)


@pytest.mark.filterwarnings("ignore:overflow")
@every(
    st.lists(EXACT | st.floats() | st.floats(-1, 1), max_size=12),
    st.sampled_from(["float16", "float32", "float64"]),
    st.sampled_from([(-1,), (1, -1), (-1, 1)]),
    examples=180,
)
def test_text_of_floats_is_numpys(device, numbers, dtype, shape):
    if device == "cpu" and numbers:
        with np.errstate(all="ignore"):
            same_text(np.array(numbers).astype(dtype).reshape(shape))


LONG = [
    np.arange(1001.0),
    np.arange(1000) * 12345,
    np.linspace(0, 1, 40),
    np.ones((3, 400, 2), dtype=np.float32),
    np.arange(24).reshape(2, 3, 4),
    np.zeros((1001, 0)),
    np.zeros((0,), dtype=np.int8),
    np.array([True, False]),
    np.array(True),
    np.array([1e-9, 1.0]),
    np.array([1.0, np.nan, -np.inf]),
    np.array([np.inf, np.nan]),
    np.full((2, 30), 123456.789),
    np.arange(5000).reshape(50, 100) - 2500,
]


@pytest.mark.parametrize("array", LONG, ids=lambda array: f"{array.dtype}{array.shape}")
def test_text_of_long_arrays_is_numpys(array):
    same_text(array)


def test_text_of_bfloat16():
    """ml_dtypes' own text has neither the points nor the alignment."""
    x = nd.asarray([[1.0, -0.5], [3.140625, nd.nan]], dtype=nd.bfloat16)
    assert repr(x) == "array([[ 1.  , -0.5 ],\n       [ 3.14,   nan]], dtype=bfloat16)"
    assert repr(nd.asarray([3e38, 1e-30], dtype=nd.bfloat16)) == (
        "array([3.e+38, 1.e-30], dtype=bfloat16)"
    )
    assert str(x[1, 0]) == "3.14"


@pytest.mark.parametrize("name", ["__array_namespace__", "__dlpack__", "to_device"])
def test_methods_with_keywords_have_a_signature(name):
    names = {
        "__array_namespace__": ["api_version"],
        "__dlpack__": ["stream", "max_version", "dl_device", "copy"],
        "to_device": ["device", "stream"],
    }
    assert list(inspect.signature(getattr(nd.ones(1), name)).parameters) == names[name]


@pytest.mark.gpu
def test_text_names_the_gpu():
    assert repr(nd.ones(2, device="cuda")) == "array([1., 1.], device='cuda:0')"


@pytest.mark.parametrize("number", [1.5, 2, True])
def test_a_format_is_of_the_number(number):
    assert f"{nd.asarray(number):5}" == f"{number:5}"
    assert f"{nd.asarray(2.0):.3f}" == "2.000"
    assert f"{nd.asarray([1, 2])}" == "[1 2]"


@every(values(), examples=40)
def test_pickles(device, array):
    x = strided(array, device)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(x, protocol))
        assert_same(back, array)
        assert back.device == x.device


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name):
    dtype = getattr(nd, name)
    assert dtype.name == repr(dtype) == name
    assert dtype == nd.ones(1, dtype=name).dtype == pickle.loads(pickle.dumps(dtype))
    assert hash(dtype) == hash(nd.ones(1, dtype=dtype).dtype)
    assert len({getattr(nd, other) for other in DTYPES}) == len(DTYPES)
    assert dtype != name.upper()


@every(values(), examples=30)
def test_copies_are_independent(device, array):
    x = strided(array, device)
    copies = [copy.copy(x), copy.deepcopy(x), nd.asarray(x, copy=True), x.copy()]
    if array.size:
        x[...] = nd.ones((), dtype=x.dtype, device=device)
    for one in copies:
        assert_same(one, array)


@pytest.mark.parametrize("device", DEVICES)
def test_length_and_iteration(device):
    x = nd.reshape(nd.arange(6, device=device), (3, 2))
    assert len(x) == 3
    assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
    first, second, _ = x
    second[...] = 9
    assert int(x[1, 0]) == 9  # rows are views
    assert first.tolist() == [0, 1]
    for refused in (len, iter, list):
        with pytest.raises(TypeError):
            refused(x[0, 0])


@pytest.mark.parametrize("device", DEVICES)
def test_numbers(device):
    x = nd.asarray(3, device=device)
    assert (int(x), float(x), complex(x), bool(x)) == (3, 3.0, 3 + 0j, True)
    assert [10, 11, 12, 13][x] == 13
    assert float(nd.asarray(0.1, dtype=nd.float32, device=device)) == float(np.float32(0.1))
    for convert in (int, float, complex, bool):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            convert(nd.ones(2, device=device))
    with pytest.raises(TypeError, match="float64"):
        range(nd.asarray(1.0, device=device))


def test_hashing_is_refused():
    with pytest.raises(TypeError, match="unhashable"):
        hash(nd.ones(1))
    with pytest.raises(TypeError, match="unhashable"):
        {nd.ones(1): 0}


def test_the_namespace():
    x = nd.ones(1)
    assert x.__array_namespace__() is nd is membound.ndarray
    assert x.__array_namespace__(api_version="2025.12") is nd
    with pytest.raises(ValueError, match="2019"):
        x.__array_namespace__(api_version="2019.12")
    info = nd.__array_namespace_info__()
    assert str(info.devices()[0]) == "cpu"
    assert len(info.devices()) == 1 + membound.cuda_status().device_count
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.capabilities()["max dimensions"] >= 32
    assert not hasattr(nd, "complex64")


@pytest.mark.parametrize("name", FLOATS)
def test_ranges_of_floats(name):
    import ml_dtypes

    mine, theirs = nd.finfo(name), ml_dtypes.finfo(name)
    for field in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(mine, field) == float(getattr(theirs, field)), field
    assert mine.dtype == getattr(nd, name)


def test_it_is_imported_when_asked_for_and_needs_no_numpy():
    code = (
        "import sys, membound; assert 'membound.ndarray' not in sys.modules;"
        "nd = membound.ndarray; x = nd.arange(6.0).reshape((2, 3)); x[x > 2] = 0.0;"
        "print(repr(nd.sum(x @ x.T))); assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "array(5.)\n"


@every(shapes(), examples=30)
def test_shape_and_sizes(device, shape):
    x = nd.zeros(shape, dtype=nd.int16, device=device)
    array = np.zeros(shape, dtype=np.int16)
    assert (x.shape, x.ndim, x.size, x.nbytes) == (shape, array.ndim, array.size, array.nbytes)


def test_32_axes():
    x = nd.reshape(nd.arange(2), (1,) * 31 + (2,))
    assert x.ndim == 32
    assert nd.sum(x + x, axis=tuple(range(31))).tolist() == [0, 2]
    assert x[(0,) * 31].tolist() == [0, 1]
    assert nd.permute_dims(x, tuple(reversed(range(32)))).shape[0] == 2
