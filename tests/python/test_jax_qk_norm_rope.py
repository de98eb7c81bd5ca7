# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope under jit, vmap and grad."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
import rotary
from arrays import ON_GPU

import membound

jax = arrays.package("jax")
NAMES = ["jax-cpu", *(pytest.param(n, marks=pytest.mark.gpu) for n in ON_GPU if "jax" in n)]


@pytest.fixture(params=NAMES)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def mbj():
    return pytest.importorskip("membound.jax")


def formula(x, weight, cos, sin):
    """By JAX's own functions, differentiable."""
    jnp = jax.numpy
    x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    first, second = jnp.split(x, 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def operands(one, rng):
    q, k = (one.array(rng.standard_normal((2, 6, heads, 16))) for heads in (3, 2))
    weights = one.array(rng.standard_normal(16)), one.array(rng.standard_normal((2, 16)))
    angles = np.arange(6)[:, None] * rotary.frequencies(16)
    return (q, k, *weights), (one.array(np.cos(angles)), one.array(np.sin(angles)))


def weighed(outputs):
    """A number that depends on every output."""
    return sum((y * jax.numpy.sin(y)).sum() for y in outputs)


def test_jit_and_gradients(one, mbj, seed):
    given, tables = operands(one, np.random.default_rng(seed))

    def ours(*given):
        return weighed(mbj.qk_norm_rope(*given, *tables))

    def theirs(q, k, q_weight, k_weight):
        return weighed([formula(q, q_weight, *tables), formula(k, k_weight, *tables)])

    for which in ((0, 1, 2, 3), (1,), (2,)):
        found = jax.jit(jax.grad(ours, which))(*given)
        wanted = jax.grad(theirs, which)(*given)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_only_one_result_used_and_q_alone(one, mbj, seed):
    (q, k, weight, k_weight), tables = operands(one, np.random.default_rng(seed))
    found = jax.grad(lambda k: (mbj.qk_norm_rope(q, k, weight, k_weight, *tables)[1] ** 2).sum())(k)
    wanted = jax.grad(lambda k: (formula(k, k_weight, *tables) ** 2).sum())(k)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    alone = jax.grad(lambda q: (mbj.qk_norm_rope(q, None, weight, None, *tables) ** 2).sum())(q)
    wanted = jax.grad(lambda q: (formula(q, weight, *tables) ** 2).sum())(q)
    np.testing.assert_allclose(alone, wanted, rtol=1e-9, atol=1e-9)


def test_vmap_over_batch_and_weights(one, mbj, seed):
    (q, _, weight, _), tables = operands(one, np.random.default_rng(seed))
    weights = one.array(np.stack([weight, 2 * np.asarray(weight)]))

    def ours(q, weight):
        return mbj.qk_norm_rope(q[None], None, weight, None, *tables)[0]

    found = jax.vmap(ours)(q, weights)
    wanted = jax.vmap(lambda q, weight: formula(q, weight, *tables))(q, weights)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    gradient = jax.vmap(jax.grad(lambda q, w: (ours(q, w) ** 2).sum(), 1), (0, None))(q, weight)
    wanted = jax.vmap(jax.grad(lambda q, w: (formula(q, w, *tables) ** 2).sum(), 1), (0, None))
    np.testing.assert_allclose(gradient, wanted(q, weight), rtol=1e-9, atol=1e-9)


def test_the_backward_as_a_function_and_rstd(one, mbj, seed):
    rng = np.random.default_rng(seed)
    given, tables = operands(one, rng)
    out, k_out, q_rstd, k_rstd = jax.jit(lambda *given: mbj.qk_norm_rope(*given, return_rstd=True))(
        *given, *tables
    )
    np.testing.assert_allclose(q_rstd, 1 / np.sqrt((np.asarray(given[0]) ** 2).mean(-1) + 1e-6))
    with_rstd = mbj.qk_norm_rope_backward(out, k_out, *given, *tables, q_rstd=q_rstd, k_rstd=k_rstd)
    without = mbj.qk_norm_rope_backward(out, k_out, *given, *tables)
    plain = membound.qk_norm_rope_backward(*(np.asarray(x) for x in (out, k_out, *given, *tables)))
    for a, b, c in zip(with_rstd, without, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-12)
    bare = mbj.qk_norm_rope_backward(out, k_out, *given, *tables, need_dweight=False)
    assert bare[2:] == (None, None)


@pytest.mark.parametrize(
    ("options", "expected", "argument"),
    [
        ({"q_weight": np.ones(8)}, TypeError, "q_weight"),
        ({"k_weight": "given"}, ValueError, "k_weight"),
        ({"rounding": "twice"}, ValueError, "rounding"),
        ({"eps": -1.0}, ValueError, "eps"),
        ({"rotary_dim": 6}, ValueError, "freqs"),
        ({"out": np.zeros(1)}, TypeError, "out"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_library(options, expected, argument):
    one = arrays.framework("jax-cpu")
    q = one.array(np.ones((1, 2, 1, 8), np.float32))
    given = {"freqs": one.array(np.ones(4, np.float32)), **options}
    if given.get("k_weight") == "given":
        given["k_weight"] = one.array(np.ones(8, np.float32))
    with pytest.raises(expected, match=rf"^qk_norm_rope: argument '{argument}'"):
        membound.qk_norm_rope(q, **given)


def test_tables_have_no_gradient(one, mbj):
    (q, *_), (cos, sin) = operands(one, np.random.default_rng(1))
    with pytest.raises(TypeError, match=r"^qk_norm_rope: argument 'cos' has no gradient"):
        jax.grad(lambda cos: mbj.qk_norm_rope(q, None, None, None, cos, sin).sum())(cos)
