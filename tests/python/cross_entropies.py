# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of cross_entropy and its gradient, and how near results must be."""

from __future__ import annotations

import numpy as np
from arrays import FRAMEWORKS
from reference import NUMPY_DTYPES

from membound._ulps import FORMATS
from membound.oracle import statistics_dtype, wide
from membound.oracle.softmax import cross_entropy

NOT_JAX = [name for name in FRAMEWORKS if "jax" not in str(name)]
KINDS = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.15},
    "z loss": {"z_loss": 0.02},
    "soft cap": {"softcap": 2.5},
    "all": {"label_smoothing": 0.3, "z_loss": 1e-3, "softcap": 4.0},
}


def zeros(one, shape, dtype):
    return one.array(np.zeros(shape, NUMPY_DTYPES[dtype]))


def definition(logits, labels, dloss=1.0, **options):
    """loss, lse and dlogits of each row; NaN where a label is not a column."""
    dtype = logits.dtype.name
    return [one.values for one in cross_entropy(logits, labels, dtype, dloss, **options)]


def label_weights(labels, cols, weight=None, ignore_index=-100):
    """The weight of each label; a mean divides by their sum."""
    weights = np.ones(cols) if weight is None else wide(weight, weight.dtype.name)
    found = np.where((labels >= 0) & (labels < cols), weights[np.clip(labels, 0, cols - 1)], np.nan)
    return np.where(labels == ignore_index, 0.0, found)


def assert_sums(found, right, dtype, size=32.0):
    """Check values per row within the slack of sums and logits of that magnitude."""
    assert found.dtype.name == statistics_dtype(dtype)
    rounding = 2.0 ** -(52 if dtype == "float64" else 23)
    np.testing.assert_allclose(wide(found, dtype), right, rtol=8 * rounding, atol=size * rounding)


def assert_gradient(found, right, dtype, dloss=1.0, size=32.0):
    assert found.dtype.name == dtype
    bits, smallest, _ = FORMATS[dtype]
    rounding = 2.0 ** -(52 if dtype == "float64" else 23)
    np.testing.assert_array_equal(np.isnan(wide(found, dtype)), np.isnan(right))
    off = np.nan_to_num(np.abs(wide(found, dtype) - right))
    right, dloss = np.nan_to_num(right), np.nan_to_num(np.asarray(dloss))
    allowed = 0.502 * 2.0 ** (1 - bits) * np.abs(right) + 2.0 ** max(smallest - bits + 1, -1074)
    terms = np.abs(right) + np.abs(np.asarray(dloss))[..., None] * 0.25
    assert (off <= allowed + size * rounding * terms).all(), (off - allowed).max()
