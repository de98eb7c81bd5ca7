# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax of membound.jax under jit, vmap and grad, against jax.nn's."""

from __future__ import annotations

import importlib

import arrays
import numpy as np
import pytest

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def draw(one, seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: one.array(rng.standard_normal(shape) * 3)


def formula(x, mask=None, *, scale=1.0, causal_offset=None):
    """Differentiated by JAX step by step."""
    jnp = jax.numpy
    logits = x * scale
    if mask is not None:
        logits = jnp.where(mask, logits, -jnp.inf) if mask.dtype == bool else logits + mask
    if causal_offset is not None:
        rows, cols = jnp.arange(x.shape[-2])[:, None], jnp.arange(x.shape[-1])
        logits = jnp.where(cols <= rows + causal_offset, logits, -jnp.inf)
    return jax.nn.softmax(logits, -1)


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"scale": 2.0, "causal_offset": 4}])
@pytest.mark.parametrize("shape", [None, (33,), (5, 33), (2, 1, 5, 1)])
def test_inside_jit_and_grad(draw, shape, options):
    x, dy = draw(2, 3, 5, 33), draw(2, 3, 5, 33)
    inputs = (x,) if shape is None else (x, draw(*shape))
    got, pull = jax.vjp(jax.jit(lambda *a: mbj.softmax(*a, **options)), *inputs)
    wanted, push = jax.vjp(jax.jit(lambda *a: formula(*a, **options)), *inputs)
    assert_close((got, pull(dy)), (wanted, push(dy)))


def test_a_bool_mask(draw):
    x, dy = draw(2, 5, 12), draw(2, 5, 12)
    kept = draw(2, 1, 12) > -2.0
    kept = kept.at[..., 0].set(True)
    got, pull = jax.vjp(lambda x: mbj.softmax(x, kept, scale=0.5), x)
    wanted, push = jax.vjp(lambda x: formula(x, kept, scale=0.5), x)
    assert_close((got, pull(dy)), (wanted, push(dy)))


BATCHES = [((0, 0), (3, 7)), ((0, None), (7,)), ((None, 0), (3, 7)), ((1, 1), (5, 3, 7))]


@pytest.mark.parametrize(("axes", "shape"), BATCHES)
def test_under_vmap(draw, axes, shape):
    """The mask has fewer axes than x: batches go in front of both."""
    x = draw(5, 7) if axes[0] is None else draw(*((5, 3, 7) if axes[0] else (3, 5, 7)))
    mask = draw(*shape)

    def both(function):
        """Results and gradients."""

        def one(x, m):
            y = function(x, m, causal_offset=2)
            return (y**2).sum(), y

        with_gradients = jax.value_and_grad(one, (0, 1), has_aux=True)
        return jax.jit(jax.vmap(with_gradients, axes))(x, mask)

    assert_close(both(mbj.softmax), both(formula))


def test_the_backward_under_vmap(draw):
    dy, y = draw(3, 5, 7), draw(5, 7)
    got = jax.vmap(lambda d: mbj.softmax_backward(d, y, scale=2.0))(dy)
    assert_close(got, 2.0 * y * (dy - (dy * y).sum(-1, keepdims=True)))


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda _: mbj.softmax(np.ones(3)), TypeError, "x"),
        (lambda x: mbj.softmax(x.astype("int32")), TypeError, "x"),
        (lambda x: mbj.softmax(x, np.ones(4)), TypeError, "mask"),
        (lambda x: mbj.softmax(x, x.astype("float32")), TypeError, "mask"),
        (lambda x: mbj.softmax(x, x[:, :3]), ValueError, "mask"),
        (lambda x: mbj.softmax(x, x[None]), ValueError, "mask"),
        (lambda x: mbj.softmax(x, scale=float("inf")), ValueError, "scale"),
        (lambda x: mbj.softmax(x, scale="1"), TypeError, "scale"),
        (lambda x: mbj.softmax(x[0], causal_offset=1), ValueError, "causal_offset"),
        (lambda x: mbj.softmax(x, causal_offset=1.5), TypeError, "causal_offset"),
        (lambda x: mbj.softmax(x, causal_offset=2**64), ValueError, "causal_offset"),
        (lambda x: mbj.softmax_backward(x, x[:1]), ValueError, "dy"),
        (lambda x: mbj.softmax_backward(x.astype("float32"), x), TypeError, "dy"),
        (lambda x: mbj.softmax_backward(x, x, scale=float("nan")), ValueError, "scale"),
    ],
)
def test_bad_calls(one, call, error, argument):
    with pytest.raises(error, match=f"argument '{argument}'"):
        call(one.array(np.ones((2, 4))))
