# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities and entropies of a last layer in JAX, against its log_softmax."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

pytest.importorskip("jax")

from test_jax_linear_cross_entropy import ROWS, VOCAB, assert_close, drawn  # noqa: F401

jax = pytest.importorskip("jax")
mbj = importlib.import_module("membound.jax")
OPTIONS = [
    {}, {"temperature": 0.7}, {"softcap": 2.5}, {"temperature": 1.3, "softcap": 2.0},
    {"ignore_index": 3},
]  # fmt: skip


def formula(x, weight, bias, labels, temperature=1.0, softcap=None, ignore_index=-100):
    """Log-probabilities and entropies from all logits, by JAX's own functions."""
    logits = x @ weight.T + bias
    if softcap is not None:
        logits = softcap * jax.numpy.tanh(logits / softcap)
    found = jax.nn.log_softmax(logits / temperature)
    counts = labels != ignore_index
    at = jax.numpy.where(counts, labels, 0)[..., None]
    chosen = jax.numpy.take_along_axis(found, at, -1)[..., 0]
    entropies = -(jax.numpy.exp(found) * found).sum(-1)
    return jax.numpy.where(counts, chosen, 0), jax.numpy.where(counts, entropies, 0)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients(drawn, options, with_bias, seed):  # noqa: F811
    """In chunks that do not divide the rows, under jit and without it."""
    x, weight, bias, labels = drawn
    leaves = [x, weight, bias] if with_bias else [x, weight]
    labels = labels.clip(0) if "ignore_index" in options else labels
    slopes = jax.numpy.asarray(np.random.default_rng(seed).standard_normal((2, *ROWS)))
    right, pull = jax.vjp(lambda x, w, b=0: formula(x, w, b, labels, **options), *leaves)
    wanted = pull(tuple(slopes))

    def ours(x, weight, bias=None, entropy=True):
        given = {"entropy": entropy, "chunk_rows": 4, **options}
        return mbj.linear_log_probs(x, weight, labels, bias, **given)

    for function in (ours, jax.jit(ours)):
        assert_close(function(*leaves), right)
        found, pull = jax.vjp(function, *leaves)
        assert_close(found, right)
        assert_close(pull(tuple(slopes)), wanted)
    alone = lambda *given: ours(*given, *[None] * (not with_bias), entropy=False)  # noqa: E731
    found, pull = jax.vjp(alone, *leaves)
    assert_close(found, right[0])
    right, pull_right = jax.vjp(lambda x, w, b=0: formula(x, w, b, labels, **options)[0], *leaves)
    assert_close(pull(slopes[0]), pull_right(slopes[0]))


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="this JAX has none")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_under_shard_map(drawn, options):  # noqa: F811
    """The code of a sharded vocabulary, of which one device has all (more: jax_vocabulary.py)."""
    *arrays, labels = drawn
    labels = labels.clip(0) if "ignore_index" in options else labels
    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(np.array(list(labels.devices())), "a")

    def layer(x, w, b, axis_name=None):
        given = {"entropy": True, "chunk_rows": 4, "axis_name": axis_name, **options}
        return mbj.linear_log_probs(x, w, labels, b, **given)

    split = jax.shard_map(
        lambda *given: layer(*given, "a"),
        mesh=mesh,
        in_specs=(spec(), spec("a"), spec("a")),
        out_specs=spec(),
    )

    def step(function):
        total = lambda *given: sum((at + 1) * r.sum() for at, r in enumerate(function(*given)))  # noqa: E731
        return jax.jit(jax.value_and_grad(total, (0, 1, 2)))

    assert_close(step(split)(*arrays), step(layer)(*arrays))


def test_of_16_bits(drawn):  # noqa: F811
    """Results are float32; gradients have the dtypes of what they are of."""
    x, weight, _, labels = drawn
    x, weight = x.astype("bfloat16"), weight.astype("float32")

    def total(x, weight):
        results = mbj.linear_log_probs(x, weight, labels, entropy=True, temperature=0.5)
        assert [one.dtype.name for one in results] == ["float32"] * 2
        return sum(one.sum() for one in results)

    gradients = jax.grad(total, (0, 1))(x, weight)
    assert [one.dtype.name for one in gradients] == ["bfloat16", "float32"]
    wide = [one.astype("float64") for one in (x, weight)]
    right = jax.grad(lambda x, w: sum(r.sum() for r in formula(x, w, 0, labels, 0.5)), (0, 1))
    for got, wanted in zip(gradients, right(*wide), strict=True):
        tolerance = 0.04 * abs(wanted).max()  # logits of about 16 have a step of 2^-4
        np.testing.assert_allclose(got.astype("float64"), wanted, rtol=0, atol=tolerance)


def test_cold_distributions_have_no_negative_entropy(drawn):  # noqa: F811
    """Logits of thousands, which XLA may make again and round otherwise than the kernels' ones."""
    x, weight, bias, labels = (one.astype("float32") for one in drawn)
    options = {"entropy": True, "temperature": 1e-3}
    _, entropies = mbj.linear_log_probs(x, weight, labels.astype("int32"), bias, **options)
    assert not np.signbit(entropies).any()


def test_rare_rows(drawn):  # noqa: F811
    """Masked columns have no part; a label that is no column makes its row NaN."""
    x, weight, bias, labels = drawn
    labels = (
        jax.numpy.where(labels == 2, 3, labels).at[1, 1].set(VOCAB).at[0, 0].set(0).at[1, 2].set(2)
    )
    bias = bias.at[2].set(-np.inf)
    results = mbj.linear_log_probs(x, weight, labels, bias, entropy=True)
    rights = formula(x, weight, bias.at[2].set(-1e30), labels)
    for found, right in zip(results, rights, strict=True):
        assert np.argwhere(np.isnan(found)).tolist() == [[1, 1]]
        assert_close(found[0], right[0])
    assert results[0][1, 2] == -np.inf
    total = lambda x: mbj.linear_log_probs(x, weight, labels, bias, entropy=True)[1][0].sum()  # noqa: E731
    assert np.isfinite(jax.grad(total)(x)[0]).all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"temperature": 0.0}, ValueError),
        ({"temperature": float("inf")}, ValueError),
        ({"temperature": "warm"}, TypeError),
        ({"entropy": 1}, TypeError),
        ({"chunk_rows": 0}, ValueError),
        ({"softcap": -1.0}, ValueError),
        ({"ignore_index": 0.5}, TypeError),
        ({"validate": True, "axis_name": "a"}, ValueError),
    ],
)
def test_bad_options(options, error):
    x, weight, labels = (jax.numpy.ones(s) for s in ((3, 4), (5, 4), 3))
    name = next(iter(options))
    with pytest.raises(error, match=f"^linear_log_probs: argument '{name}' must"):
        mbj.linear_log_probs(x, weight, labels.astype("int32"), **options)


def test_the_gradient_of_entropies_of_logits(seed):
    """Of cross_entropy_backward; the entropies are those that JAX computes."""
    membound = importlib.import_module("membound")
    rng = np.random.default_rng(seed)
    logits = jax.numpy.asarray(rng.standard_normal((5, 7)))
    labels = jax.numpy.asarray([0, 6, -100, 3, 3])

    def losses(logits):
        found = jax.nn.log_softmax(logits)
        chosen = jax.numpy.take_along_axis(found, labels.clip(0)[:, None], -1)[:, 0]
        counts = labels >= 0
        entropies = -(jax.numpy.exp(found) * found).sum(-1)
        return jax.numpy.where(counts, -chosen, 0), jax.numpy.where(counts, entropies, 0)

    (_, entropy), pull = jax.vjp(losses, logits)
    dloss, dentropy = jax.numpy.asarray(rng.standard_normal((2, 5)))
    _, lse = mbj.cross_entropy(logits, labels, return_lse=True)
    given = dloss, logits, labels, lse
    wanted = pull((dloss, dentropy))[0]
    for function in (mbj, membound):
        found = function.cross_entropy_backward(*given, entropy=entropy, dentropy=dentropy)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
        with pytest.raises(ValueError, match="'dentropy' must be given with 'entropy'"):
            function.cross_entropy_backward(*given, entropy=entropy)
