# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of heads, alone and after their norm, and the gradients.

Su et al. 2021 (arXiv:2104.09864), equation 34: each pair (a, b) becomes
(a', b') = (a cos - b sin, b cos + a sin). The gradient is the rotation by the negative angle; that
of an angle is the sum of db' a' - da' b'.

Arrays are (batch, seq, heads, head_dim); cos and sin (batch, seq, columns).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from membound.oracle import Expected, np, of_sum, rounding, wide

# Of two products, their sum, and an angle.
ROUNDINGS = 4.0
# Of rstd, two products and a rotation, relative to the largest element of the head.
NORM_ROUNDINGS = 8.0


def frequencies(rotary_dim: int, base: float = 10000.0) -> np.ndarray:
    return base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)


def pair_slices(interleaved: bool, offset: int, pairs: int) -> tuple[slice, slice]:
    """Slices of the first and of the second elements of all pairs."""
    if interleaved:
        end = offset + 2 * pairs
        return slice(offset, end, 2), slice(offset + 1, end, 2)
    return slice(offset, offset + pairs), slice(offset + pairs, offset + 2 * pairs)


def of_elements(table: np.ndarray, interleaved: bool, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """A table's columns for the first and for the second elements of all pairs."""
    if table.shape[-1] == pairs:
        return table, table
    first, second = pair_slices(interleaved, 0, pairs)
    return table[..., first], table[..., second]


@dataclass
class Rotation:
    """The angles of tokens, and the elements of a head that they rotate."""

    cos: np.ndarray  # (batch, seq, pairs or 2 * pairs)
    sin: np.ndarray
    interleaved: bool = False
    offset: int = 0
    inverse: bool = False
    pairs: int | None = None  # None: cos has one column for each

    @property
    def slices(self) -> tuple[slice, slice]:
        return pair_slices(self.interleaved, self.offset, self.pairs or self.cos.shape[-1])

    def __call__(self, x: np.ndarray, inverse: bool = False) -> np.ndarray:
        """Rotate, or with inverse undo it."""
        pairs = self.pairs or self.cos.shape[-1]
        cos1, cos2 = of_elements(self.cos[:, :, None], self.interleaved, pairs)
        sin1, sin2 = of_elements(self.sin[:, :, None], self.interleaved, pairs)
        if inverse != self.inverse:
            sin1, sin2 = -sin2, -sin1
        first, second = self.slices
        out = x.copy()
        out[..., first] = x[..., first] * cos1 - x[..., second] * sin1
        out[..., second] = x[..., second] * cos2 + x[..., first] * sin2
        return out


def rope(x: np.ndarray, dtype: str, rotation: Rotation) -> Expected:
    values = wide(x, dtype)
    first, second = rotation.slices
    terms = np.zeros_like(values)
    terms[..., first] = np.abs(values[..., first]) + np.abs(values[..., second])
    terms[..., second] = terms[..., first]
    return Expected([rotation(values)], dtype, terms, rounding(dtype, ROUNDINGS))


def gradient_of_freqs(
    dy: np.ndarray, x: np.ndarray, positions: np.ndarray, rotation: Rotation
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of each frequency, and the magnitude of its terms."""
    first, second = rotation.slices
    out, dy = rotation(x.astype(np.float64)), dy.astype(np.float64)
    up, down = dy[..., second] * out[..., first], dy[..., first] * out[..., second]
    by = positions[..., None, None]
    return (by * (up - down)).sum((0, 1, 2)), (by * (abs(up) + abs(down))).sum((0, 1, 2))


@dataclass
class NormAndRotation:
    """RMSNorm of each head, and the rotation of its result."""

    x: np.ndarray
    weight: np.ndarray | None  # (head_dim,), or (heads, head_dim)
    rotation: Rotation
    eps: float = 1e-6
    offset: float = 0.0  # of the weight

    @property
    def wide(self) -> np.ndarray:
        return self.x.astype(np.float64)

    @property
    def rstd(self) -> np.ndarray:
        largest = np.abs(self.wide).max(-1, keepdims=True)  # whose square may overflow
        squares = ((self.wide / largest) ** 2).mean(-1)
        largest = largest[..., 0]
        return 1 / (largest * np.sqrt(squares + self.eps / largest / largest))

    @property
    def factor(self) -> Any:
        return 1.0 if self.weight is None else self.weight.astype(np.float64) + self.offset

    @property
    def normed(self) -> np.ndarray:
        return self.wide * self.rstd[..., None] * self.factor

    def expected(self, dtype: str) -> Expected:
        terms = np.abs(self.normed).max(-1, keepdims=True)
        return Expected([self.rotation(self.normed)], dtype, terms, rounding(dtype, NORM_ROUNDINGS))

    def gradients(self, dy: np.ndarray, dtype: str) -> tuple[Expected, Expected]:
        """dx, and dweight of each head."""
        h, root = self.wide * self.rstd[..., None], self.rstd[..., None]
        t = self.rotation(dy.astype(np.float64), inverse=True)
        g = t * self.factor
        along = (g * h).mean(-1, keepdims=True)
        largest = np.abs(g).max(-1, keepdims=True), np.abs(h).max(-1, keepdims=True)
        size = 2 * root * (largest[0] + largest[1] * np.abs(along))
        dx = of_sum(root * (g - h * along), np.broadcast_to(size, g.shape), dtype, dtype)
        dweight = (t * h).sum((0, 1)), np.abs(t * h).sum((0, 1))
        return dx, of_sum(*dweight, dtype, dtype)
