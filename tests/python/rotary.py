# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The values of rope in every layout and form of the angles."""

from __future__ import annotations

from typing import Any

import numpy as np
import reference
from reference import NUMPY_DTYPES

from membound.oracle import rounding
from membound.oracle.rotary import Rotation, frequencies, rope  # noqa: F401 - frequencies for the tests

# From (batch, seq, heads, head_dim) to the axes of a layout.
AXES = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}


def to_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """A view of (batch, seq, heads, head_dim) with a layout's axes; "thd" takes a batch of 1."""
    return x[0] if layout == "thd" else x.transpose(AXES[layout])


def from_layout(x: np.ndarray, layout: str) -> np.ndarray:
    return x[None] if layout == "thd" else x.transpose(np.argsort(AXES[layout]))


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
    dtype = x.dtype.name
    right = rope(x, dtype, Rotation(cos, sin, interleaved, offset, inverse, pairs))
    right.slack += slack + rounding(dtype, 4)
    right.allowed = {**right.allowed, "float32": 0.0, "float64": 0.0}  # the slack has it all
    reference.assert_within(y, right)
