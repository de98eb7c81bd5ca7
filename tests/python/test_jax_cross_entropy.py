# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy of membound.jax under jit, vmap and grad, against the formula in JAX."""

from __future__ import annotations

import importlib

import arrays
import numpy as np
import pytest
from cross_entropies import KINDS, definition, label_weights

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLATFORMS)
def one(request):
    return arrays.framework(request.param)


@pytest.fixture
def draw(one, seed):
    """Logits, and labels of which some are ignored."""
    rng = np.random.default_rng(seed)

    def made(*shape):
        labels = rng.integers(-2, shape[-1], shape[:-1])
        labels[labels < 0] = -100
        return one.array(2 * rng.standard_normal(shape)), one.array(labels)

    return made


def formula(logits, labels, *, label_smoothing=0.0, z_loss=0.0, softcap=None):
    """Differentiated by JAX step by step: loss and lse."""
    jnp = jax.numpy
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    counts = (labels >= 0) & (labels < logits.shape[-1])
    lse = jax.nn.logsumexp(logits, -1)
    at = jnp.where(counts, labels, 0)[..., None]
    loss = (1 - label_smoothing) * (lse - jnp.take_along_axis(logits, at, -1)[..., 0])
    loss += label_smoothing * (lse - logits.mean(-1)) + z_loss * lse**2
    return jnp.where(counts, loss, 0), jnp.where(counts, lse, 0)


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_jit_and_grad(draw, kind):
    logits, labels = draw(3, 4, 33)
    options = KINDS[kind]

    @jax.jit
    def ours(x):
        loss, lse = mbj.cross_entropy(x, labels, return_lse=True, **options)
        return loss, lse.sum(-1)

    got, pull = jax.vjp(ours, logits)
    wanted, push = jax.vjp(jax.jit(lambda x: formula(x, labels, **options)), logits)
    assert_close(got, wanted)
    for dloss, dlse in ((1.0, 0.0), (0.5, -2.0)):
        gradients = jax.numpy.full((3, 4), dloss), jax.numpy.full((3, 4), dlse)
        assert_close(pull(gradients), push(gradients))
    alone = jax.grad(lambda x: mbj.cross_entropy(x, labels, **options).sum())(logits)
    assert_close(alone, push((jax.numpy.ones((3, 4)), jax.numpy.zeros((3, 4))))[0])


def test_both_parts_of_lse_have_gradients(draw):
    logits, labels = draw(6, 9)

    def parts(x):
        top = x.max(-1)
        lse = jax.nn.logsumexp(x, -1)
        counts = (labels >= 0)[..., None]
        return jax.numpy.where(counts, jax.numpy.stack([top, lse - top], -1), 0)

    got, pull = jax.vjp(lambda x: mbj.cross_entropy(x, labels, return_lse=True)[1], logits)
    wanted, push = jax.vjp(parts, logits)
    assert_close(got, wanted)
    gradients = jax.numpy.asarray(np.random.default_rng(0).standard_normal((6, 2)))
    assert_close(pull(gradients), push(gradients))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_class_weights(draw, reduction):
    logits, labels = draw(6, 9)
    weight = jax.numpy.linspace(0.5, 2.0, 9)
    options = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 0.02}
    ours = jax.jit(lambda x: mbj.cross_entropy(x, labels, weight, **options).sum())
    value, gradient = jax.value_and_grad(ours)(logits)
    numpy = np.asarray(logits), np.asarray(labels)
    rows, _, right = definition(*numpy, weight=np.asarray(weight), label_smoothing=0.1, z_loss=0.02)
    total = {"mean": label_weights(numpy[1], 9, np.asarray(weight)).sum()}.get(reduction, 1.0)
    assert_close((value, gradient), (rows.sum() / total, right / total))
    mapped = jax.vmap(
        lambda x, y: mbj.cross_entropy(x, y, weight, label_smoothing=0.1, z_loss=0.02)
    )
    assert_close(mapped(logits, labels), rows)


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_under_vmap(draw, axes):
    logits, labels = draw(5, 3, 17)
    logits = logits if axes[0] == 0 else logits[0]
    labels = labels if axes[1] == 0 else labels[0]

    def both(function):
        """Losses and gradients."""
        one = jax.value_and_grad(lambda x, y: function(x, y).sum())
        return jax.jit(jax.vmap(one, axes))(logits, labels)

    assert_close(both(mbj.cross_entropy), both(lambda x, y: formula(x, y)[0]))


def test_weights_of_each_element_of_a_batch(draw):
    (logits, labels), (weights, _) = draw(5, 3, 17), draw(5, 17)

    def both(logits, labels, weight):
        """Losses and gradients."""
        return jax.value_and_grad(lambda x: mbj.cross_entropy(x, labels, weight).sum())(logits)

    got = jax.vmap(both)(logits, labels, abs(weights))
    for i, weight in enumerate(abs(weights)):
        assert_close((got[0][i], got[1][i]), both(logits[i], labels[i], weight))


def test_the_backward_with_a_number(draw):
    logits, labels = draw(6, 12)
    _, lse = mbj.cross_entropy(logits, labels, return_lse=True)
    got = mbj.cross_entropy_backward(0.5, logits, labels, lse)
    right = jax.jit(jax.grad(lambda x: 0.5 * formula(x, labels)[0].sum()))
    assert_close(got, right(logits))


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda _, y: mbj.cross_entropy(np.ones((2, 4)), y), TypeError, "logits"),
        (lambda x, _: mbj.cross_entropy(x, np.zeros(2, int)), TypeError, "labels"),
        (lambda x, _: mbj.cross_entropy(x, x[:, 0]), TypeError, "labels"),
        (lambda x, y: mbj.cross_entropy(x, y[:1]), ValueError, "labels"),
        (lambda x, y: mbj.cross_entropy(x, y, softcap=-1.0), ValueError, "softcap"),
        (lambda x, y: mbj.cross_entropy(x, y, z_loss=float("inf")), ValueError, "z_loss"),
        (lambda x, y: mbj.cross_entropy(x, y, label_smoothing=2.0), ValueError, "label_smoothing"),
        (lambda x, y: mbj.cross_entropy(x, y, ignore_index=0.5), TypeError, "ignore_index"),
        (lambda x, y: mbj.cross_entropy(x, y, return_lse=1), TypeError, "return_lse"),
        (lambda x, y: mbj.cross_entropy(x, y, x[0, :3]), ValueError, "weight"),
        (lambda x, y: mbj.cross_entropy(x, y, y), TypeError, "weight"),
        (lambda x, y: mbj.cross_entropy(x, y, reduction="avg"), ValueError, "reduction"),
        (lambda x, y: mbj.cross_entropy_backward(None, x, y, x[:, 0]), TypeError, "dloss"),
        (lambda x, y: mbj.cross_entropy_backward(1.0, x, y, x), ValueError, "lse"),
        (lambda x, y: mbj.cross_entropy_backward("1", x, y, x[:, 0]), TypeError, "dloss"),
    ],
)
def test_bad_calls(one, call, error, argument):
    with pytest.raises(error, match=f"argument '{argument}'"):
        call(one.array(np.ones((2, 4))), one.array(np.zeros(2, np.int64)))
