# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The right results of every op: plain formulas in NumPy, shared by `check` and the tests.

No formula calls an op; `membound.ndarray` stands in where NumPy is not installed. They compute in
float64, for results of float64 in long double. Those of element-wise ops are tables in `src/ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from membound._ulps import ACTIVATION_ALLOWED, ALLOWED, FORMATS, SUM_ROUNDINGS, sum_slack

try:
    import numpy as np
except ModuleNotFoundError:
    import membound._ndarray_as_numpy as np


def statistics_dtype(dtype: str) -> str:
    """The dtype of sums over a row of dtype, and of rstd."""
    return "float64" if dtype == "float64" else "float32"


def rounding(dtype: str, count: float = 1.0) -> float:
    """The relative error of so many roundings in the dtype of sums."""
    return count / SUM_ROUNDINGS * sum_slack(dtype)


def wide(values: Any, dtype: str) -> np.ndarray:
    """Values of dtype in the type of the formulas, in which products of narrower ones are exact."""
    return np.asarray(values).astype(np.longdouble if dtype == "float64" else np.float64)


def ulps(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance to the next value of dtype."""
    bits, smallest, _ = FORMATS[dtype]
    exponents = np.frexp(values)[1] - 1
    exponents = np.where(values == 0, smallest, np.maximum(exponents, smallest))
    return np.ldexp(np.ones_like(values), exponents - bits + 1)


def round_to(values: Any, dtype: str) -> np.ndarray:
    """float64 or wider values rounded to the nearest number of dtype, ties to even."""
    values, largest = np.asarray(values), FORMATS[dtype][2]
    with np.errstate(all="ignore"):
        unit = ulps(values, dtype)
        found = np.rint(values / unit) * unit
    return np.where(np.abs(found) > largest, np.copysign(np.inf, found), found)


def errors_in_ulps(got: Any, wanted: np.ndarray, dtype: str, slack: Any = 0.0) -> np.ndarray:
    """The distance from wanted less slack, in units in the last place of dtype.

    0 where both are NaN or the same infinity (also by overflow); inf where only one of them is.
    """
    with np.errstate(all="ignore"):
        got, largest = np.asarray(got).astype(wanted.dtype), wanted.dtype.type(FORMATS[dtype][2])
        beyond = np.abs(wanted) >= largest + ulps(largest, dtype) / 2
        right = np.where(beyond, np.copysign(np.inf, wanted), wanted)
        same = (np.isnan(got) & np.isnan(right)) | (got == right) | (np.abs(got - wanted) <= slack)
        difference = np.abs(got - right)
        error = np.where(np.isfinite(difference), difference - slack, np.inf) / ulps(right, dtype)
        return np.where(same, 0, error).astype(np.float64)


@dataclass
class Expected:
    """What a result of dtype may be: one of the candidates, within `allowed` ulps.

    A result that sums terms, which may cancel, may also be off by `slack` times their magnitude.
    """

    candidates: list[np.ndarray]
    dtype: str
    terms: Any = 0.0
    slack: float = 0.0
    allowed: dict[str, float] = field(default_factory=lambda: ALLOWED)

    @property
    def values(self) -> np.ndarray:
        return self.candidates[0]

    @values.setter
    def values(self, values: np.ndarray) -> None:
        self.candidates = [values]

    def errors(self, got: Any) -> np.ndarray:
        """The error of each element in ulps, beyond the slack."""
        with np.errstate(all="ignore"):
            slack = self.terms * self.slack
        every = [errors_in_ulps(got, one, self.dtype, slack) for one in self.candidates]
        return np.minimum.reduce(every)

    def add(self, more: Any) -> None:
        """Expect the results to be added to these values."""
        more = np.asarray(more).astype(self.values.dtype)
        self.candidates = [one + more for one in self.candidates]
        self.terms = self.terms + np.abs(more)


def of_sum(
    values: np.ndarray, terms: np.ndarray, dtype: str, sums: str, allowed: Any = ALLOWED
) -> Expected:
    """A sum of terms in the accumulator that inputs of dtype `sums` have."""
    return Expected([values], dtype, terms, sum_slack(sums), allowed)


def elementwise(
    formula: Any, inputs: Sequence[Any], numbers: Sequence[float], dtype: str
) -> Expected:
    """A table's formula; the slack is what two roundings of the last input change in the result."""
    *first, last = (wide(one, dtype) for one in inputs)
    step = rounding(dtype, 2)
    right, above, below = (
        formula(np, *first, last * by, *numbers) for by in (1, 1 + step, 1 - step)
    )
    terms = np.maximum(np.abs(above - right), np.abs(below - right))
    return Expected([right], dtype, terms, 1.0, ACTIVATION_ALLOWED)
