# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope_backward: the inverse rotation, bit for bit as rope's, and the gradient of frequencies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import membound
from membound import _check_rope as rope
from membound._check_values import normals
from membound._frameworks import Framework


@dataclass(frozen=True)
class Case:
    dtype: str
    heads: int
    interleaved: bool
    wants: str  # "transpose" or "freqs"

    def __str__(self) -> str:
        style = "interleaved" if self.interleaved else "halves apart"
        return f"{self.wants} of {self.heads} heads, {self.dtype}, {style}"


SHAPE, POSITIONS = (2, 5), 5
# dfreqs is a sum of products of two rounded values.
ALLOWED = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-20, "float64": 2.0**-48}


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    for heads in (1, 3, 8) if thorough else (3,):
        for interleaved in (False, True):
            for wants in ("transpose", "freqs"):
                yield Case(dtype, heads, interleaved, wants)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the error of the result, and the limit.

    For the transpose: the number of elements that differ from rope with inverse, and 0. For freqs:
    the error relative to the slack for the rounding of its terms, and 1.
    """
    draw = random.Random(str(case))
    shape = (*SHAPE, case.heads, 16)
    x, dy = (normals(draw, math.prod(shape)) for _ in range(2))
    q, gradient = (framework.array(values, shape, case.dtype) for values in (x, dy))
    wide = "float64" if case.dtype == "float64" else "float32"
    freqs = framework.array([10000.0 ** (-at / 16) for at in range(0, 16, 2)], (8,), wide)
    options: dict[str, Any] = {"freqs": freqs, "interleaved": case.interleaved}
    if case.wants == "transpose":
        found = framework.values(membound.rope_backward(gradient, **options))
        wanted = framework.values(membound.rope(gradient, inverse=True, **options))
        return float(sum(a != b for a, b in zip(found, wanted, strict=True))), 0.0
    _, dfreqs = membound.rope_backward(gradient, q=q, **options)
    right, size = _dfreqs(case, framework.values(q), framework.values(gradient),
                          framework.values(freqs))  # fmt: skip
    allowed = ALLOWED[case.dtype]
    found = framework.values(dfreqs)
    errors = [abs(a - b) / (allowed * c) for a, b, c in zip(found, right, size, strict=True)]
    return max(math.inf if math.isnan(error) else error for error in errors), 1.0


def _dfreqs(
    case: Case, x: list[float], dy: list[float], freqs: list[float]
) -> tuple[list[float], list[float]]:
    """The gradient, and the magnitude of its terms."""
    sums, sizes = [0.0] * 8, [1e-30] * 8
    plain = rope.Case(case.dtype, "bshd", "freqs", (16, 16, 0), case.interleaved, False, False, "")
    for head in range(len(x) // 16):
        position = head // case.heads % SHAPE[1]
        cos, sin = ([f(position * one) for one in freqs] for f in (math.cos, math.sin))
        out = [value for value, _ in rope._rotated(plain, x[16 * head :][:16], cos, sin)]
        given = dy[16 * head :][:16]
        for pair in range(8):
            first = 2 * pair if case.interleaved else pair
            second = first + (1 if case.interleaved else 8)
            terms = (given[second] * out[first], -given[first] * out[second])
            sums[pair] += position * sum(terms)
            sizes[pair] += position * sum(map(abs, terms))
    return sums, sizes
