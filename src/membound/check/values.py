# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Random values, exact arithmetic, and the comparison of a result with exact values.

34-digit decimal arithmetic for float64, Python's floats for the rest, and no other package.
"""

from __future__ import annotations

import array
import decimal
import functools
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from membound._ulps import RANGE, sum_slack, ulp

_DECIMAL = decimal.Context(prec=34, Emin=-99999, Emax=99999)

# A product of two float32 values is exact in a Python float, and math.fsum adds exactly: enough for
# every dtype but float64, which gets 34 decimal digits.
Number = float | Decimal


@functools.cache
def _pool() -> list[float]:
    source = random.Random(20251121)
    return [source.gauss(0.0, 1.0) for _ in range(1 << 15)]


def normals(source: random.Random, count: int) -> list[float]:
    """Slices of a pool of normal values; drawing them one by one took a fifth of the check."""
    pool, found = _pool(), []
    while len(found) < count:
        at = source.randrange(len(pool))
        found += pool[at : at + count - len(found)]
    return found


def number_type(dtype: str) -> Callable[[float], Number]:
    return Decimal if dtype == "float64" else float


def exactly() -> Any:
    """The context that Decimal needs."""
    return decimal.localcontext(_DECIMAL)


def exact_sum(values: Sequence[Number] | Iterator[Number], dtype: str) -> Number:
    return sum(values, Decimal(0)) if dtype == "float64" else math.fsum(values)


def statistics_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def round_to(values: Sequence[float], dtype: str) -> list[float]:
    """Each value to the nearest one of dtype."""
    if dtype == "float64":
        return list(values)
    if dtype == "float16":
        code = f"{len(values)}e"
        return list(struct.unpack(code, struct.pack(code, *values)))
    single = array.array("f", values)
    if dtype == "bfloat16":
        bits = memoryview(single).cast("B").cast("I")
        for at, word in enumerate(bits):
            bits[at] = word + 0x7FFF + (word >> 16 & 1) & 0xFFFF0000
    return single.tolist()


def sigmoid(z: Number) -> Number:
    return 1 / (1 + (-z).exp()) if isinstance(z, Decimal) else 1 / (1 + math.exp(-z))


def error_in_ulps(got: float, wanted: set[Number], dtype: str) -> float:
    """Distance of got from the nearest right result, in units in the last place of dtype."""
    worst, beyond = math.inf, RANGE[dtype]
    for value in wanted:
        if got == value:
            return 0.0
        near = float(value)
        if abs(near) > beyond:
            error = 0.0 if got == math.copysign(math.inf, near) else math.inf
        elif not math.isfinite(got):
            error = math.inf
        else:
            difference = got - near if isinstance(value, float) else float(Decimal(got) - value)
            error = abs(difference) / ulp(near, dtype)
        worst = min(worst, error)
    return worst


def sum_error(got: float, wanted: Number, slack: float, dtype: str) -> float:
    """Like error_in_ulps, less slack: the rounding of terms that cancel."""
    difference = abs(got - float(wanted)) if math.isfinite(got) else math.inf
    if difference <= slack:
        return 0.0
    return max(0.0, error_in_ulps(got, {wanted}, dtype) - slack / ulp(float(wanted), dtype))


@dataclass
class Sums:
    """Right values, and for each the magnitude of the terms that it sums."""

    values: list[Number]
    terms: list[Number]

    def error(self, got: Sequence[float], dtype: str, sums: str = "") -> float:
        """The largest error in ulps of dtype; sums: the dtype that determines the accumulator's."""
        relative = sum_slack(sums or dtype)
        return max(
            sum_error(value, wanted, relative * float(size), dtype)
            for value, wanted, size in zip(got, self.values, self.terms, strict=True)
        )


@dataclass
class Candidates:
    """For each element all results that count as right."""

    values: list[set[Number]]

    def error(self, got: Sequence[float], dtype: str) -> float:
        pairs = zip(got, self.values, strict=True)
        return max(error_in_ulps(value, right, dtype) for value, right in pairs)


def require_shape(result: Any, shape: Sequence[int]) -> None:
    if tuple(result.shape) != tuple(shape):
        raise AssertionError(f"the result has shape {tuple(result.shape)}, not {tuple(shape)}")
