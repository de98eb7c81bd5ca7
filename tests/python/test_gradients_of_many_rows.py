# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of so many rows that CUDA sums dweight in the kernel that writes dx."""

from __future__ import annotations

import itertools

import arrays
import numpy as np
import pytest
from gradients import Case, check
from reference import DTYPES, NUMPY_DTYPES

# 16-byte vectors per row, a width for each tile: lanes of a warp; several rows per block; one row
# with one, two or four vectors per thread; clusters with two and four vectors per thread.
VECTORS = (20, 128, 200, 300, 400, 512, 600, 1000, 1100, 1500, 1700, 2500, 5000)

NORMS = ("rms_norm", "layer_norm")
# LayerNorm has one rounding.
FORMS = [("rms_norm", "rounded"), *itertools.product(NORMS, ("plain", "added", "offset"))]


@pytest.mark.parametrize(("norm", "form"), FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def test_every_width(framework, dtype, norm, form, seed):
    one = arrays.framework(framework)
    rng = np.random.default_rng(seed)
    size = NUMPY_DTYPES[dtype].itemsize
    for vectors in VECTORS if framework != "numpy" else VECTORS[:2]:
        cols = vectors * 16 // size
        # More than one wave of blocks, and enough narrow rows for the pipeline.
        rows = 2100 if vectors <= 200 else min(1100, (16 << 20) // (cols * size) + 40)
        check(
            Case(one, dtype, cols, rows, added=form == "added", centred=norm == "layer_norm",
                 weight_offset=1.0 if form == "offset" else 0.0,
                 rounding="before_weight" if form == "rounded" else "once", rng=rng)
        )  # fmt: skip
