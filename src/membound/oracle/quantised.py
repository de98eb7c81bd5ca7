# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""8-bit results of rows, exact bit for bit: the formula of the documentation in the ops' order.

scale = max |y| / largest number of the dtype, at least 2^-126; the result is the number nearest to
y / scale, ties to even. The float8 formats: Micikevicius et al. 2022 (arXiv:2209.05433).
"""

from __future__ import annotations

from typing import Any

from membound._ulps import FORMATS
from membound.oracle import np, round_to

LIMITS = {**{name: FORMATS[name][2] for name in ("float8_e4m3fn", "float8_e5m2")}, "int8": 127.0}
SMALLEST_SCALE = np.float32(2.0**-126)


def nearest(values: np.ndarray, kind: str) -> np.ndarray:
    """The nearest numbers of an 8-bit dtype, as float64; larger ones are clamped."""
    values = np.clip(values.astype(np.float64), -LIMITS[kind], LIMITS[kind])
    if kind == "int8":
        return np.where(np.isnan(values), 0.0, np.rint(values))
    return round_to(values, kind)


def quantised(
    y: np.ndarray, kind: str, scale: Any = "row", bound: float | None = None, given: float = 1.0
) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers, and the scales of rows or of so many columns; "static": of the given scale."""
    wide = np.float64 if y.dtype == np.float64 else np.float32
    y = y.astype(wide)
    with np.errstate(all="ignore"):
        if scale == "static":
            return nearest(y * (wide(1) / wide(np.float32(given))), kind), None
        size = y.shape[-1] if scale == "row" else scale
        parts, scales = [], []
        for first in range(0, y.shape[-1], size):
            part = y[..., first : first + size]
            largest = np.abs(part).max(-1)
            one = (largest / wide(LIMITS[kind])).astype(np.float32)
            one = np.where(np.isinf(one) & np.isfinite(largest), np.finfo(np.float32).max, one)
            one = np.maximum(one, SMALLEST_SCALE)
            one = one if bound is None else np.minimum(one, np.float32(bound))
            scales.append(one)
            parts.append(nearest(part * (wide(1) / one.astype(wide))[..., None], kind))
    return np.concatenate(parts, -1), scales[0] if scale == "row" else np.stack(scales, -1)
