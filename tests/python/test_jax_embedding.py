# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding under jit, vmap and grad."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import ON_GPU

import membound

jax = arrays.package("jax")
NAMES = ["jax-cpu", *(pytest.param(n, marks=pytest.mark.gpu) for n in ON_GPU if "jax" in n)]


@pytest.fixture(params=NAMES)
def one(request):
    return arrays.framework(request.param)


def operands(one, seed):
    rng = np.random.default_rng(seed)
    ids = one.array(rng.integers(5, 17, (3, 6)))  # 5 and 16 are outside
    tables = [one.array(rng.standard_normal((rows, 8))) for rows in (10, 5)]
    return ids, *tables, one.array(rng.integers(0, 6, (3, 6)))


def formula(ids, weight, positions, places):
    """Of rows 6 to 15, by JAX's own functions."""
    jnp = jax.numpy
    inside = (ids >= 6) & (ids < 16)
    rows = weight[jnp.where(inside, ids - 6, 0)] * 2.0
    more = jnp.where((places < 5)[..., None], positions[jnp.minimum(places, 4)], 0)
    return jnp.where(inside[..., None], rows + more, 0)


def ours(ids, weight, positions, places, **options):
    return jax.numpy.asarray(pytest.importorskip("membound.jax").embedding(
        ids, weight, position_weight=positions, position_ids=places, scale=2.0, vocab_start=6,
        **options,
    ))  # fmt: skip


def test_jit_and_gradients_of_both_tables(one, seed):
    ids, weight, positions, places = operands(one, seed)
    loss = lambda call: lambda w, p: (call(ids, w, p, places) ** 3).sum()  # noqa: E731
    found = jax.jit(jax.grad(loss(ours), (0, 1)))(weight, positions)
    wanted = jax.grad(loss(formula), (0, 1))(weight, positions)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_the_padding_row_gets_no_gradient(one, kind):
    weight = one.array(np.ones((4, 3)))
    ids = one.array(np.array([0, 2, 2, 3, 9, -1], kind))
    for padding in (2, -2):
        found = jax.grad(lambda w, p=padding: membound.embedding(ids, w, padding_idx=p).sum())(
            weight
        )
        assert found[:, 0].tolist() == [1.0, 0.0, 0.0, 1.0]
    far = jax.grad(lambda w: membound.embedding(ids, w, vocab_start=2**40).sum())(weight)
    assert not np.asarray(far).any()


def test_a_gradient_in_16_bits_is_summed_in_32(one):
    weight = one.array(np.ones((2, 3), np.float16))
    ids = one.array(np.zeros(4097, np.int32))
    found = jax.grad(lambda w: membound.embedding(ids, w, dtype="float32").sum())(weight)
    assert found.dtype == np.float16
    assert found[:, 0].tolist() == [4096.0, 0.0]  # 4097 rounded, where sums in 16 bits end at 2048


def test_vmap_over_ids_tables_and_positions(one, seed):
    ids, weight, positions, places = operands(one, seed)
    stack = lambda x: one.array(np.stack([np.asarray(x), np.asarray(x)[::-1]]))  # noqa: E731
    full = (ids, weight, positions, places)
    for axes in ((0, None, None, None), (0, None, None, 0), (None, 0, None, None),
                 (None, None, 0, None), (0, 0, 0, 0)):  # fmt: skip
        given = [x if axis is None else stack(x) for x, axis in zip(full, axes, strict=True)]
        found = jax.vmap(ours, axes)(*given)
        for at in range(2):
            alone = ours(*(x if a is None else x[at] for x, a in zip(given, axes, strict=True)))
            np.testing.assert_array_equal(found[at], alone)


@pytest.mark.parametrize(
    ("options", "expected", "argument"),
    [
        ({"ids": np.zeros(2, np.int64)}, TypeError, "ids"),
        ({"ids": "floats"}, TypeError, "ids"),
        ({"dtype": "float64"}, TypeError, "dtype"),
        ({"dtype": "int8"}, TypeError, "dtype"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"vocab_start": -1}, ValueError, "vocab_start"),
        ({"padding_idx": 1.5}, TypeError, "padding_idx"),
        ({"position_ids": "ids"}, ValueError, "position_ids"),
        ({"position_weight": "narrow"}, ValueError, "position_weight"),
        ({"out": np.zeros((2, 4), np.float32)}, TypeError, "out"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_library(options, expected, argument):
    one = arrays.framework("jax-cpu")
    named = {
        "ids": one.array(np.zeros(2, np.int64)), "floats": one.array(np.zeros(2, np.float32)),
        "narrow": one.array(np.ones((3, 2), np.float32)),
    }  # fmt: skip
    given = {"ids": named["ids"], "weight": one.array(np.ones((3, 4), np.float32))}
    given |= {k: named.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(expected, match=rf"^embedding: argument '{argument}'"):
        membound.embedding(**given)
