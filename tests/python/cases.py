# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of all norms vary: widths, weights, roundings, and layouts of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arrays import LAYOUTS, Framework
from reference import NUMPY_DTYPES

# Around a warp, a vector, a block and the thresholds between kernels; odd ones between.
WIDTHS = (1, 2, 3, 7, 8, 31, 32, 33, 64, 80, 127, 128, 129, 255, 256, 257, 1000, 1024, 4095, 4096)
WIDTHS += (4097, 5120, 8192, 16384)
LONG = (32768, 65536, 65537, 131072, 262144, 1 << 20)
LONG += (10000, 65600)  # clusters with a partial block, and three empty ones
WEIGHTS = ("none", "same", "float32", "float64", "float16", "bfloat16", "strided")
ROUNDINGS = ("once", "before_weight")

# Layouts of rows x cols: the arrays of a call may have different ones.
MATRICES = (
    "contiguous", "every other row", "columns", "columns, off by one", "every other column",
    "transposed", "off by one", "same row again and again", "one value in every row", "backwards",
)  # fmt: skip


def rows_for(cols: int) -> int:
    return 4 if cols < 4000 else 2


def drawn_for(
    one: Framework, choices: Sequence[Any], rng: np.random.Generator, count: int = 4
) -> list[Any]:
    """All widths or shapes; only a few for frameworks that compile each of them."""
    if not one.compiles:
        return list(choices)
    some = rng.choice(len(choices), min(count, len(choices)), replace=False)
    return [choices[at] for at in some]


def layouts_like(layout: str, one: Framework, *, writable: bool) -> list[str]:
    """The layouts that another array of the same shape may have."""
    names = MATRICES if layout in MATRICES else (layout,)
    return [
        name
        for name in names
        if LAYOUTS[name].fits(one) and (LAYOUTS[name].writable or not writable)
    ]


def needs(one: Framework, dtype: str, layout: str = "contiguous") -> None:
    """Skip the test if this framework does not have the dtype."""
    if dtype not in one.dtypes or not LAYOUTS[layout].fits(one):
        pytest.skip(f"it has no {dtype} or no such view")


def make_weight(case: Any) -> tuple[Any, np.ndarray | None]:
    """The weight of a case in its framework, and the same values in NumPy."""
    # Not near -weight_offset, where the float32 value of a float64 weight would cancel.
    values = case.rng.uniform(0.5, 2.0, case.cols)
    if not case.weight_offset:
        values *= case.rng.choice((-1, 1), case.cols)
    return _columns(case, case.weight, values)


def make_bias(case: Any) -> tuple[Any, np.ndarray | None]:
    """The same for a bias."""
    return _columns(case, case.bias, case.rng.standard_normal(case.cols))


def _columns(case: Any, kind: str, values: np.ndarray) -> tuple[Any, np.ndarray | None]:
    one = case.one
    if kind == "none":
        return None, None
    values = values.astype(NUMPY_DTYPES[kind if kind in one.dtypes else case.dtype])
    if kind == "strided" and one.strided:
        buffer = np.full(2 * case.cols, np.nan, values.dtype)
        buffer[::2] = values
        return one.array(buffer)[::2], values
    return one.array(values), values
