# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope under jit, vmap and grad."""

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


def formula(x, freqs, positions):
    """rope by JAX's own functions, differentiable."""
    jnp = jax.numpy
    angles = positions[..., None, None] * freqs
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def operands(one, rng):
    q, k = (one.array(rng.standard_normal((2, 6, heads, 16))) for heads in (3, 1))
    ids = one.array(rng.integers(0, 9, (2, 6)))
    return q, k, one.array(rotary.frequencies(16)), ids


def test_jit_and_gradients_of_q_k_and_freqs(one, seed):
    q, k, freqs, ids = operands(one, np.random.default_rng(seed))
    jnp, mbj = jax.numpy, pytest.importorskip("membound.jax")

    def ours(q, k, freqs):
        out, k_out = mbj.rope(q, k, freqs=freqs, position_ids=ids)
        return (out * jnp.sin(out)).sum() + (k_out**3).sum()

    def theirs(q, k, freqs):
        out, k_out = (formula(x, freqs, ids) for x in (q, k))
        return (out * jnp.sin(out)).sum() + (k_out**3).sum()

    for which in ((0, 1, 2), (0,), (1, 2)):
        found = jax.jit(jax.grad(ours, which))(q, k, freqs)
        wanted = jax.grad(theirs, which)(q, k, freqs)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    grad = jax.grad(lambda q: (jax.grad(ours)(q, k, freqs) ** 2).sum())
    wanted = jax.grad(lambda q: (jax.grad(theirs)(q, k, freqs) ** 2).sum())
    np.testing.assert_allclose(grad(q), wanted(q), rtol=1e-9, atol=1e-9)


def test_vmap_over_heads_tables_and_ids(one, seed):
    q, k, freqs, ids = operands(one, np.random.default_rng(seed))
    mbj = pytest.importorskip("membound.jax")
    batch = one.array(np.stack([np.asarray(q), 2 * np.asarray(q), -np.asarray(q)]))
    many = one.array(np.stack([np.asarray(freqs) * s for s in (1.0, 0.5, 0.0)]))

    def call(q, freqs):
        return mbj.rope(q, k, freqs=freqs, position_ids=ids)

    for axes, places in (((0, None), (batch, freqs)), ((0, 0), (batch, many))):
        found = jax.vmap(call, axes)(*places)
        for at in range(3):
            alone = call(batch[at], many[at] if axes[1] == 0 else freqs)
            for a, b in zip(found, alone, strict=True):
                np.testing.assert_array_equal(a[at], b)


def test_tables_have_no_gradient(one):
    mbj = pytest.importorskip("membound.jax")
    q, table = one.array(np.ones((1, 2, 1, 8))), one.array(np.ones((4, 4)))
    with pytest.raises(TypeError, match=r"^rope: argument 'cos' has no gradient"):
        jax.grad(lambda cos: mbj.rope(q, None, cos, table).sum())(table)
    jax.grad(lambda q: mbj.rope(q, None, table, table).sum())(q)


@pytest.mark.parametrize(
    ("options", "expected", "argument"),
    [
        ({"layout": "dhsb"}, ValueError, "layout"),
        ({"freqs": 3}, TypeError, "freqs"),
        ({"position_ids": np.zeros((1, 2), int)}, TypeError, "position_ids"),
        ({"rotary_dim": 6}, ValueError, "freqs"),
        ({"sections": (2, 1)}, ValueError, "sections"),
        ({"interleaved": 1}, TypeError, "interleaved"),
        ({"out": np.zeros(1)}, TypeError, "out"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_library(options, expected, argument):
    one = arrays.framework("jax-cpu")
    q = one.array(np.ones((1, 2, 1, 8), np.float32))
    given = {"freqs": one.array(np.ones(4, np.float32)), **options}
    with pytest.raises(expected, match=rf"^rope: argument '{argument}'"):
        membound.rope(q, **given)
