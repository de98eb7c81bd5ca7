# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations, act(gate) * up, and their gradients.

GLU variants: Shazeer 2020 (arXiv:2002.05202). GELU and its tanh form: Hendrycks and Gimpel 2016
(arXiv:1606.08415). relu2: So 2021 (arXiv:2109.08668). alpha, limit, up_offset: gpt-oss. situ
is soft_cap(gate, alpha) * sigmoid(gate) * soft_cap(up, limit). Slopes follow by the product rule.
"""

from __future__ import annotations

import math
from typing import Any

from membound._ulps import ACTIVATION_ALLOWED, ACTIVATION_SLACK
from membound.oracle import Expected, np, statistics_dtype, wide

KINDS = ("silu", "gelu", "gelu_tanh", "sigmoid", "relu2", "relu", "situ")
# The exponent of half of the smallest value.
_LEAST = {"float32": -150, "float64": -1075}


def _erfc(x: np.ndarray) -> np.ndarray:
    """To the precision of x: where float64 rounds x, its slope tells what that takes."""
    near = x.astype(np.float64)
    found = np.vectorize(math.erfc, otypes=[np.float64])(near).astype(x.dtype)
    return found - (x - near) * np.exp(-(x * x)) / np.sqrt(np.arctan(x.dtype.type(1)))


def soft_cap(x: np.ndarray, cap: Any) -> tuple[np.ndarray, np.ndarray]:
    """cap * tanh(x / cap) and its slope, which loses no digits where tanh is near 1."""
    power = np.exp(-2 * np.abs(x / cap))
    return cap * np.tanh(x / cap), 4 * power / (1 + power) ** 2


def activation(kind: str, g: np.ndarray, alpha: float) -> tuple[np.ndarray, ...]:
    """The function, its slope, and the magnitude of the slope's terms, in the dtype of g."""
    number = g.dtype.type
    pi = 4 * np.arctan(number(1))
    if kind == "relu2":
        positive = np.maximum(g, 0)
        return positive**2, 2 * positive, 2 * positive
    if kind == "relu":
        return np.maximum(g, 0), (g > 0).astype(g.dtype), (g > 0).astype(g.dtype)
    if kind == "situ":
        s, rest = 1 / (1 + np.exp(-g)), 1 / (1 + np.exp(g))
        capped, steep = soft_cap(g, number(alpha))
        return capped * s, s * (steep + capped * rest), s * (steep + np.abs(capped) * rest)
    if kind == "gelu":
        below = _erfc(-g / np.sqrt(number(2))) / 2
        steep = g * np.exp(-(g * g) / 2) / np.sqrt(2 * pi)
        return g * below, below + steep, below + np.abs(steep)
    if kind == "gelu_tanh":
        cubic = number(44715) / 1000000
        factor = 2 * np.sqrt(2 / pi)
        z, steep = factor * (g + cubic * g**3), factor * (g + 3 * cubic * g**3)
    else:
        z = steep = number(alpha) * g
    s, rest = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))
    if kind == "sigmoid":
        return s, number(alpha) * s * rest, number(alpha) * s * rest
    return g * s, s * (1 + steep * rest), s * (1 + np.abs(steep) * rest)


def gated_activation(
    gate: np.ndarray,
    up: np.ndarray | None,
    dy: np.ndarray,
    dtype: str,
    *,
    kind: str = "silu",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: np.ndarray | None = None,
) -> dict[str, Expected]:
    """out, dgate and dup."""
    situ = kind == "situ"
    alpha = alpha or (4.0 if situ else 1.0)
    bound = limit or (25.0 if situ else math.inf)
    with np.errstate(all="ignore"):
        g, d = wide(gate, dtype), wide(dy, dtype)
        u = np.ones_like(g) if up is None else wide(up, dtype)
        held = g if situ else np.minimum(g, bound)
        parts = activation(kind, held, alpha)
        # What alone would round to 0 is 0, however large what it is multiplied by. relu2 is not
        # rounded before that.
        least = 0 if kind == "relu2" else np.ldexp(g.dtype.type(1), _LEAST[statistics_dtype(dtype)])
        value, slope, size = (np.where(np.abs(part) < least, 0 * part, part) for part in parts)
        factor, slope_of_up = np.clip(u, -bound, bound), np.where(np.abs(u) > bound, 0, 1)
        if situ and bound < math.inf:
            factor, slope_of_up = soft_cap(u, g.dtype.type(bound))
        factor = u if up is None else factor + up_offset
        scale = 1 if row_scale is None else wide(row_scale, dtype)[..., None]
        # A sum of up and its offset rounds once.
        terms = np.abs(factor) if up is None else np.abs(factor) + abs(up_offset)
        scaled = d * scale
        dup = np.where(slope_of_up == 0, 0, scaled * value * slope_of_up)
        found = {
            "out": (
                value * factor * scale,
                np.abs(value) * (terms - np.abs(factor)) * np.abs(scale),
            ),
            "dgate": (
                np.where(g > held, 0, scaled * slope * factor),
                np.abs(scaled) * size * terms,
            ),
            "dup": (dup, np.zeros_like(dup)),
        }
    return {
        name: Expected([right], dtype, terms, ACTIVATION_SLACK[dtype], ACTIVATION_ALLOWED)
        for name, (right, terms) in found.items()
    }
