# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax and cross entropy of logits, and their gradients.

Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs". Label
smoothing: Szegedy et al. 2015 (arXiv:1512.00567), section 7. z loss: Chowdhery et al. 2022
(arXiv:2204.02311), section 5. soft cap: Gemma 2 (arXiv:2408.00118). With p = softmax(x),
dx = p (dy - sum(dy p)); the gradient of -log p[label] is p less 1 at the label.
"""

from __future__ import annotations

from typing import Any

from membound._ulps import SOFTMAX_ALLOWED
from membound.oracle import Expected, np, of_sum, rounding, statistics_dtype, wide


def triangle(shape: tuple[int, ...], offset: int) -> np.ndarray:
    """True for the elements that causal_offset keeps."""
    rows, cols = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    return cols <= rows + offset


def softmax(
    x: np.ndarray,
    dtype: str,
    *,
    mask: np.ndarray | None = None,
    scale: float = 1.0,
    causal_offset: int | None = None,
) -> Expected:
    """The slack is for rounded logits and their differences."""
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
        y = np.where(kept, power / power.sum(-1, keepdims=True), 0)
    size = np.abs(np.where(np.isfinite(logits), logits, 0)).max(-1, keepdims=True, initial=0)
    return Expected([y], dtype, np.nan_to_num(y) * size, rounding(dtype, 4), SOFTMAX_ALLOWED)


def softmax_backward(dy: np.ndarray, y: np.ndarray, dtype: str, *, scale: float = 1.0) -> Expected:
    dy, y = wide(dy, dtype), wide(y, dtype)
    products = dy * y
    terms = np.abs(scale * y) * (np.abs(dy) + np.abs(products).sum(-1, keepdims=True))
    dx = scale * y * (dy - products.sum(-1, keepdims=True))
    return of_sum(dx, terms, dtype, dtype, SOFTMAX_ALLOWED)


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    dtype: str,
    dloss: Any = 1.0,
    *,
    weight: np.ndarray | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> tuple[Expected, Expected, Expected]:
    """loss, log(sum(exp)) and dlogits of each row; NaN where a label is not a column."""
    x = wide(logits, dtype)
    cols = x.shape[-1]
    weights = np.ones(cols) if weight is None else wide(weight, dtype)
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
        along = (along + 2 * z_loss * here * lse)[..., None]
        share = np.where(np.arange(cols) == at, (1 - label_smoothing) * here[..., None], 0)
        share = share + label_smoothing / cols * weights
        power, dy = np.exp(-distance) * along, np.asarray(dloss)[..., None]
        gradient = dy * (power - share) * slope
        # Logits and their differences are rounded, of 16 bits also a GPU's fast exp.
        size = np.abs(lse) + np.abs(capped).max(-1) + 1
        terms = np.abs(dy * slope) * ((size[..., None] + 3) * np.abs(power) + share)
        terms = terms + np.abs(gradient)
    absent, kind = np.where(labels == ignore_index, 0.0, np.nan), statistics_dtype(dtype)

    def expect(right: np.ndarray, terms: np.ndarray, dtype: str) -> Expected:
        of_rows = (...,) + (None,) * (right.ndim - counts.ndim)
        right = np.where(counts[of_rows], right, absent[of_rows])
        terms = np.where(counts[of_rows], terms, 0)
        return Expected([right], dtype, terms, rounding(kind, 8), SOFTMAX_ALLOWED)

    return expect(loss, size, kind), expect(lse, size, kind), expect(gradient, terms, dtype)
