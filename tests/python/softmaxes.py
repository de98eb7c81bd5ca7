# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""References of softmax and its gradient, in a wider dtype than they compute in."""

from __future__ import annotations

import numpy as np
from reference import NUMPY_DTYPES, wide

from membound._ulps import FORMATS, SOFTMAX_ALLOWED, sum_slack

COLS = (1, 2, 3, 7, 8, 16, 31, 33, 64, 96, 200, 257, 1000, 2048, 2049)


def draw(rng, shape, dtype, spread=1.0):
    return (spread * rng.standard_normal(shape)).astype(NUMPY_DTYPES[dtype])


def triangle(shape, offset):
    """True for the elements that causal_offset keeps."""
    rows, cols = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    return cols <= rows + offset


def softmax(x, mask=None, scale=1.0, causal_offset=None):
    """The result, and the relative slack for rounded logits and their differences."""
    dtype = x.dtype.name
    logits = wide(x, dtype) * scale
    if mask is not None and mask.dtype == bool:
        logits = np.where(mask, logits, -np.inf)
    elif mask is not None:
        logits = logits + wide(mask, dtype)
    kept = np.ones(x.shape, bool)
    if causal_offset is not None:
        kept = np.broadcast_to(triangle(x.shape, causal_offset), x.shape)
    logits = np.where(kept, logits, -np.inf)
    with np.errstate(all="ignore"):
        power = np.exp(logits - logits.max(-1, keepdims=True))
        y = power / power.sum(-1, keepdims=True)
    y = np.where(kept, y, 0)
    size = np.abs(np.where(np.isfinite(logits), logits, 0)).max(initial=0)
    return y, float(size) * 2.0 ** -(51 if dtype == "float64" else 22)


def softmax_backward(dy, y, scale=1.0):
    """The result, and the slack of its sum."""
    dtype = y.dtype.name
    dy, y = wide(dy, dtype), wide(y, dtype)
    products = dy * y
    terms = np.abs(scale * y) * (np.abs(dy) + np.abs(products).sum(-1, keepdims=True))
    dx = scale * y * (dy - products.sum(-1, keepdims=True))
    return dx, sum_slack(dtype) * terms


def assert_right(found, right, slack, dtype):
    """Check that results are within the dtype's ulps plus the slack."""
    assert found.dtype == NUMPY_DTYPES[dtype]
    assert found.shape == right.shape
    found = wide(found, dtype)
    same = (found == right) | (np.isnan(found) & np.isnan(right))
    off = np.abs(found - right)[~same] - np.broadcast_to(slack, right.shape)[~same]
    assert not np.isnan(off).any()
    bits, smallest, _ = FORMATS[dtype]
    ulps = np.spacing(np.abs(right[~same]).astype(np.float64)) * 2.0 ** (53 - bits)
    worst = (off / np.maximum(ulps, 2.0 ** max(smallest - bits + 1, -1074))).max(initial=0.0)
    assert worst <= SOFTMAX_ALLOWED[dtype], worst
