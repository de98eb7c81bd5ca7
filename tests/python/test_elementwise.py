# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Every element-wise op against the formula of its table, in all frameworks, with its gradient."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from reference import DTYPES, NUMPY_DTYPES, assert_within

import membound
from membound._elementwise import OPS
from membound.oracle import elementwise

FORWARD = [name for name in OPS if f"{name}_backward" in OPS]
SPREAD = 40.0


def draw(rng, name, shape, dtype):
    return [(SPREAD * rng.standard_normal(shape)).astype(NUMPY_DTYPES[dtype])
            for _ in OPS[name].inputs]  # fmt: skip


def numbers_of(name, at=0):
    return [values[at % len(values)] for values in OPS[name].samples.values()]


def check(name, found, inputs, numbers, what):
    right = elementwise(OPS[name].formula, inputs, numbers, inputs[-1].dtype.name)
    assert_within(found, right, what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework_name", FRAMEWORKS)
@pytest.mark.parametrize("name", OPS)
def test_every_width(name, framework_name, dtype, seed):
    one, rng = framework(framework_name, dtype), np.random.default_rng(seed)
    function = getattr(membound, name)
    for cols in (1, 2, 7, 8, 33, 64, 257, 1000, 20001):
        numbers = numbers_of(name, cols)
        inputs = draw(rng, name, (2, 3, cols), dtype)
        found = one.numpy(function(*map(one.array, inputs), *numbers))
        check(name, found, inputs, numbers, cols)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework_name", FRAMEWORKS)
@pytest.mark.parametrize("name", OPS)
def test_strides_and_targets_change_no_bit(name, framework_name, dtype, seed):
    one, rng = framework(framework_name, dtype), np.random.default_rng(seed)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    function, numbers = getattr(membound, name), numbers_of(name)
    for cols in (1, 5, 48, 520, 2100):
        *others, last = draw(rng, name, (4, cols), dtype)
        others = [one.array(other) for other in others]
        right = one.numpy(function(*others, one.array(last), *numbers)).tobytes()
        layouts = {
            "every other column": one.array(np.repeat(last, 2, 1))[:, ::2],
            "off by one": one.array(np.pad(last, ((0, 0), (1, 0))))[:, 1:],
            "transposed": one.permute(one.array(np.ascontiguousarray(last.T)), [1, 0]),
        }
        for layout, view in layouts.items():
            found = one.numpy(function(*others, view, *numbers))
            assert np.ascontiguousarray(found).tobytes() == right, (cols, layout)
        target = one.array(np.full((4, 1 + cols), np.nan, last.dtype))
        written = {OPS[name].result: target[:, 1:]}
        function(*others, one.array(last), *numbers, **written)
        now = one.numpy(target)
        assert np.ascontiguousarray(now[:, 1:]).tobytes() == right, cols
        assert np.isnan(now[:, 0].astype(np.float32)).all()
        for at in range(len(OPS[name].inputs)):
            given = [*(one.array(one.numpy(other).copy()) for other in others), one.array(last)]
            assert function(*given, *numbers, **{OPS[name].result: given[at]}) is given[at]
            assert one.numpy(given[at]).tobytes() == right, (cols, at)


@pytest.mark.parametrize("framework_name", FRAMEWORKS)
@pytest.mark.parametrize("name", OPS)
def test_bad_calls_are_refused_by_name(name, framework_name):
    one = framework(framework_name)
    function, numbers = getattr(membound, name), numbers_of(name)
    given = [one.array(np.ones((2, 3), np.float32)) for _ in OPS[name].inputs]
    whole = [one.array(np.ones((2, 3), np.int32)) for _ in OPS[name].inputs]
    with pytest.raises(TypeError, match=rf"{name}: argument '\w+' must be float16, bfloat16"):
        function(*whole, *numbers)
    first = next(iter(OPS[name].samples))
    with pytest.raises(TypeError, match=f"{name}: argument '{first}' must be a"):
        function(*given, "1")
    if len(given) > 1:
        other = one.array(np.ones((2, 4), np.float32))
        with pytest.raises(ValueError, match=rf"{name}: argument '\w+' must have shape"):
            function(other, *given[1:], *numbers)
    if one.takes_out:
        with pytest.raises(ValueError, match=f"{name}: argument '{OPS[name].result}' must have"):
            function(*given, *numbers, **{OPS[name].result: one.array(np.ones(3, np.float32))})


@pytest.mark.parametrize("name", FORWARD)
def test_torch_records_and_compiles_it(name, seed, opcheck):
    torch = arrays.package("torch")
    torch.manual_seed(seed)
    public, numbers = getattr(arrays.package("membound.torch"), name), numbers_of(name)
    x = (SPREAD * torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: public(x, *numbers), x)
    dy = torch.randn(3, 5, dtype=torch.float64)
    right = getattr(membound, f"{name}_backward")(dy, x.detach(), *numbers)
    (dx,) = torch.autograd.grad(public(x, *numbers), x, dy)
    assert torch.equal(dx, right)
    assert torch.equal(torch.autograd.grad(getattr(membound, name)(x, *numbers), x, dy)[0], right)
    opcheck(getattr(torch.ops.membound, name).default, (x, *numbers))
    compiled = torch.compile(lambda x: 2 * public(x, *numbers), fullgraph=True)
    (found,) = torch.autograd.grad(compiled(x), x, dy)
    assert torch.equal(found, 2 * right)
    mapped = torch.func.vmap(lambda x: public(x, *numbers))(x.detach())
    assert torch.equal(mapped, getattr(membound, name)(x.detach(), *numbers))


@pytest.mark.parametrize("name", FORWARD)
def test_jax_differentiates_and_maps_it(name, seed):
    jax = arrays.package("jax")
    public, numbers = getattr(arrays.package("membound.jax"), name), numbers_of(name)
    rng = np.random.default_rng(seed)
    (x,), dy = draw(rng, name, (3, 5), "float32"), rng.standard_normal((3, 5), np.float32)
    right, gradient = jax.jit(lambda x: jax.vjp(lambda x: public(x, *numbers), x))(
        jax.numpy.array(x)
    )
    np.testing.assert_array_equal(right, getattr(membound, name)(x, *numbers))
    np.testing.assert_array_equal(
        gradient(jax.numpy.array(dy))[0], getattr(membound, f"{name}_backward")(dy, x, *numbers)
    )
    mapped = jax.vmap(lambda x: public(x, *numbers), 1, 1)(jax.numpy.array(x))
    np.testing.assert_array_equal(mapped, right)
    with pytest.raises(TypeError, match=f"{name}: argument 'out' must be None for JAX arrays"):
        getattr(membound, name)(jax.numpy.array(x), *numbers, out=x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORWARD)
def test_a_step_is_captured(name, dtype):
    torch = arrays.torch_with_cuda()
    forward, backward = getattr(membound, name), getattr(membound, f"{name}_backward")
    x, numbers = torch.zeros(64, 1000, device="cuda", dtype=getattr(torch, dtype)), numbers_of(name)
    forward(x, *numbers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = forward(x, *numbers)
        dx = backward(y, x, *numbers)
    x.copy_(SPREAD * torch.randn(64, 1000, device="cuda"))
    graph.replay()
    assert torch.equal(y, forward(x, *numbers))
    assert torch.equal(dx, backward(y, x, *numbers))
