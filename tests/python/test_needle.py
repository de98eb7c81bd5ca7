# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The course's array: views over handles, compaction, writes, reductions, tiles, its reprs."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from ndarrays import DEVICES

import membound
from membound import needle
from membound.needle import backend_ndarray as nd

NAMES = ["cpu", "cpu_numpy", *DEVICES[1:]]
SHAPE = (4, 6, 5)


@pytest.fixture(params=NAMES)
def device(request):
    return getattr(nd, request.param)()


@pytest.fixture
def pair(device, seed):
    """An array of the course and the same one of NumPy."""
    values = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return nd.array(values, device=device), values


VIEWS = {
    "permute": (lambda x: x.permute((2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "reshape": (lambda x: x.reshape((2, 2, 30)), lambda x: x.reshape(2, 2, 30)),
    "flat": (lambda x: x.flat, lambda x: x.reshape(-1)),
    "slices": (lambda x: x[1:3, ::2, -4:], lambda x: x[1:3, ::2, -4:]),
    "integers": (lambda x: x[-1, 2:5, 0], lambda x: x[-1:, 2:5, :1]),
    "slices of axes": (
        lambda x: x.permute((1, 2, 0))[2:5, 1:2, :],
        lambda x: x.transpose(1, 2, 0)[2:5, 1:2],
    ),
    "broadcast": (
        lambda x: x[1, :, :].broadcast_to((3, 6, 5)),
        lambda x: np.broadcast_to(x[1:2], (3, 6, 5)),
    ),
    "as_strided": (
        lambda x: x.as_strided((3, 2), (30, 2)),
        lambda x: np.lib.stride_tricks.as_strided(x, (3, 2), (120, 8)),
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(pair, view):
    x, _ = pair
    mine, theirs = (function(own) for function, own in zip(VIEWS[view], pair, strict=True))
    assert mine.shape == theirs.shape
    assert mine.strides == tuple(stride // 4 for stride in theirs.strides)
    assert mine._handle.ptr() == x._handle.ptr()
    np.testing.assert_array_equal(mine.numpy(), theirs)
    packed = mine.compact()
    assert packed.is_compact()
    assert (packed is mine) == mine.is_compact()
    np.testing.assert_array_equal(packed.numpy(), theirs)


def test_writes_to_views(pair):
    x, values = pair
    before = x._handle.ptr()
    x[1:4:2, 2, :] = 4.0
    values[1:4:2, 2] = 4.0
    x[0, 1:3, 2:5] = nd.array(np.arange(6.0).reshape(3, 2), device=x.device).permute((1, 0))
    values[0, 1:3, 2:5] = np.arange(6.0).reshape(3, 2).T
    x.permute((2, 1, 0))[0, :, :] = x.permute((2, 1, 0))[1, :, :]
    values[:, :, 0] = values[:, :, 1]
    assert x._handle.ptr() == before
    np.testing.assert_array_equal(x.numpy(), values)


@pytest.mark.parametrize("name", ["sum", "max"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(pair, name, keepdims):
    x, values = pair
    for axis in (0, 1, 2, -1, (1,), [0]):
        given = axis if isinstance(axis, int) else axis[0]
        expected = getattr(values, name)(axis=given, keepdims=keepdims)
        mine = getattr(x.permute((2, 1, 0)), name)(2 - given % 3, keepdims)
        np.testing.assert_allclose(
            getattr(x, name)(axis, keepdims=keepdims).numpy(), expected, atol=1e-5
        )
        turned = getattr(values.transpose(2, 1, 0), name)(2 - given % 3, keepdims=keepdims)
        np.testing.assert_allclose(mine.numpy(), turned, atol=1e-5)
    everything = getattr(x, name)(keepdims=keepdims)
    assert everything.shape == ((1, 1, 1) if keepdims else (1,))
    np.testing.assert_allclose(everything.numpy().item(), getattr(values, name)(), atol=1e-4)


OPERATORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(pair, name):
    x, values = pair
    function = OPERATORS[name]
    other = values[::-1].copy()
    mine = nd.array(other, device=x.device)
    for left, right, expected in (
        (x, mine, function(values, other)),
        (x.permute((1, 0, 2)), mine.permute((1, 0, 2)), function(values, other).swapaxes(0, 1)),
        (x, 0.5, function(values, np.float32(0.5))),
    ):
        result = function(left, right)
        assert result.is_compact()
        np.testing.assert_allclose(result.numpy(), expected.astype(np.float32), rtol=1e-6)


def test_functions(pair):
    x, values = pair
    positive = np.abs(values) + 0.1
    y = nd.array(positive, device=x.device)
    np.testing.assert_allclose(nd.log(y).numpy(), np.log(positive), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(nd.exp(x).numpy(), np.exp(values), rtol=1e-5)
    np.testing.assert_allclose(nd.tanh(x).numpy(), np.tanh(values), rtol=1e-5)
    np.testing.assert_allclose((y**0.5).numpy(), positive**0.5, rtol=1e-5)
    np.testing.assert_allclose(nd.maximum(x, y).numpy(), np.maximum(values, positive))
    np.testing.assert_allclose(nd.maximum(x, 0.25).numpy(), np.maximum(values, 0.25))
    np.testing.assert_allclose((1 - x).numpy(), 1 - values)


@pytest.mark.parametrize("shape", [(8, 8, 8), (16, 8, 24), (5, 4, 3), (72, 73, 74)])
def test_products(device, shape, seed):
    m, n, p = shape
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, m)), rng.standard_normal((n, p))
    product = nd.array(a, device=device).permute((1, 0)) @ nd.array(b, device=device)
    np.testing.assert_allclose(product.numpy(), a.T @ b, atol=1e-4)


@pytest.mark.parametrize("shape", [*itertools.product((1, 3), (2,), (1, 2))])
def test_products_of_tiles(shape, seed):
    device, rng = nd.cpu(), np.random.default_rng(seed)
    t = device.__tile_size__
    m, n, p = shape
    a, b = rng.standard_normal((m, n, t, t)), rng.standard_normal((n, p, t, t))
    result = nd.NDArray.make((m, p, t, t), device=device)
    handles = (nd.array(own, device=device)._handle for own in (a, b))
    device.matmul_tiled(*handles, result._handle, m * t, n * t, p * t)
    expected = np.einsum("mnij,npjk->mpik", a, b)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-4)


def test_copies_and_constants(pair):
    x, values = pair
    copied = nd.NDArray(x)
    assert copied._handle.ptr() != x._handle.ptr()
    assert x.to(x.device) is x
    there = x.to(nd.cpu())
    assert there.device == nd.cpu()
    np.testing.assert_array_equal(there.numpy(), values)
    np.testing.assert_array_equal(
        nd.full((2, 3), 1.5, device=x.device).numpy(), np.full((2, 3), 1.5)
    )
    np.testing.assert_array_equal(x.device.one_hot(3, [2, 0]).numpy(), np.eye(3)[[2, 0]])
    assert nd.empty([1, 2], device=x.device).shape == (1, 2)
    assert x.device.randn(3, 4).shape == (3, 4)


def test_what_it_prints():
    homework, lecture = (nd.array([1.0, 2.0], device=own) for own in (nd.cpu(), nd.numpy_device()))
    assert repr(homework) == "NDArray([1. 2.], device=cpu())"
    assert repr(lecture) == "NDArray([1. 2.], device=numpy_device())"
    assert [repr(own) for own in nd.all_devices()] == ["cpu()", "cuda()", "cpu_numpy()"]
    assert str(homework) == "[1. 2.]"
    assert nd.default_device() == nd.cpu_numpy() == nd.numpy_device() != nd.cpu()
    assert nd.cuda().enabled() == (membound.cuda_status().device_count > 0)


BACK_END = ["__device_name__", "Array", "compact", "ewise_setitem", "scalar_setitem", "fill"]
BACK_END += ["to_numpy", "from_numpy", "matmul", "reduce_max", "reduce_sum", "scalar_power"]
BACK_END += ["ewise_log", "ewise_exp", "ewise_tanh"]
BACK_END += [
    f"{kind}_{op}"
    for kind in ("ewise", "scalar")
    for op in ("add", "mul", "div", "maximum", "eq", "ge")
]


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_back_ends_are_modules(name):
    module = importlib.import_module(f"membound.needle.ndarray_backend_{name}")
    assert [own for own in BACK_END if not hasattr(module, own)] == []
    assert module.__device_name__ == name
    assert hasattr(module, "matmul_tiled") == hasattr(module, "__tile_size__") == (name == "cpu")
    out = module.Array(4)
    module.fill(out, 2.5)
    assert out.size == 4
    assert module.to_numpy(out, (2, 2), (2, 1), 0).tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert needle.backend_ndarray.cpu is needle.cpu


X = nd.array(np.ones((2, 3)), device=nd.cpu())
REFUSED = [
    (lambda: X.reshape((4,)), ValueError),
    (lambda: X.permute((1, 0)).reshape((6,)), ValueError),
    (lambda: X.permute((0, 0)), AssertionError),
    (lambda: X.broadcast_to((2, 4)), AssertionError),
    (lambda: X[0], AssertionError),
    (lambda: X[0, 3], IndexError),
    (lambda: X[1:1, 0], AssertionError),
    (lambda: X[::-1, 0], AssertionError),
    (lambda: X + nd.array([1.0], device=nd.cpu()), AssertionError),
    (lambda: X @ X, AssertionError),
    (lambda: X.sum(()), ValueError),
    (lambda: X.sum((0, 1)), AssertionError),
    (lambda: nd.array([1], dtype="float64"), AssertionError),
    (lambda: X.as_strided((4, 4), (4, 1)).numpy(), ValueError),
]


@pytest.mark.parametrize(("call", "error"), REFUSED)
def test_what_is_refused(call, error):
    with pytest.raises(error):
        call()
