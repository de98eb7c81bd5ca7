# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of a last layer in JAX, against the formula of all logits at once."""

from __future__ import annotations

import functools
import importlib

import arrays
import numpy as np
import pytest
from cross_entropies import KINDS, definition, label_weights

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")

PLATFORMS = ["jax-cpu", pytest.param("jax-cuda", marks=pytest.mark.gpu)]
ROWS, WIDTH, VOCAB = (2, 7), 6, 11


@pytest.fixture(params=PLATFORMS)
def drawn(request, seed):
    """x, weight, bias, and labels of which some are ignored."""
    one, rng = arrays.framework(request.param), np.random.default_rng(seed)
    shapes = (*ROWS, WIDTH), (VOCAB, WIDTH), (VOCAB,)
    labels = rng.integers(0, VOCAB, ROWS)
    labels[0, 3:5] = -100
    return [*(one.array(rng.standard_normal(shape)) for shape in shapes), one.array(labels)]


def formula(x, weight, bias, labels, dloss, classes=None, **options):
    """Row losses, and the gradients of sum(dloss * loss), by NumPy in float64."""
    x, weight, bias, labels = (np.asarray(one) for one in (x, weight, bias, labels))
    logits = x @ weight.T + bias
    losses, _, dlogits = definition(logits, labels, dloss, weight=classes, **options)
    flat = dlogits.reshape(-1, VOCAB)
    gradients = dlogits @ weight, flat.T @ x.reshape(-1, WIDTH), flat.sum(0)
    return losses, gradients


def assert_close(got, wanted):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(drawn, kind, weighted, reduction, seed):
    """In chunks that do not divide the rows, under jit and without it."""
    x, weight, bias, labels = drawn
    classes = np.linspace(0.5, 2.0, VOCAB) if weighted else None
    options = {"reduction": reduction, "chunk_rows": 4, **KINDS[kind]}
    if weighted:
        options["class_weight"] = jax.numpy.asarray(classes)
    shape = ROWS if reduction == "none" else ()
    dloss = np.random.default_rng(seed).standard_normal(shape)
    total = label_weights(np.asarray(labels), VOCAB, classes).sum() if reduction == "mean" else 1.0
    share = np.broadcast_to(dloss / total, ROWS)
    losses, wanted = formula(x, weight, bias, labels, share, classes, **KINDS[kind])
    right = losses if reduction == "none" else losses.sum() / total

    def ours(x, weight, bias):
        return mbj.linear_cross_entropy(x, weight, labels, bias, **options)

    for function in (ours, jax.jit(ours)):
        assert_close(function(x, weight, bias), right)
        found, pull = jax.vjp(function, x, weight, bias)
        assert_close(found, right)
        assert_close(pull(jax.numpy.asarray(dloss)), wanted)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_without_bias_and_of_one_leaf(drawn, reduction):
    x, weight, bias, labels = drawn
    run = lambda w: mbj.linear_cross_entropy(x, w, labels, reduction=reduction).sum()  # noqa: E731
    counted = (np.asarray(labels) >= 0).sum() if reduction == "mean" else 1.0
    losses, (_, right, _) = formula(x, weight, 0 * bias, labels, 1 / counted)
    assert_close(jax.value_and_grad(run)(weight), (losses.sum() / counted, right))


def test_no_logits_are_kept(drawn):
    """The program of a step needs a small part of the logits' memory beside its arguments."""
    rows, width, vocab = 512, 16, 4096
    kind = drawn[0].dtype
    shapes = [jax.ShapeDtypeStruct(s, kind) for s in ((rows, width), (vocab, width))]
    labels = jax.numpy.zeros(rows, "int32")
    for reduction in ("mean", "none"):

        def loss(x, weight, reduction=reduction):
            options = {"chunk_rows": 32, "reduction": reduction}
            return mbj.linear_cross_entropy(x, weight, labels, **options).sum()

        program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile()
        analysis = program.memory_analysis()
        if analysis is None:
            pytest.skip("this JAX does not tell what memory a program needs")
        assert analysis.temp_size_in_bytes < rows * vocab * kind.itemsize / 3


def test_of_16_bits(drawn):
    """The loss is float32; gradients have the dtypes of what they are of."""
    x, weight, _, labels = drawn
    x, weight = x.astype("bfloat16"), weight.astype("float32")
    loss, (dx, dweight) = jax.value_and_grad(mbj.linear_cross_entropy, (0, 1))(x, weight, labels)
    assert [one.dtype.name for one in (loss, dx, dweight)] == ["float32", "bfloat16", "float32"]
    wide = [np.asarray(one.astype("float64")) for one in (x, weight)]
    counted = (np.asarray(labels) >= 0).sum()
    losses, right = formula(*wide, np.zeros(VOCAB), labels, 1 / counted)
    np.testing.assert_allclose(loss, losses.sum() / counted, rtol=2**-7)
    for got, wanted in zip((dx, dweight), right, strict=False):
        np.testing.assert_allclose(got.astype("float64"), wanted, rtol=2**-6, atol=2**-7)


def test_under_vmap(drawn):
    x, weight, bias, labels = drawn
    for reduction in ("mean", "none"):
        one = lambda x, y, r=reduction: mbj.linear_cross_entropy(x, weight, y, bias, reduction=r)  # noqa: E731
        found = jax.vmap(one)(x, labels)
        assert_close(found, np.stack([one(*both) for both in zip(x, labels, strict=True)]))
        step = jax.grad(lambda x, y, f=one: f(x, y).sum())
        right = np.stack([step(*both) for both in zip(x, labels, strict=True)])
        assert_close(jax.vmap(step)(x, labels), right)


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has none")
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_under_shard_map(drawn, kind, reduction):
    """The code of a sharded vocabulary, of which one device has all (more: jax_vocabulary.py)."""
    *arrays, labels = drawn
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(list(labels.devices())), "a")
    layer = functools.partial(
        mbj.linear_cross_entropy, reduction=reduction, chunk_rows=4, **KINDS[kind]
    )
    split = jax.shard_map(
        lambda x, w, b, y: layer(x, w, y, b, axis_name="a"),
        mesh=mesh,
        in_specs=(spec(), spec("a"), spec("a"), spec()),
        out_specs=spec(),
    )
    step = lambda f: jax.jit(jax.value_and_grad(lambda *given: f(*given).sum(), (0, 1, 2)))  # noqa: E731
    found = step(lambda x, w, b: split(x, w, b, labels))(*arrays)
    assert_close(found, step(lambda x, w, b: layer(x, w, labels, b))(*arrays))


def test_labels_that_are_none_of_the_vocabulary(drawn):
    x, weight, _, labels = drawn
    labels = labels.at[1, 1].set(VOCAB)
    losses = mbj.linear_cross_entropy(x, weight, labels, reduction="none")
    assert np.argwhere(np.isnan(losses)).tolist() == [[1, 1]]
    assert np.isnan(mbj.linear_cross_entropy(x, weight, labels))


def test_labels_are_validated():
    x, weight, labels = jax.numpy.ones((2, 3)), jax.numpy.ones((4, 3)), jax.numpy.array([0, 4])
    with pytest.raises(ValueError, match=r"^linear_cross_entropy: argument 'labels' must hold"):
        mbj.linear_cross_entropy(x, weight, labels, validate=True)


@pytest.mark.parametrize(
    ("change", "error", "argument"),
    [
        ({"weight": np.ones((5, 3))}, ValueError, "weight"),
        ({"weight": np.ones(5)}, ValueError, "weight"),
        ({"weight": np.ones((0, 4))}, ValueError, "weight"),
        ({"bias": np.ones(4)}, ValueError, "bias"),
        ({"class_weight": np.ones(4)}, ValueError, "class_weight"),
        ({"class_weight": np.ones(5, np.int32)}, TypeError, "class_weight"),
        ({"labels": np.zeros(2, np.int32)}, ValueError, "labels"),
        ({"labels": np.zeros(3)}, TypeError, "labels"),
        ({"x": np.ones((3, 4), np.int32)}, TypeError, "x"),
    ],
)
def test_bad_arrays(change, error, argument):
    good = {"x": np.ones((3, 4)), "weight": np.ones((5, 4)), "labels": np.zeros(3, np.int32)}
    given = {name: jax.numpy.asarray(value) for name, value in {**good, **change}.items()}
    with pytest.raises(error, match=f"^linear_cross_entropy: argument '{argument}' must"):
        mbj.linear_cross_entropy(**given)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"chunk_rows": 0}, ValueError),
        ({"chunk_rows": 1.5}, TypeError),
        ({"reduction": "average"}, ValueError),
        ({"softcap": -1.0}, ValueError),
        ({"label_smoothing": 2.0}, ValueError),
        ({"ignore_index": 0.5}, TypeError),
        ({"validate": True, "axis_name": "a"}, ValueError),
    ],
)
def test_bad_options(options, error):
    x, weight, labels = (jax.numpy.ones(s) for s in ((3, 4), (5, 4), 3))
    name = next(iter(options))
    with pytest.raises(error, match=f"^linear_cross_entropy: argument '{name}' must"):
        mbj.linear_cross_entropy(x, weight, labels.astype("int32"), **options)
