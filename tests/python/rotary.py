# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of rope in float64, and its values in every layout and form of the angles."""

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


def rotated(
    x: np.ndarray, angles: np.ndarray, *, interleaved: bool = False, offset: int = 0,
    inverse: bool = False, scaling: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """Rotate x of (batch, seq, heads, head_dim) by angles of (batch, seq, pairs), in float64."""
    x = x.astype(np.float64)
    pairs = angles.shape[-1]
    cos, sin = (scaling * part(angles)[:, :, None, :] for part in (np.cos, np.sin))
    return rotated_by(x, cos, sin, interleaved, offset, pairs, inverse)


def rotated_by(x, cos, sin, interleaved, offset, pairs, inverse=False):
    """Rotate by tables with a column per pair or per element; inverse: the transpose."""
    out = x.copy()
    first, second = pair_slices(interleaved, offset, pairs)
    cos1, cos2 = of_elements(cos, interleaved, pairs)
    sin1, sin2 = of_elements(sin, interleaved, pairs)
    if inverse:
        sin1, sin2 = -sin2, -sin1
    out[..., first] = x[..., first] * cos1 - x[..., second] * sin1
    out[..., second] = x[..., second] * cos2 + x[..., first] * sin2
    return out


def of_elements(table, interleaved, pairs):
    """A table's columns for the first and for the second elements of all pairs."""
    if table.shape[-1] == pairs:
        return table, table
    return tuple(table[..., columns] for columns in pair_slices(interleaved, 0, pairs))


def pair_slices(interleaved: bool, offset: int, pairs: int) -> tuple[slice, slice]:
    """Slices of the first and of the second elements of all pairs."""
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
    if form == "angles":
        return {"freqs": angles.astype(kind)}
    if form == "angles of elements":
        return {"freqs": np.concatenate([angles, angles[::-1] / 3], 1).astype(kind)}
    if form == "elements":  # every column has different values
        cos, sin = np.concatenate([angles, angles / 3], 1), np.concatenate([angles / 5, angles], 1)
        return {"cos": np.cos(cos).astype(kind), "sin": np.sin(sin).astype(kind)}
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
    given: dict[str, Any], positions: np.ndarray, pairs: int
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin in float64 of the rounded table, (batch, seq, pairs or 2 * pairs)."""
    if "freqs" in given:
        freqs = np.asarray(given["freqs"], np.float64)
        angles = positions[..., None] * freqs if freqs.ndim == 1 else freqs[positions]
        return np.cos(angles), np.sin(angles)
    cos = np.asarray(given["cos"], np.float64)
    if "sin" not in given:
        return cos[positions][..., :pairs], cos[positions][..., pairs:]
    return cos[positions], np.asarray(given["sin"], np.float64)[positions]


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
    offset: int = 0, inverse: bool = False, slack: float = 0.0, pairs: int | None = None,
) -> None:  # fmt: skip
    """Check that y is x of (batch, seq, heads, head_dim) rotated by the values of a table."""
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    pairs = pairs or cos.shape[-1]
    cos, sin = (table[:, :, None, :] for table in (cos, sin))
    wide = x.astype(np.float64)
    right = rotated_by(wide, cos, sin, interleaved, offset, pairs, inverse)
    # Roundings: each product, their sum, the angle, and the result.
    first, second = pair_slices(interleaved, offset, pairs)
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
