# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The dtypes of the tests, and assertions that results are what the oracle expects."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from membound.oracle import Expected
from membound.oracle.norms import Norm

DTYPES = ("float16", "bfloat16", "float32", "float64")
NUMPY_DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64")}
NUMPY_DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
# The dtypes that the quantised norms write.
QUANTISED = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2")}
QUANTISED["int8"] = np.dtype(np.int8)


def assert_within(got: np.ndarray, expected: Expected, what: object = "") -> None:
    """Fails with the place and size of the worst error."""
    wanted, dtype = expected.values, expected.dtype
    assert got.shape == wanted.shape, what
    assert got.dtype == NUMPY_DTYPES[dtype], what
    if got.size:
        error = expected.errors(got)
        worst = np.unravel_index(np.argmax(error), error.shape)
        assert error[worst] <= expected.allowed[dtype], (
            f"{what}: at {tuple(map(int, worst))} got {got[worst]}, wanted {wanted[worst]}: off by "
            f"{error[worst]:.4g} ulp of {dtype}, allowed {expected.allowed[dtype]}"
        )


def assert_right(
    got: np.ndarray, expected: Norm, rstd: np.ndarray | None = None, what: object = ""
) -> None:
    """The same for a norm's result, and its rstd if it is given."""
    assert_within(got, expected.out, what)
    if rstd is not None:
        assert_within(rstd, expected.rstd, f"rstd of {what}")


def assert_centred_right(
    got: np.ndarray, expected: Norm, statistics: Any = None, what: object = ""
) -> None:
    """The same for layer_norm; statistics: mean and rstd."""
    mean, rstd = statistics or (None, None)
    assert_right(got, expected, rstd, what)
    if mean is not None:
        assert_within(mean, expected.mean, f"mean of {what}")
