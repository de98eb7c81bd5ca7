# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The arrays of the tests of softmax and cross entropy."""

from __future__ import annotations

from reference import NUMPY_DTYPES

COLS = (1, 2, 3, 7, 8, 16, 31, 33, 64, 96, 200, 257, 1000, 2048, 2049)


def draw(rng, shape, dtype, spread=1.0):
    return (spread * rng.standard_normal(shape)).astype(NUMPY_DTYPES[dtype])
