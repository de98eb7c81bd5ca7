# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation of membound.jax under jit, vmap and grad, against the formula in JAX."""

from __future__ import annotations

import importlib

import arrays
import numpy as np
import pytest
from gated_activations import GPT_OSS
from quant_norms import assert_same, quantised

import membound
from membound.oracle.activations import KINDS

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]
PACKINGS = ("halves", "interleaved")


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def draw(one, seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: one.array(rng.standard_normal(shape) * 3)


def formula(gate, up, kind, row_scale=None, *, alpha=1.0, limit=None, up_offset=0.0):
    """Differentiated by JAX step by step."""
    nn, jnp = jax.nn, jax.numpy
    act = {
        "silu": lambda g: g * nn.sigmoid(alpha * g),
        "gelu": lambda g: nn.gelu(g, approximate=False),
        "gelu_tanh": nn.gelu,
        "sigmoid": lambda g: nn.sigmoid(alpha * g),
        "relu2": lambda g: nn.relu(g) ** 2,
        "relu": nn.relu,
        "situ": lambda g: alpha * jnp.tanh(g / alpha) * nn.sigmoid(g),
    }[kind]
    if kind == "situ":
        up = limit * jnp.tanh(up / limit)
    elif limit is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    out = act(gate) * (up + up_offset)
    return out if row_scale is None else out * row_scale[..., None]


def options_of(kind):
    return GPT_OSS if kind in ("silu", "sigmoid", "situ") else {"limit": 2.0, "up_offset": 1.0}


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_jit_and_grad(draw, kind):
    gate, up, scale, dy = draw(5, 3, 33), draw(5, 3, 33), draw(5, 3), draw(5, 3, 33)
    options = options_of(kind)

    def ours(gate, up, scale):
        return mbj.gated_activation(gate, up, kind=kind, row_scale=scale, **options)

    def theirs(gate, up, scale):
        return formula(gate, up, kind, scale, **options)

    assert_close(jax.jit(ours)(gate, up, scale), theirs(gate, up, scale))
    got, wanted = jax.vjp(ours, gate, up, scale), jax.vjp(theirs, gate, up, scale)
    assert_close(got[1](dy), wanted[1](dy))
    one = jax.grad(lambda u: (ours(gate, u, scale) * dy).sum())(up)
    assert_close(one, wanted[1](dy)[1])


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed(draw, packing):
    packed, dy = draw(4, 2 * 10), draw(4, 10)

    def split(packed):
        halves = packing == "halves"
        return (packed[:, :10], packed[:, 10:]) if halves else (packed[:, ::2], packed[:, 1::2])

    def ours(packed):
        return mbj.gated_activation(packed, packing=packing)

    got, wanted = jax.vjp(ours, packed), jax.vjp(lambda p: formula(*split(p), "silu"), packed)
    assert_close(got[0], wanted[0])
    assert_close(got[1](dy), wanted[1](dy))
    assert_close(mbj.gated_activation_backward(dy, packed, packing=packing), wanted[1](dy)[0])


@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)])
def test_vmap_of_some_and_of_gradients(draw, mapped):
    shapes = ((4, 9), (4, 9), (4,))
    arrays_in = [draw(6, *s) if m == 0 else draw(*s) for m, s in zip(mapped, shapes, strict=True)]
    dy = draw(4, 9)

    def gradients(function):
        return lambda *a: jax.vjp(function, *a)[1](dy)

    def ours(gate, up, scale):
        return mbj.gated_activation(gate, up, row_scale=scale)

    def theirs(gate, up, scale):
        return formula(gate, up, "silu", scale)

    for make in (lambda f: f, gradients):
        got = jax.vmap(make(ours), mapped)(*arrays_in)
        assert_close(got, jax.vmap(make(theirs), mapped)(*arrays_in))


def test_one_gradient_alone(draw):
    gate, up, dy = draw(4, 9), draw(4, 9), draw(4, 9)
    both = mbj.gated_activation_backward(dy, gate, up)
    dgate, nothing = mbj.gated_activation_backward(dy, gate, up, need_dup=False)
    assert nothing is None
    assert_close(dgate, both[0])
    nothing, dup = mbj.gated_activation_backward(dy, gate, up, need_dgate=False)
    assert nothing is None
    assert_close(dup, both[1])


@pytest.mark.parametrize(
    ("call", "expected", "text"),
    [
        (lambda x: mbj.gated_activation(x, x[:1]), ValueError, "'up' must have shape"),
        (lambda x: mbj.gated_activation(x[:, :3]), ValueError, "'gate' must have at least"),
        (lambda x: mbj.gated_activation(x, x, kind="tanh"), ValueError, "'kind' must be"),
        (lambda x: mbj.gated_activation(x, packing="thirds"), ValueError, "'packing' must be"),
        (lambda x: mbj.gated_activation(x, x, packing="gate"), ValueError, "'packing' must be"),
        (lambda x: mbj.gated_activation(x, np.ones(4)), TypeError, "'up' must be a jax array"),
        (lambda x: mbj.gated_activation(x, x, alpha="1"), TypeError, "'alpha' must be a real"),
        (lambda x: mbj.gated_activation_backward(x, x), ValueError, "'dy' must have shape"),
        (
            lambda x: mbj.gated_activation_backward(x, x, need_dup=False),
            ValueError,
            "'need_dup' must be True",
        ),
    ],
)
def test_bad_calls_say_what_is_wrong(draw, call, expected, text):
    with pytest.raises(expected, match=r"^gated_activation(_backward)?: ") as caught:
        call(draw(3, 4))
    assert text in str(caught.value)


def test_options_that_only_the_core_checks(draw):
    """XLA wraps what a handler refuses."""
    for options in ({"alpha": 0.0}, {"limit": -1.0}):
        with pytest.raises(Exception, match="gated_activation"):
            jax.block_until_ready(mbj.gated_activation(draw(3, 4), **options))


# --- with a quantised result; eager calls are in test_gated_activation_quant.py ---


def single(one, seed, *shape):
    return one.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("scale", ["row", 64, "static"])
def test_quantised_inside_jit(one, scale, seed):
    packed, fixed = single(one, seed, 3, 5, 2 * 70), one.array(np.float32([0.02]))
    options = {"row": {}, 64: {"group_size": 64}, "static": {"scale": fixed}}[scale]

    @jax.jit
    def both(packed):
        return mbj.gated_activation(packed), mbj.silu_and_mul_quant(packed, dtype="int8", **options)

    y, found = jax.tree.map(one.numpy, both(packed))
    wanted, scales = quantised(y, "int8", scale, given=0.02)
    out, *rest = found if isinstance(found, tuple) else (found,)
    assert_same(out, wanted, scale)
    assert len(rest) == (scales is not None)
    if rest:
        assert_same(rest[0], scales, scale)


# Which of gate, up, row_scale and the static scale are mapped.
MAPPED = [(0, None, None, None), (1, 0, 0, None), (None, 0, None, 0), (0, 0, None, 0)]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("axes", MAPPED)
def test_quantised_under_vmap(one, axes, static, seed):
    axes = axes if static else (*axes[:3], None)
    values = []
    for at, (axis, shape) in enumerate(zip(axes, [(5, 70), (5, 70), (5,), ()], strict=True)):
        batched = list(shape)
        if axis is not None:
            batched.insert(axis, 3)
        values.append(abs(single(one, seed + at, *batched)) + 0.01)

    def op(gate, up, row_scale, scale):
        options = {"scale": scale} if static else {"group_size": 64}
        return mbj.gated_activation_quant(gate, up, row_scale=row_scale, dtype="int8", **options)

    found = jax.tree.leaves(jax.vmap(op, in_axes=axes)(*values))
    for at in range(3):
        alone = [
            value if axis is None else jax.numpy.take(value, at, axis)
            for value, axis in zip(values, axes, strict=True)
        ]
        for got, wanted in zip(found, jax.tree.leaves(op(*alone)), strict=True):
            assert_same(one.numpy(got)[at], one.numpy(wanted), (axes, at))


def test_a_quantised_result_has_no_gradient(one):
    packed = one.array(np.ones((2, 8), np.float32))
    with pytest.raises(TypeError, match="gated_activation_quant: a quantised result has no gradi"):
        jax.grad(lambda x: mbj.gated_activation_quant(x)[1].sum())(packed)
    with pytest.raises(TypeError, match="has no gradient"):
        jax.jvp(mbj.silu_and_mul_quant, (packed,), (packed,))


@pytest.mark.parametrize(
    ("bad", "expected", "argument"),
    [
        ({"dtype": "float16"}, TypeError, "dtype"),
        ({"group_size": 32}, ValueError, "group_size"),
        ({"scale": np.ones(2, np.float32)}, ValueError, "scale"),
        ({"scale": np.ones(1, np.float32), "group_size": 64}, ValueError, "group_size"),
        ({"kind": "tanh"}, ValueError, "kind"),
        ({"up": np.ones((2, 8), np.float32), "packing": "gate"}, ValueError, "packing"),
    ],
)
def test_bad_quantised_calls(one, bad, expected, argument):
    gate = one.array(np.ones((2, 8), np.float32))
    bad = {n: one.array(v) if isinstance(v, np.ndarray) else v for n, v in bad.items()}
    with pytest.raises(expected, match=rf"^gated_activation_quant: argument '{argument}'"):
        mbj.gated_activation_quant(gate, **bad)


def test_what_jax_arrays_cannot_have_of_a_quantised_call():
    membound = importlib.import_module("membound")
    gate = arrays.framework("jax-cpu").array(np.ones((2, 8), np.float32))
    for argument in ("out", "scale_out", "stream"):
        with pytest.raises(TypeError, match=f"argument '{argument}' must be None for"):
            membound.silu_and_mul_quant(gate, **{argument: 0 if argument == "stream" else gate})


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "sigmoid", "relu2"])
def test_by_the_names_that_serving_libraries_have(draw, kind):
    gate, dy = draw(5, 66), draw(5, 33)
    name = "relu2" if kind == "relu2" else f"{kind}_and_mul"
    forward, backward = getattr(mbj, name), getattr(mbj, f"{name}_backward")
    options = {"kind": kind}
    if kind == "relu2":
        dy, options["packing"] = draw(5, 66), "gate"
    assert_close(jax.jit(forward)(gate), mbj.gated_activation(gate, **options))
    right = mbj.gated_activation_backward(dy, gate, **options)
    assert_close(jax.jit(backward)(dy, gate), right)
    assert_close(jax.grad(lambda x: (forward(x) * dy).sum())(gate), right)


def test_every_function_that_writes_nothing_in_place(draw):
    in_place = {"fused_add_rms_norm", "gemma_fused_add_rms_norm"}
    of_jax = {"linear_cross_entropy", "linear_log_probs", "vocab_parallel_cross_entropy"}  # no ops
    assert set(mbj.__all__) - of_jax == set(membound.__test__) - in_place
    x, weight = draw(5, 33), draw(33)
    right = mbj.rms_norm(x, weight, weight_offset=1.0)
    assert_close(jax.jit(mbj.gemma_rms_norm)(x, weight), right)
