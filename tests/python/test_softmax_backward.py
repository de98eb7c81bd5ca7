# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax_backward against its definition, torch's autograd, finite differences, and bad calls."""

from __future__ import annotations

import arrays
import bad_calls
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from bad_calls import Case, f32
from reference import DTYPES, NUMPY_DTYPES
from softmaxes import COLS, draw

import membound
from membound.oracle import softmax as oracle

NOT_JAX = [name for name in FRAMEWORKS if "jax" not in str(name)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_width(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in (*COLS, 20001):
        dy, x = draw(rng, (2, 3, cols), dtype), draw(rng, (2, 3, cols), dtype)
        y = oracle.softmax(x, dtype).values.astype(x.dtype)
        scale = float(rng.choice((1.0, 0.3)))
        right = oracle.softmax_backward(dy, y, dtype, scale=scale)
        dx = membound.softmax_backward(one.array(dy), one.array(y), scale=scale)
        reference.assert_within(one.numpy(dx), right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_have_the_sign_of_a_sum_that_starts_at_zero(dtype):
    one = framework("numpy", dtype)
    kind = NUMPY_DTYPES[dtype]
    for cols in (3, 8, 16, 20, 32, 33, 40, 64, 65, 100, 700):
        dy, y = np.full((5, cols), -0.0, kind), np.full((5, cols), 1 / cols, kind)
        dx = one.numpy(membound.softmax_backward(one.array(dy), one.array(y)))
        assert np.signbit(dx.astype(np.float64)).all(), cols  # -0 - 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_any_strides_have_the_bits_of_contiguous_arrays(name, dtype, seed):
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for cols in (1, 5, 48, 520, 2100):
        dy, y = draw(rng, (4, cols), dtype), draw(rng, (4, cols), dtype)
        right = one.numpy(membound.softmax_backward(one.array(dy), one.array(y)))
        apart = one.array(np.repeat(dy, 2, 1))[:, ::2]
        transposed = one.permute(one.array(np.ascontiguousarray(y.T)), [1, 0])
        target = one.array(np.full((4, 1 + cols), np.nan, dy.dtype))
        membound.softmax_backward(apart, transposed, dx=target[:, 1:])
        now = one.numpy(target)
        assert np.ascontiguousarray(now[:, 1:]).tobytes() == right.tobytes()
        assert np.isnan(now[:, 0].astype(np.float32)).all()
        for written in range(2):
            given = [one.array(dy), one.array(y)]
            membound.softmax_backward(*given, dx=given[written])
            assert one.numpy(given[written]).tobytes() == right.tobytes()
        row = one.broadcast_to(one.array(dy[:1]), (4, cols))
        found = one.numpy(membound.softmax_backward(row, one.array(y)))
        plain = one.array(np.repeat(dy[:1], 4, 0))
        wanted = one.numpy(membound.softmax_backward(plain, one.array(y)))
        assert found.tobytes() == wanted.tobytes()


def test_as_torch_differentiates_it(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    x = torch.randn(2, 5, 9, dtype=torch.float64, requires_grad=True)
    mask = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    dropped = torch.ones(5, 9).tril(3) == 0
    right = torch.softmax((0.4 * x + mask).masked_fill(dropped, -torch.inf), -1)
    dy = torch.randn_like(right)
    right.backward(dy)
    y = membound.softmax(x.detach(), mask.detach(), scale=0.4, causal_offset=3)
    torch.testing.assert_close(y, right.detach(), rtol=1e-12, atol=1e-14)
    dx = membound.softmax_backward(dy, y, scale=0.4)
    torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-13)
    dmask = membound.softmax_backward(dy, y).sum(0)
    torch.testing.assert_close(dmask, mask.grad, rtol=1e-12, atol=1e-13)
    with pytest.raises(RuntimeError, match="requires grad"):
        membound.softmax_backward(dy.requires_grad_(), y)


def test_finite_differences(seed):
    rng = np.random.default_rng(seed)
    x, direction, dy = (rng.standard_normal((3, 12)) for _ in range(3))
    kept = rng.random((3, 12)) < 0.8
    kept[:, 0] = True
    step = 1e-6
    ahead, behind = (
        membound.softmax(x + at * direction, kept, scale=1.7, causal_offset=10)
        for at in (step, -step)
    )
    numeric = ((ahead - behind) * dy).sum() / (2 * step)
    y = membound.softmax(x, kept, scale=1.7, causal_offset=10)
    exact = (membound.softmax_backward(dy, y, scale=1.7) * direction).sum()
    assert abs(numeric - exact) < 1e-8


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_values_that_are_not_finite(name):
    one = framework(name)
    dy = np.array([[np.inf, 1, 1], [np.nan, 1, 1], [1, 2, 3]], np.float32)
    y = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]], np.float32)
    dx = one.numpy(membound.softmax_backward(one.array(dy), one.array(y)))
    assert np.isnan(dx[1]).all()
    assert np.isnan(dx[0, 0])
    assert dx[0, 1] == -np.inf
    np.testing.assert_array_equal(dx[2], [0, 0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_threads_and_batch(dtype, seed):
    rng = np.random.default_rng(seed)
    dy, y = draw(rng, (300, 1111), dtype), draw(rng, (300, 1111), dtype)
    before = membound.cpu_threads()
    many = membound.softmax_backward(dy, y)
    try:
        membound.set_cpu_threads(1)
        assert membound.softmax_backward(dy, y).tobytes() == many.tobytes()
    finally:
        membound.set_cpu_threads(before)
    assert membound.softmax_backward(dy[77:78], y[77:78]).tobytes() == many[77].tobytes()


@pytest.mark.gpu
def test_capture_in_a_cuda_graph(seed):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    for cols in (96, 4096, 100000):
        dy, y, dx = (torch.zeros(64, cols, device="cuda") for _ in range(3))
        membound.softmax_backward(dy, y, dx=dx)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            membound.softmax_backward(dy, y, dx=dx)
        dy.normal_()
        y.uniform_(0, 1 / cols)
        graph.replay()
        right = y * (dy - (dy * y).sum(-1, keepdim=True))
        torch.testing.assert_close(dx, right, rtol=1e-4, atol=1e-6)


def overlapping():
    buffer = f32(5, 4)
    return {"y": buffer[:3], "dx": buffer[1:4]}


CASES: list[Case] = [
    ("a list", lambda: {"dy": [[1.0]]}, TypeError, "dy"),
    ("y as a list", lambda: {"y": [[1.0]]}, TypeError, "y"),
    ("integers", lambda: {"y": np.ones((3, 4), np.int32)}, TypeError, "y"),
    ("no columns", lambda: {"y": f32(3, 0), "dy": f32(3, 0)}, ValueError, "y"),
    ("dy of another shape", lambda: {"dy": f32(3, 5)}, ValueError, "dy"),
    ("dy of another dtype", lambda: {"dy": np.ones((3, 4))}, TypeError, "dy"),
    ("infinite scale", lambda: {"scale": float("nan")}, ValueError, "scale"),
    ("scale of another type", lambda: {"scale": "2"}, TypeError, "scale"),
    ("dx of another shape", lambda: {"dx": f32(3, 5)}, ValueError, "dx"),
    ("dx of another dtype", lambda: {"dx": np.ones((3, 4))}, TypeError, "dx"),
    ("read-only dx", lambda: {"dx": bad_calls.read_only()}, ValueError, "dx"),
    ("overlap", overlapping, ValueError, "dx"),
]


@pytest.mark.parametrize(("call", "expected", "argument"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_bad_calls(call, expected, argument):
    good = {"dy": f32(), "y": f32()}
    bad_calls.check(membound.softmax_backward, call(), good, expected, argument)
