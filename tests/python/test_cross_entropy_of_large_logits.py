# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy of logits that are large, far apart or not finite."""

from __future__ import annotations

import numpy as np
import pytest
from arrays import FRAMEWORKS
from arrays import framework_without_device as framework
from cross_entropies import NOT_JAX, assert_gradient, assert_sums, definition, zeros
from reference import DTYPES, NUMPY_DTYPES

import membound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_extreme_values(name, dtype):
    one = framework(name, dtype)
    large = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[dtype]
    inf = np.inf
    rows = np.array([[large, 0, -large], [-inf, 0, 0], [-inf] * 3, [inf, 0, 0], [np.nan, 0, 0]])
    labels = one.array(np.array([0, 1, 0, 0, 1]))
    loss, lse = membound.cross_entropy(
        one.array(rows.astype(NUMPY_DTYPES[dtype])), labels, return_lse=True
    )
    np.testing.assert_allclose(
        one.numpy(loss), [0, np.log(2), np.nan, np.nan, np.nan], rtol=1e-6, atol=1e-6
    )
    assert one.numpy(lse)[2].sum() == -inf
    far = one.array(np.array([[0, -large, 0]]).astype(NUMPY_DTYPES[dtype]))
    found = one.numpy(membound.cross_entropy(far, one.array(np.array([1]))))
    wanted = np.log(2) + np.float64(NUMPY_DTYPES[dtype].type(large))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    capped = one.numpy(membound.cross_entropy(far, one.array(np.array([1])), softcap=2.0))
    np.testing.assert_allclose(capped, np.log(2 + np.exp(-2)) + 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOT_JAX)
def test_logits_of_every_magnitude(name, dtype):
    """The two highest logits are equal, the rest lower by the spacing of that magnitude."""
    one = framework(name, dtype)
    kind = NUMPY_DTYPES[dtype]
    highest = {"float16": 4, "bfloat16": 38, "float32": 38, "float64": 308}[dtype]
    powers = sorted({highest * step // 12 for step in range(13)})
    for cols in (4, 2000, 40000):  # exponentials depend on the vectors per thread
        top = np.array([sign * 10.0**power for power in powers for sign in (1, -1)])
        logits = (top - np.abs(top) * 0.02)[:, None].repeat(cols, 1)
        logits[:, 0] = logits[:, cols // 2] = top
        logits = logits.astype(kind)
        labels = np.zeros(len(top), np.int64)
        _, lse, gradient = definition(logits, labels)
        dlogits = zeros(one, logits.shape, dtype)
        loss, found = membound.cross_entropy(
            one.array(logits), one.array(labels), return_lse=True, dlogits=dlogits
        )
        parts = one.numpy(found).astype(np.float64)
        np.testing.assert_allclose(parts.sum(-1), lse, rtol=1e-12, atol=1e-6)
        near = np.abs(top) < 1e4  # the others are all but two, too low to contribute
        wanted = np.where(near, lse - logits[:, 0].astype(np.float64), np.log(2))
        np.testing.assert_allclose(one.numpy(loss), wanted, rtol=2e-6, atol=1e-6)
        tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-12}[dtype]
        found = one.numpy(dlogits).astype(np.float64)
        np.testing.assert_allclose(found, gradient, atol=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_logits_with_an_offset(name, dtype, smoothing, seed):
    """A float32 lse would cost the gradient 1e-2 at 1e6; a sum of logits would cost the loss."""
    one = framework(name, dtype)
    rng = np.random.default_rng(seed)
    for offset in (0.0, 1e4, -1e6, 1e7):
        for cols in (7, 100, 3000):
            offset = np.clip(offset, -3e4, 3e4) if dtype == "float16" else offset
            logits = (2.0 * rng.standard_normal((5, cols)) + offset).astype(NUMPY_DTYPES[dtype])
            labels = rng.integers(0, cols, 5)
            loss, _, right = definition(logits, labels, label_smoothing=smoothing)
            given = one.array(logits), one.array(labels)
            options = {"label_smoothing": smoothing}
            found, lse = membound.cross_entropy(*given, return_lse=True, **options)
            assert_sums(one.numpy(found), loss, dtype)
            gradient = membound.cross_entropy_backward(1.0, *given, lse, **options)
            assert_gradient(one.numpy(gradient), right, dtype)
            if one.takes_out:
                membound.cross_entropy(*given, dlogits=given[0], **options)
                assert one.numpy(given[0]).tobytes() == one.numpy(gradient).tobytes()
