# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding_backward under jit and vmap, and as embedding's gradient."""

from __future__ import annotations

import functools

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
    ids = rng.integers(4, 17, (3, 60))  # 4, 5 and 16 are outside
    return one.array(rng.standard_normal((3, 60, 8), np.float32)), one.array(ids)


OPTIONS = {"vocab_start": 6, "padding_idx": 7, "scale": 2.0}


def test_jit_gives_the_bits_of_numpy(one, seed):
    dy, ids = operands(one, seed)
    for options in (OPTIONS, {**OPTIONS, "scale_grad_by_freq": True, "dtype": "float16"}):
        call = functools.partial(membound.embedding_backward, vocab=10, **options)
        found = jax.jit(call)(dy, ids)
        np.testing.assert_array_equal(found, call(np.asarray(dy), np.asarray(ids)))


def test_the_gradient_of_embedding_has_its_bits(one, seed):
    dy, ids = operands(one, seed)
    weight = one.array(np.ones((10, 8), np.float16))
    lookup = functools.partial(membound.embedding, ids, dtype="float32", **OPTIONS)
    _, pull = jax.vjp(lookup, weight)
    right = membound.embedding_backward(dy, ids, 10, dtype="float16", **OPTIONS)
    np.testing.assert_array_equal(pull(dy)[0], right)


def test_the_gradient_of_positions_is_that_of_their_ids(one, seed):
    dy, ids = operands(one, seed)
    weight = one.array(np.ones((10, 8), np.float32))
    places = one.array(np.random.default_rng(seed).integers(-1, 6, ids.shape))
    inside = (ids >= 6) & (ids < 16)
    for given in (places, None):
        _, pull = jax.vjp(
            lambda table, given=given: membound.embedding(
                ids, weight, position_weight=table, position_ids=given, vocab_start=6
            ),
            one.array(np.ones((5, 8), np.float32)),
        )
        at = np.broadcast_to(np.arange(60), ids.shape) if given is None else np.asarray(given)
        kept = np.where(np.asarray(inside), at, -1)
        right = membound.embedding_backward(np.asarray(dy), kept, 5)
        np.testing.assert_array_equal(pull(dy)[0], right)


def test_vmap_has_a_gradient_for_each_element(one, seed):
    dy, ids = operands(one, seed)
    call = functools.partial(membound.embedding_backward, vocab=10, **OPTIONS)
    for axes in ((0, 0), (0, None), (None, 0)):
        given = [x if axis == 0 else x[1] for x, axis in zip((dy, ids), axes, strict=True)]
        found = jax.vmap(call, axes)(*given)
        assert found.shape == (3, 10, 8)
        for at in range(3):
            alone = call(*(x[at] if axis == 0 else x for x, axis in zip(given, axes, strict=True)))
            np.testing.assert_array_equal(found[at], alone)


@pytest.mark.parametrize(
    ("options", "expected", "argument"),
    [
        ({"ids": np.zeros(2, np.int64)}, TypeError, "ids"),
        ({"ids": "floats"}, TypeError, "ids"),
        ({"ids": "three"}, ValueError, "ids"),
        ({"dy": "three"}, TypeError, "dy"),
        ({"vocab": 0}, ValueError, "vocab"),
        ({"vocab": 2**31 - 1}, ValueError, "vocab"),
        ({"vocab": 1.5}, TypeError, "vocab"),
        ({"dtype": "float64"}, TypeError, "dtype"),
        ({"scale": float("nan")}, ValueError, "scale"),
        ({"padding_idx": -1, "vocab_start": 2}, ValueError, "padding_idx"),
        ({"padding_idx": -100}, ValueError, "padding_idx"),
        ({"scale_grad_by_freq": 1}, TypeError, "scale_grad_by_freq"),
        ({"sparse": True}, TypeError, "sparse"),
        ({"out": np.zeros((3, 4), np.float32)}, TypeError, "out"),
        ({"accumulate": True}, TypeError, "accumulate"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_library(options, expected, argument):
    one = arrays.framework("jax-cpu")
    named = {
        "three": one.array(np.zeros(3, np.int64)), "floats": one.array(np.zeros(2, np.float32)),
    }  # fmt: skip
    given = {"dy": one.array(np.ones((2, 4), np.float32)), "ids": one.array(np.zeros(2, np.int64))}
    given |= {"vocab": 3}
    given |= {k: named.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(expected, match=rf"^embedding_backward: argument '{argument}'"):
        membound.embedding_backward(**given)
