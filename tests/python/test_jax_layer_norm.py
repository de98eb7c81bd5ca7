# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm of membound.jax under jit, vmap, grad and scan, against the formula in JAX."""

from __future__ import annotations

import importlib
import itertools

import arrays
import gradients
import numpy as np
import pytest
import reference
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle import norms

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def draw(one, seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: one.array(rng.standard_normal(shape))


def norm(x, weight=None, bias=None, *, offset=0.0, eps=1e-6):
    """(out, mean, rstd), differentiated by JAX step by step."""
    mean = x.mean(-1)
    apart = x - mean[..., None]
    rstd = jax.lax.rsqrt((apart * apart).mean(-1) + eps)
    y = apart * rstd[..., None]
    y = y if weight is None else y * (weight + offset)
    return y if bias is None else y + bias, mean, rstd


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (5, 3, 129), (2, 1, 3, 2, 40), (0, 8)])
def test_inside_jit(one, dtype, shape, seed):
    rng = np.random.default_rng(seed)
    x, residual = (rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[-1:]).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    there = map(one.array, (x, residual, weight, bias))

    @jax.jit
    def both(x, residual, weight, bias):
        norm = mbj.layer_norm(x, weight, bias, eps=1e-5, weight_offset=1.0, return_stats=True)
        return norm, mbj.add_layer_norm(x, residual, None, bias), mbj.layer_norm(x, weight)

    (y, *statistics), (added, total), plain = both(*there)
    statistics = tuple(map(one.numpy, statistics))
    wanted = norms.layer_norm(x, weight, bias, dtype, eps=1e-5, weight_offset=1.0)
    reference.assert_centred_right(one.numpy(y), wanted, statistics)
    wanted, right = norms.add_layer_norm(x, residual, None, bias, dtype)
    reference.assert_centred_right(one.numpy(added), wanted)
    np.testing.assert_array_equal(one.numpy(total), right)
    reference.assert_centred_right(one.numpy(plain), norms.layer_norm(x, weight, None, dtype))


@pytest.mark.parametrize("parameters", list(itertools.product([True, False], repeat=2)), ids=str)
@pytest.mark.parametrize("shape", [(7,), (5, 64), (2, 3, 33)])
def test_grad_of_layer_norm(draw, shape, parameters):
    x, dy = draw(*shape), draw(*shape)
    given = [draw(shape[-1]) if there else None for there in parameters]
    offset = 1.0 if parameters[0] else 0.0
    wrt = (0, *(at for at, there in enumerate(parameters, 1) if there))
    ours = lambda *a: (membound.layer_norm(*a, weight_offset=offset) * dy).sum()  # noqa: E731
    right = lambda *a: (norm(*a, offset=offset)[0] * dy).sum()  # noqa: E731
    wanted = jax.grad(right, wrt)(x, *given)
    for function in (jax.grad(ours, wrt), jax.jit(jax.grad(ours, wrt))):
        assert_close(function(x, *given), wanted)
    for at, argument in enumerate(wrt):
        assert_close(jax.grad(ours, argument)(x, *given), wanted[at])


def test_grad_of_add_layer_norm(draw):
    x, residual, dy, dtotal = (draw(4, 5, 24) for _ in range(4))
    weight, bias = draw(24), draw(24)

    def ours(*a):
        y, total = mbj.add_layer_norm(*a)
        return (y * dy).sum() + (total * dtotal).sum()

    def right(x, residual, weight, bias):
        return (norm(x + residual, weight, bias)[0] * dy).sum() + ((x + residual) * dtotal).sum()

    every = (0, 1, 2, 3)
    wanted = jax.grad(right, every)(x, residual, weight, bias)
    for function in (ours, jax.checkpoint(ours), jax.jit(ours)):
        assert_close(jax.grad(function, every)(x, residual, weight, bias), wanted)
    for part, argument in itertools.product((0, 1), every):
        alone = lambda *a, part=part: (mbj.add_layer_norm(*a)[part] * dy).sum()  # noqa: E731
        formula = lambda x, r, w, b, part=part: (  # noqa: E731
            ((norm(x + r, w, b)[0], x + r)[part] * dy).sum()
        )
        assert_close(
            jax.grad(alone, argument)(x, residual, weight, bias),
            jax.grad(formula, argument)(x, residual, weight, bias),
        )


def test_grad_through_the_statistics(draw):
    """They are outputs like another, each with a derivative of its own."""
    x, weight, bias, dy, dmean, drstd = (
        draw(6, 20), draw(20), draw(20), draw(6, 20), draw(6), draw(6)
    )  # fmt: skip

    def loss(function, which):
        def total(*inputs):
            y, mean, rstd = function(*inputs)
            parts = (y * dy).sum(), (mean**2 * dmean).sum(), (rstd**2 * drstd).sum()
            return sum(part for part, wanted in zip(parts, which, strict=True) if wanted)

        return total

    ours = lambda *a: mbj.layer_norm(*a, return_stats=True)  # noqa: E731
    for which in itertools.product((True, False), repeat=3):
        if any(which):
            got = jax.grad(loss(ours, which), (0, 1, 2))(x, weight, bias)
            assert_close(got, jax.grad(loss(norm, which), (0, 1, 2))(x, weight, bias))

    def added(*inputs):
        y, _, mean, rstd = mbj.add_layer_norm(*inputs, return_stats=True)
        return y, mean, rstd

    def right(x, residual, weight, bias):
        return norm(x + residual, weight, bias)

    arguments, every = (x, dy, weight, bias), (True, True, True)
    got = jax.grad(loss(added, every), (0, 1, 2, 3))(*arguments)
    assert_close(got, jax.grad(loss(right, every), (0, 1, 2, 3))(*arguments))


AXES = [axes for axes in itertools.product((None, 0), repeat=3) if any(a == 0 for a in axes)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_vmap_and_vmap_of_grad(draw, axes):
    """x, weight and bias mapped or not: each element of the batch has its own gradients."""
    shapes = [(5, 33), (33,), (33,)]
    inputs = [
        draw(*(shape if axis is None else (3, *shape)))
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    dy = draw(5, 33)
    values = jax.vmap(lambda *a: mbj.layer_norm(*a, return_stats=True), axes)(*inputs)
    assert_close(values, jax.vmap(norm, axes)(*inputs))
    ours = jax.grad(lambda *a: (mbj.layer_norm(*a) * dy).sum(), (0, 1, 2))
    right = jax.grad(lambda *a: (norm(*a)[0] * dy).sum(), (0, 1, 2))
    wanted = jax.vmap(right, axes)(*inputs)
    for function in (jax.vmap(ours, axes), jax.jit(jax.vmap(ours, axes))):
        assert_close(function(*inputs), wanted)


def test_vmap_of_a_bias_without_a_weight_and_of_the_added_form(draw):
    x, residual, dy = draw(3, 4, 20), draw(4, 20), draw(4, 20)
    bias, biases = draw(20), draw(3, 20)

    def forward(x, residual, bias):
        y, total, mean, rstd = mbj.add_layer_norm(x, residual, None, bias, return_stats=True)
        found = mbj.add_layer_norm_backward(y, dy, total, None, mean, rstd)
        only = mbj.layer_norm_backward(dy, total, None, mean, rstd, need_dx=False)
        return y, total, mean, rstd, found[0], found[2], only[2]

    for arguments, axes in (
        ((x, residual, bias), (0, None, None)),
        ((residual, x, bias), (None, 0, None)),
        ((residual, residual, biases), (None, None, 0)),
        ((x, x, biases), (0, 0, 0)),
    ):
        got = jax.vmap(forward, axes)(*arguments)
        for i in range(3):
            one = [a if axis is None else a[i] for a, axis in zip(arguments, axes, strict=True)]
            assert_close([part[i] for part in got], forward(*one))


def test_scan_over_layers(draw):
    """As a model is written: the residual goes through every layer."""
    arguments = draw(4, 16), draw(4, 16), draw(3, 16), draw(3, 16)

    def run(add, x, residual, weights, biases):
        def layer(carry, parameters):
            y, total = add(*carry, *parameters)
            return (jax.numpy.tanh(y), total), None

        (y, total), _ = jax.lax.scan(layer, (x, residual), (weights, biases))
        return (y * total).sum()

    def right(x, residual, weight, bias):
        return norm(x + residual, weight, bias)[0], x + residual

    every = (0, 1, 2, 3)
    got = jax.grad(lambda *a: run(mbj.add_layer_norm, *a), every)(*arguments)
    wanted = jax.grad(lambda *a: run(right, *a), every)(*arguments)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_bits_of_the_op(dtype, seed):
    """Through custom_vjp and by hand, on the CPU; a bias of a dtype of its own."""
    one = arrays.framework("jax-cpu")
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal((40, 96)).astype(NUMPY_DTYPES[dtype]) for _ in range(2))
    weight, bias = rng.standard_normal(96).astype(np.float16), rng.standard_normal(96)
    _, *statistics = membound.layer_norm(x, weight, bias, return_stats=True)
    dbias = np.empty(96)
    wanted = membound.layer_norm_backward(dy, x, weight, *statistics, dbias=dbias)
    _, pull = jax.vjp(mbj.layer_norm, *map(one.array, (x, weight, bias)))
    for got, right in zip(pull(one.array(dy)), wanted, strict=True):
        assert one.numpy(got).dtype == right.dtype
        assert one.numpy(got).tobytes() == right.tobytes()
    plain = membound.layer_norm_backward(*map(one.array, (dy, x, weight, *statistics)))
    right = membound.layer_norm_backward(dy, x, weight, *statistics)
    for got, wanted_bits in zip(plain, right, strict=True):
        assert one.numpy(got).tobytes() == wanted_bits.tobytes()


F32, ROWS = np.ones((3, 8), np.float32), np.ones(3, np.float32)
FORWARD = {"x": F32, "weight": F32[0], "bias": F32[0]}
BACKWARD = {"dy": F32, "x": F32, "weight": F32[0], "mean": ROWS, "rstd": ROWS}
BAD = {
    "0-d x": (FORWARD, {"x": np.ones((), np.float32)}),
    "int x": (FORWARD, {"x": np.ones((3, 8), np.int32)}),
    "long bias": (FORWARD, {"bias": np.ones(9, np.float32)}),
    "int bias": (FORWARD, {"bias": np.ones(8, np.int32)}),
    "long weight": (FORWARD, {"weight": np.ones(9, np.float32)}),
    "negative eps": (FORWARD, {"eps": -1.0}),
    "flag": (FORWARD, {"return_stats": 1}),
    "mean of 16 bits": (BACKWARD, {"mean": ROWS.astype(np.float16)}),
    "mean of another shape": (BACKWARD, {"mean": F32}),
    "rstd of another shape": (BACKWARD, {"rstd": F32}),
    "dy of another shape": (BACKWARD, {"dy": F32[:2]}),
    "need_dbias": (BACKWARD, {"need_dbias": 1}),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_input_reads_as_for_other_arrays(case, added):
    good, bad = BAD[case]
    call = {**good, **bad}
    name = "layer_norm" if good is FORWARD else "layer_norm_backward"
    if added:
        name = f"add_{name}"
        if good is FORWARD:
            call["residual"] = call["x"]
        else:
            call = {"dresidual_out": call["x"], "residual_out": call.pop("x"), **call}
    with pytest.raises((ValueError, TypeError)) as wanted:
        getattr(membound, name)(**call)
    there = {k: jax.numpy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for module in (mbj, membound):
        with pytest.raises(wanted.type) as got:
            getattr(module, name)(**there)
        assert str(got.value) == str(wanted.value)


def test_arrays_that_cannot_be_written_or_are_of_others_are_refused():
    x, rows = jax.numpy.ones((3, 8)), jax.numpy.ones(3)
    for call, argument in (
        (lambda: membound.layer_norm(x, out=x), "out"),
        (lambda: membound.layer_norm(x, stream=1), "stream"),
        (lambda: membound.layer_norm(x, None, F32[0]), "bias"),
        (lambda: mbj.layer_norm(x, None, F32[0]), "bias"),
        (lambda: membound.add_layer_norm(x, x, residual_out=x), "residual_out"),
        (lambda: membound.layer_norm_backward(x, x, None, rows, rows, dbias=x[0]), "dbias"),
        (lambda: membound.layer_norm_backward(x, x, None, ROWS, rows), "mean"),
        (lambda: membound.gemma_fused_add_rms_norm(x, x, x[0]), "input"),
    ):
        with pytest.raises(TypeError, match=f"argument '{argument}' must"):
            call()


def test_no_rows(one):
    x, weight = one.array(np.empty((0, 8))), one.array(np.ones(8))
    found = jax.grad(lambda *a: mbj.layer_norm(*a).sum(), (0, 1, 2))(x, weight, weight)
    assert found[0].shape == (0, 8)
    for gradient in found[1:]:
        np.testing.assert_array_equal(gradient, np.zeros(8))


def test_a_gradient_step_in_bfloat16(one, seed):
    """Against the formula in float64 on the rounded inputs, within the tolerance table."""
    rng = np.random.default_rng(seed)
    kind = NUMPY_DTYPES["bfloat16"]
    x, dy = (rng.standard_normal((64, 256)).astype(kind) for _ in range(2))
    weight = rng.standard_normal(256).astype(kind)
    inputs = (dy, x, weight, *gradients.centred_statistics_of(x, "bfloat16"))
    got = mbj.layer_norm_backward(*map(one.array, inputs))
    wanted = norms.layer_norm_backward(*inputs, "bfloat16")
    for gradient, right in zip(got, wanted, strict=True):
        reference.assert_within(one.numpy(gradient), right)
