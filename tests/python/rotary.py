# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope by its definition in float64, and the same values in every layout and form of the angles."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import NUMPY_DTYPES

# From (batch, seq, heads, head_dim) to the axes of a layout.
AXES = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}


def to_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """A view of (batch, seq, heads, head_dim) with a layout's axes; "thd" takes a batch of 1."""
    return x[0] if layout == "thd" else x.transpose(AXES[layout])


def from_layout(x: np.ndarray, layout: str) -> np.ndarray:
    return x[None] if layout == "thd" else x.transpose(np.argsort(AXES[layout]))


def frequencies(rotary_dim: int, base: float = 10000.0) -> np.ndarray:
    return base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)


def turned(
    x: np.ndarray, angles: np.ndarray, *, interleaved: bool = False, offset: int = 0,
    inverse: bool = False, scaling: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """x of (batch, seq, heads, head_dim) turned by angles of (batch, seq, pairs), in float64."""
    x = x.astype(np.float64)
    pairs = angles.shape[-1]
    cos, sin = (scaling * part(angles)[:, :, None, :] for part in (np.cos, np.sin))
    return turned_by(x, cos, -sin if inverse else sin, interleaved, offset, pairs)


def turned_by(x, cos, sin, interleaved, offset, pairs):
    out = x.copy()
    first, second = places(interleaved, offset, pairs)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def places(interleaved: bool, offset: int, pairs: int) -> tuple[slice, slice]:
    """The first and the second elements of all pairs."""
    if interleaved:
        end = offset + 2 * pairs
        return slice(offset, end, 2), slice(offset + 1, end, 2)
    return slice(offset, offset + pairs), slice(offset + pairs, offset + 2 * pairs)


def table(
    form: str, freqs: np.ndarray, positions: int, dtype: str, interleaved: bool
) -> dict[str, np.ndarray]:
    """The angles as arguments of rope."""
    kind = NUMPY_DTYPES[dtype]
    if form == "freqs":
        return {"freqs": freqs.astype(np.float64 if dtype == "float64" else np.float32)}
    angles = np.arange(positions)[:, None] * freqs
    cos, sin = np.cos(angles).astype(kind), np.sin(angles).astype(kind)
    if form == "halves":
        return {"cos": cos, "sin": sin}
    if form == "cache":
        return {"cos": np.concatenate([cos, sin], 1)}
    twice = [
        np.repeat(one, 2, 1) if interleaved else np.concatenate([one, one], 1) for one in (cos, sin)
    ]
    return dict(zip(("cos", "sin"), twice, strict=True))


def angles_of(
    given: dict[str, Any], positions: np.ndarray, interleaved: bool, pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in float64 of the table's own numbers, (batch, seq, pairs)."""
    if "freqs" in given:
        angles = positions[..., None] * np.asarray(given["freqs"], np.float64)
        return np.cos(angles), np.sin(angles)
    cos = np.asarray(given["cos"], np.float64)
    if "sin" not in given:
        return cos[positions][..., :pairs], cos[positions][..., pairs:]
    sin = np.asarray(given["sin"], np.float64)
    if cos.shape[1] == 2 * pairs:  # every angle twice
        once = slice(None, None, 2) if interleaved else slice(pairs)
        cos, sin = cos[:, once], sin[:, once]
    return cos[positions], sin[positions]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(NUMPY_DTYPES[dtype])


def frozen(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def given_to(one: Any, angles: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: one.array(values) for name, values in angles.items()}


def check(
    y: np.ndarray, x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool,
    offset: int = 0, inverse: bool = False, slack: float = 0.0,
) -> None:  # fmt: skip
    """y is x of (batch, seq, heads, head_dim) turned by the numbers of a table."""
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    pairs = cos.shape[-1]
    cos, sin = (table[:, :, None, :] for table in (cos, -sin if inverse else sin))
    wide = x.astype(np.float64)
    right = turned_by(wide, cos, sin, interleaved, offset, pairs)
    # Each product, their sum and the angle round, the result once more.
    first, second = places(interleaved, offset, pairs)
    terms = np.zeros_like(wide)
    terms[..., first] = np.abs(wide[..., first]) + np.abs(wide[..., second])
    terms[..., second] = terms[..., first]
    rounding = 2.0 ** (-52 if x.dtype == np.float64 else -23)
    name = x.dtype.name
    ulp = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0, "float64": 0.0}[name]
    tiny = 2.0**-25 if name == "float16" else 0.0
    allowed = 1.001 * ulp * np.abs(right) + tiny + (4 * rounding + slack) * terms
    error = np.abs(y.astype(np.float64) - right)
    assert (error <= allowed).all(), f"off by {(error - allowed).max():g} beyond {allowed.max():g}"
