# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""References of cross_entropy and its gradient, in a wider dtype than they compute in."""

from __future__ import annotations

import numpy as np
from arrays import FRAMEWORKS
from reference import NUMPY_DTYPES, statistics_dtype, wide

from membound._ulps import FORMATS

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


def definition(logits, labels, dloss=1.0, *, weight=None, ignore_index=-100, label_smoothing=0.0,
               z_loss=0.0, softcap=None):  # fmt: skip
    """loss, lse and dlogits of each row; NaN where a label is not a column."""
    x = wide(logits, logits.dtype.name)
    cols = x.shape[-1]
    weights = np.ones(cols) if weight is None else wide(weight, weight.dtype.name)
    capped, slope = x, 1
    if softcap is not None:  # 1 - tanh^2 would cancel where the slope is small
        capped, slope = softcap * np.tanh(x / softcap), np.cosh(x / softcap) ** -2.0
    counts = (labels != ignore_index) & (labels >= 0) & (labels < cols)
    at = np.where(counts, labels, 0)[..., None]
    with np.errstate(all="ignore"):
        top = capped.max(-1, keepdims=True)
        low = np.log(np.exp(capped - top).sum(-1, keepdims=True))
        lse = (top + low)[..., 0]
        distance = low + (top - capped)  # lse - capped, without cancellation
        here = weights[at[..., 0]]
        loss = (1 - label_smoothing) * here * np.take_along_axis(distance, at, -1)[..., 0]
        if label_smoothing:
            loss = loss + label_smoothing * (weights * distance).mean(-1)
        loss = loss + z_loss * here * lse**2
        along = (1 - label_smoothing) * here + label_smoothing * weights.mean()
        along = along + 2 * z_loss * here * lse
        share = np.where(np.arange(cols) == at, (1 - label_smoothing) * here[..., None], 0)
        gradient = np.exp(-distance) * along[..., None] - share - label_smoothing / cols * weights
        gradient = np.asarray(dloss)[..., None] * gradient * slope
    absent = np.where(labels == ignore_index, 0.0, np.nan)
    return (
        np.where(counts, loss, absent),
        np.where(counts, lse, absent),
        np.where(counts[..., None], gradient, absent[..., None]),
    )


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
