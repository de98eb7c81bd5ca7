# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The entropy of each row beside its cross entropy, and its gradient, against float64."""

from __future__ import annotations

import arrays
import numpy as np
import pytest
from cross_entropies import KINDS, NOT_JAX, assert_gradient, assert_sums, definition
from reference import DTYPES
from softmaxes import draw
from test_cross_entropy import draw_labels

import membound
from membound.oracle import statistics_dtype, wide

LOGITS = np.ones((2, 4), np.float32)
READ_ONLY = np.broadcast_to(np.float32(1), (2,))
COLS = (1, 2, 5, 16, 33, 64, 100, 200, 1000, 2049, 9000)


def entropies(logits, labels, softcap=None, **_):
    """Each row's entropy, and its gradient with respect to logits."""
    x = wide(logits, logits.dtype.name)
    l, slope = x, 1.0  # noqa: E741
    if softcap is not None:
        l, slope = softcap * np.tanh(x / softcap), np.cosh(x / softcap) ** -2.0  # noqa: E741
    with np.errstate(all="ignore"):
        top = l.max(-1, keepdims=True)
        distance = np.log(np.exp(l - top).sum(-1, keepdims=True)) + (top - l)
        p = np.exp(-distance)
        entropy = np.where(p == 0, 0, p * distance).sum(-1)
        gradient = np.where(p == 0, 0, p * (distance - entropy[..., None])) * slope
    inside = (labels >= 0) & (labels < x.shape[-1])
    absent = np.where(labels == -100, 0.0, np.nan)
    gradient = np.where(inside[..., None], gradient, absent[..., None])
    return np.where(inside, entropy, absent), gradient


def forward(one, logits, labels, **options):
    """The arrays given, the loss, lse and entropy of each row."""
    given, entropy = (one.array(logits), one.array(labels)), full(one, labels.shape, logits)
    found = membound.cross_entropy(*given, return_lse=True, entropy=entropy, **options)
    return given, *found, entropy


def full(one, shape, logits):
    """An array of a loss's dtype, of numbers that are to be overwritten."""
    return one.array(np.full(shape, 7, statistics_dtype(logits.dtype.name)))


def gradient_of_both(one, logits, labels, dloss, dentropy, *, in_place=False, **options):
    given, _, lse, entropy = forward(one, logits, labels, **options)
    return membound.cross_entropy_backward(
        one.array(dloss), *given, lse, entropy=entropy, dentropy=one.array(dentropy),
        dlogits=given[0] if in_place else None, **options,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_values(name, dtype, kind, seed):
    """With the loss and lse that there are without entropies."""
    one, rng = arrays.framework_without_device(name, dtype), np.random.default_rng(seed)
    for cols in COLS:
        logits, labels = draw(rng, (3, 4, cols), dtype, 3.0), draw_labels(rng, (3, 4), cols)
        options = KINDS[kind]
        given, loss, lse, found = forward(one, logits, labels, **options)
        assert_sums(one.numpy(found), entropies(logits, labels, **options)[0], dtype)
        alone = membound.cross_entropy(*given, return_lse=True, **options)
        for mine, other in zip((loss, lse), alone, strict=True):
            assert one.numpy(mine).tobytes() == one.numpy(other).tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_gradient(name, dtype, kind, seed):
    one, rng = arrays.framework_without_device(name, dtype), np.random.default_rng(seed)
    options = KINDS[kind]
    for cols in COLS:
        logits, labels = draw(rng, (7, cols), dtype, 3.0), draw_labels(rng, 7, cols)
        dloss, dentropy = (draw(rng, (7,), statistics_dtype(dtype)) for _ in range(2))
        right = dentropy[:, None] * entropies(logits, labels, **options)[1]
        right = right + definition(logits, labels, dloss, **options)[2]
        given = one, logits, labels, dloss, dentropy
        found = gradient_of_both(*given, **options)
        size = np.abs(dloss) + 8 * np.abs(dentropy)
        assert_gradient(one.numpy(found), right, dtype, size)
        in_place = gradient_of_both(*given, in_place=True, **options)
        assert one.numpy(in_place).tobytes() == one.numpy(found).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_rows_wider_than_a_block(name, dtype, seed):
    """Parts of a row, in a cluster of blocks or one after the other, and far from zero."""
    one, rng = arrays.framework_without_device(name, dtype), np.random.default_rng(seed)
    for cols in (70_001, 300_000):
        logits = draw(rng, (3, cols), dtype, 2.0)
        logits[1] += np.linspace(-40, 40, cols).astype(logits.dtype)
        labels = np.array([0, cols - 1, -100])
        found = forward(one, logits, labels)[-1]
        right, slope = entropies(logits, labels)
        assert_sums(one.numpy(found), right, dtype, size=128.0)
        dloss = np.zeros(3, statistics_dtype(dtype))
        got = gradient_of_both(one, logits, labels, dloss, dloss + 1)
        assert_gradient(one.numpy(got), slope, dtype, 64.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_distributions_with_known_entropies(name, dtype):
    """Uniform, of one column, of a few columns among masked ones, and large logits."""
    one, cols = arrays.framework_without_device(name, dtype), 200
    logits = np.zeros((5, cols))
    logits[1], logits[1, 7] = -np.inf, 3.0
    logits[2, 4:] = -np.inf
    logits[3] = 1000.0
    logits[4], logits[4, ::50] = -1e4, 1e4
    right = np.log([cols, 1, 4, cols, 4])
    logits = draw(np.random.default_rng(0), logits.shape, dtype) * 0 + logits.astype(dtype)
    labels = np.array([1, 7, 3, 9, 0])
    found = forward(one, logits, labels)[-1]
    assert_sums(one.numpy(found), right, dtype)
    zeros = np.zeros(5, statistics_dtype(dtype))
    got = one.numpy(gradient_of_both(one, logits, labels, zeros, zeros + 1))
    np.testing.assert_allclose(wide(got, dtype), 0, atol=2.0**-18 if dtype != "float64" else 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_strides_and_class_weights(name, dtype, seed):
    """Class weights have no part in an entropy; columns with strides have the same bits."""
    one, rng = arrays.framework_without_device(name, dtype), np.random.default_rng(seed)
    if not one.strided:
        pytest.skip("its arrays have no strides")
    for cols in (5, 48, 520):
        logits, labels = draw(rng, (6, 2 * cols), dtype), draw_labels(rng, 6, cols)
        weight = draw(rng, (cols,), "float32")
        dloss, dentropy = (draw(rng, (6,), statistics_dtype(dtype)) for _ in range(2))
        options = {"label_smoothing": 0.1, "weight": one.array(np.abs(weight))}
        results = []
        for lying in (one.array(logits)[:, ::2], one.array(logits[:, ::2].copy())):
            given, entropy = (lying, one.array(labels)), full(one, 6, logits)
            lse = membound.cross_entropy(*given, return_lse=True, entropy=entropy, **options)[1]
            dlogits = membound.cross_entropy_backward(
                one.array(dloss), *given, lse, entropy=entropy, dentropy=one.array(dentropy),
                **options,
            )  # fmt: skip
            results.append([one.numpy(each) for each in (lse, entropy, dlogits)])
        for mine, other in zip(*results, strict=True):
            assert mine.tobytes() == other.tobytes()
        logits = logits[:, ::2].copy()
        right, slope = entropies(logits, labels)
        assert_sums(results[0][1], right, dtype)
        options["weight"] = np.abs(weight)
        slope = dentropy[:, None] * slope + definition(logits, labels, dloss, **options)[2]
        assert_gradient(results[0][2], slope, dtype, np.abs(dloss) + 8 * np.abs(dentropy))


def test_with_a_reduction():
    """Entropies are of rows all the same."""
    logits, labels = np.log([[1.0, 1.0, 2.0], [1.0, 3.0, 4.0]]), np.array([2, -100])
    entropy = np.ones(2)
    loss = membound.cross_entropy(logits, labels, reduction="mean", entropy=entropy)
    np.testing.assert_allclose(loss, np.log(2))
    np.testing.assert_allclose(entropy, [1.5 * np.log(2), 0])


@pytest.mark.parametrize(
    ("entropy", "error"),
    [
        (np.ones(3, np.float32), ValueError),
        (np.ones(2), TypeError),
        ([1.0, 2.0], TypeError),
        (READ_ONLY, ValueError),
        (LOGITS[:, 0], ValueError),
    ],
)
def test_bad_outputs(entropy, error):
    with pytest.raises(error, match=r"^cross_entropy: argument 'entropy' must"):
        membound.cross_entropy(LOGITS, np.zeros(2, np.int64), entropy=entropy)


@pytest.mark.parametrize(
    ("change", "error", "argument"),
    [
        ({"entropy": None}, ValueError, "entropy"),
        ({"dentropy": None}, ValueError, "dentropy"),
        ({"dentropy": np.ones(3, np.float32)}, ValueError, "dentropy"),
        ({"entropy": np.ones(2)}, TypeError, "entropy"),
        ({"entropy": [1.0, 2.0]}, TypeError, "entropy"),
        ({"dentropy": np.ones((2, 1), np.float32)}, ValueError, "dentropy"),
    ],
)
def test_bad_calls(change, error, argument):
    ones = np.ones(2, np.float32)
    good = {"entropy": ones, "dentropy": ones, **change}
    given = ones, np.ones((2, 4), np.float32), np.zeros(2, np.int64), np.ones((2, 2), np.float32)
    with pytest.raises(error, match=f"^cross_entropy_backward: argument '{argument}' must"):
        membound.cross_entropy_backward(*given, **good)


def test_an_entropy_that_dlogits_would_overwrite():
    logits, labels = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    lse, ones = np.ones((2, 2), np.float32), np.ones(2, np.float32)
    for name in ("entropy", "dentropy"):
        both = {"entropy": ones, "dentropy": ones, name: logits[:, 0]}
        with pytest.raises(ValueError, match=f"'dlogits' must not overlap .*'{name}'"):
            membound.cross_entropy_backward(ones, logits, labels, lse, dlogits=logits, **both)


def test_jax_arrays_are_not_written():
    jax = pytest.importorskip("jax")
    logits, labels, ones = jax.numpy.ones((2, 4)), jax.numpy.zeros(2, "int32"), np.ones(2)
    with pytest.raises(TypeError, match="'entropy' must be None for JAX arrays"):
        membound.cross_entropy(logits, labels, entropy=ones)
    with pytest.raises(TypeError, match="'dentropy' must be a jax array"):
        membound.cross_entropy_backward(1.0, logits, labels, logits[:, :2], dentropy=ones)
