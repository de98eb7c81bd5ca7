# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of qk_norm_rope and its gradients in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import pytest
import rotary
from reference import NUMPY_DTYPES
from rotary import draw, to_layout

# head_dim, rotary_dim, rotary_offset: vectors that pair up across a GPU's lanes, and others
PARTS = ((128, 128, 0), (64, 64, 0), (256, 256, 0), (80, 80, 0), (96, 64, 32), (64, 32, 8))
PARTS += ((10, 6, 3), (2, 2, 0), (7, 6, 1), (1024, 1024, 0))
# one vector per lane, and more than a warp has
PARTS += ((72, 72, 0), (100, 100, 0), (90, 90, 0), (96, 24, 0), (80, 20, 4), (264, 260, 2))
POSITIONS = 32


def framework(name: str) -> Any:
    one = arrays.framework(name)
    if one.options:
        pytest.skip("it takes no device")
    return one


@dataclass
class Norm:
    """One array of heads, (batch, seq, heads, head_dim), and how it is normalised and rotated."""

    x: np.ndarray
    weight: np.ndarray | None
    cos: np.ndarray  # (batch, seq, pairs or 2 * pairs), in float64
    sin: np.ndarray
    eps: float = 1e-6
    offset: float = 0.0
    interleaved: bool = False
    rotary_offset: int = 0
    pairs: int | None = None  # None: cos has one column for each
    wide: np.ndarray = field(init=False)

    def __post_init__(self):
        self.wide = self.x.astype(np.float64)

    @property
    def rstd(self) -> np.ndarray:
        largest = np.abs(self.wide).max(-1, keepdims=True)  # whose square may overflow
        squares = ((self.wide / largest) ** 2).mean(-1)
        largest = largest[..., 0]
        return 1 / (largest * np.sqrt(squares + self.eps / largest / largest))

    @property
    def factor(self) -> Any:
        return 1.0 if self.weight is None else self.weight.astype(np.float64) + self.offset

    def rotated(self, x: np.ndarray, inverse: bool = False) -> np.ndarray:
        cos, sin = self.cos[:, :, None], self.sin[:, :, None]
        pairs = self.pairs or self.cos.shape[-1]
        return rotary.rotated_by(x, cos, sin, self.interleaved, self.rotary_offset, pairs, inverse)

    def out(self) -> np.ndarray:
        return self.rotated(self.wide * self.rstd[..., None] * self.factor)

    def size(self) -> np.ndarray:
        """The largest magnitude of each normalised head, to which errors are relative."""
        normed = np.abs(self.wide * self.rstd[..., None] * self.factor)
        return normed.max(-1, keepdims=True)

    def gradients(self, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dx, dweight for each head, and the magnitude of its terms."""
        h = self.wide * self.rstd[..., None]
        t = self.rotated(dy.astype(np.float64), inverse=True)
        g = t * self.factor
        dx = self.rstd[..., None] * (g - h * (g * h).mean(-1, keepdims=True))
        return dx, (t * h).sum((0, 1)), np.abs(t * h).sum((0, 1))


@dataclass
class Case:
    """A call: its arrays in a framework, and the reference by definition."""

    q: Norm
    k: Norm
    call: dict[str, Any]  # all but q and k
    layout: str

    def arrays(self, one: Any) -> list[Any]:
        heads = (np.ascontiguousarray(to_layout(n.x, self.layout)) for n in (self.q, self.k))
        return [one.array(x) for x in heads]

    def options(self, one: Any) -> dict[str, Any]:
        return {
            name: one.array(value) if isinstance(value, np.ndarray) else value
            for name, value in self.call.items()
        }


def case(
    rng: np.random.Generator, dtype: str, layout: str = "bshd", part: Any = None,
    form: str = "halves", interleaved: bool = False, wide: str | None = None, offset: float = 0.0,
) -> Case:  # fmt: skip
    """Random arrays; q with a weight that heads share, k with one of each."""
    head_dim, rotary_dim, rotary_offset = part or PARTS[rng.integers(len(PARTS))]
    batch, seq = (1 if layout == "thd" else 2), 7
    q, k = (draw(rng, (batch, seq, heads, head_dim), dtype) for heads in (3, 2))
    kind = NUMPY_DTYPES[wide or dtype]
    q_weight = (rng.standard_normal(head_dim) + 1).astype(kind)
    k_weight = (rng.standard_normal((2, head_dim)) + 1).astype(kind)
    given = rotary.table(
        form, rotary.frequencies(rotary_dim), POSITIONS,
        "float64" if dtype == "float64" else "float32", interleaved,
    )  # fmt: skip
    positions = rng.integers(0, POSITIONS, (batch, seq))
    cos, sin = rotary.angles_of(given, positions, rotary_dim // 2)
    norms = [
        Norm(x, w, cos, sin, offset=offset, interleaved=interleaved, rotary_offset=rotary_offset,
             pairs=rotary_dim // 2)
        for x, w in ((q, q_weight), (k, k_weight))
    ]  # fmt: skip
    call = {
        **given, "q_weight": q_weight, "k_weight": k_weight, "position_ids": positions,
        "layout": layout, "interleaved": interleaved, "rotary_dim": rotary_dim,
        "rotary_offset": rotary_offset, "weight_offset": offset,
    }  # fmt: skip
    return Case(*norms, call, layout)


# One rounding of the result, plus the slack for sums and products in float32 (float64).
ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0, "float64": 0.0}


def check(found: np.ndarray, norm: Norm) -> None:
    """Check that found is norm's result, rounded once."""
    right = norm.out()
    assert found.shape == right.shape
    assert found.dtype == norm.x.dtype
    rounding = 2.0 ** (-53 if found.dtype == np.float64 else -24)
    tiny = 2.0**-25 if found.dtype == np.float16 else 0.0
    allowed = 1.001 * ULP[found.dtype.name] * np.abs(right) + tiny + 16 * rounding * norm.size()
    error = np.abs(found.astype(np.float64) - right)
    assert (error <= allowed).all(), f"off by {(error / allowed).max():g} times what is allowed"
