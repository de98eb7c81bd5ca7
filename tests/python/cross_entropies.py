# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What cross_entropy and its gradient must return, in a wider type than they compute in."""

from __future__ import annotations

import numpy as np
from reference import statistics_dtype, wide

from membound._ulps import FORMATS

KINDS = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.15},
    "z loss": {"z_loss": 0.02},
    "soft cap": {"softcap": 2.5},
    "all": {"label_smoothing": 0.3, "z_loss": 1e-3, "softcap": 4.0},
}


def definition(logits, labels, dloss=1.0, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
               softcap=None):  # fmt: skip
    """loss, lse and dlogits."""
    x = wide(logits, logits.dtype.name)
    cols = x.shape[-1]
    capped, slope = x, 1
    if softcap is not None:  # 1 - tanh^2 would cancel where the slope is small
        capped, slope = softcap * np.tanh(x / softcap), np.cosh(x / softcap) ** -2.0
    counts = (labels != ignore_index) & (labels >= 0) & (labels < cols)
    at = np.where(counts, labels, 0)[..., None]
    with np.errstate(all="ignore"):
        top = capped.max(-1, keepdims=True)
        lse = (top + np.log(np.exp(capped - top).sum(-1, keepdims=True)))[..., 0]
        loss = (1 - label_smoothing) * (lse - np.take_along_axis(capped, at, -1)[..., 0])
        loss = loss + (label_smoothing * (lse - capped.mean(-1)) if label_smoothing else 0)
        loss = loss + z_loss * lse**2
        share = np.where(np.arange(cols) == at, 1 - label_smoothing, 0) + label_smoothing / cols
        gradient = np.exp(capped - lse[..., None]) * (1 + 2 * z_loss * lse[..., None]) - share
        gradient = np.asarray(dloss)[..., None] * gradient * slope
    return (
        np.where(counts, loss, 0),
        np.where(counts, lse, 0),
        np.where(counts[..., None], gradient, 0),
    )


def assert_sums(found, right, dtype, size=32.0):
    """Numbers of rows: what sums and logits of that size may be off by."""
    assert found.dtype.name == statistics_dtype(dtype)
    rounding = 2.0 ** -(52 if dtype == "float64" else 23)
    np.testing.assert_allclose(wide(found, dtype), right, rtol=8 * rounding, atol=size * rounding)


def assert_gradient(found, right, dtype, dloss=1.0, size=32.0):
    assert found.dtype.name == dtype
    bits, smallest, _ = FORMATS[dtype]
    rounding = 2.0 ** -(52 if dtype == "float64" else 23)
    off = np.abs(wide(found, dtype) - right)
    allowed = 0.502 * 2.0 ** (1 - bits) * np.abs(right) + 2.0 ** max(smallest - bits + 1, -1074)
    terms = np.abs(right) + np.abs(np.asarray(dloss))[..., None] * 0.25
    assert (off <= allowed + size * rounding * terms).all(), (off - allowed).max()
