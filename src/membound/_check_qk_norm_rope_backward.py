# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope_backward against its definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import membound
from membound import _check_qk_norm_rope as forward
from membound._check_qk_norm_rope import HEADS, OFFSET, PARTS, SEQ, Case
from membound._frameworks import Framework

# Relative to the terms of each sum, plus one rounding of dx.
ALLOWED = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-19, "float64": 2.0**-47}


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = ("rstd given", "rstd made again")
    everything = itertools.product(PARTS, (False, True), (False, True), forms)
    for at, case in enumerate(everything):
        if thorough or at % 7 == 0:
            yield Case(dtype, *case)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error relative to the slack for the rounding of its terms, and 1."""
    draw = random.Random(str(case))
    heads = [forward.heads_of(case, framework, draw, count) for count in HEADS]
    gradients = [forward.heads_of(case, framework, draw, count) for count in HEADS]
    freqs, held = forward.angles_of(case, framework)
    options = forward.options_of(case, freqs)
    given: tuple[Any, ...] = tuple(one.array for one in heads)
    weights = tuple(one.weight for one in heads)
    if case.form == "rstd given":
        *_, q_rstd, k_rstd = membound.qk_norm_rope(*given, *weights, return_rstd=True, **options)
        options |= {"q_rstd": q_rstd, "k_rstd": k_rstd}
    dq, dk, dq_weight, dk_weight = membound.qk_norm_rope_backward(
        *(one.array for one in gradients), *given, *weights, **options
    )
    worst = 0.0
    for one, dys, dx, dweight in zip(
        heads, gradients, (dq, dk), (dq_weight, dk_weight), strict=True
    ):
        errors = _errors(case, one, dys, held, framework.values(dx), framework.values(dweight))
        worst = max(worst, *(math.inf if math.isnan(error) else error for error in errors))
    return worst / ALLOWED[case.dtype], 1.0


def _errors(
    case: Case, heads: forward.Heads, dys: forward.Heads, freqs: list[float], dx: list[float],
    dweight: list[float],
) -> Iterator[float]:  # fmt: skip
    """The error of every element, relative to the magnitude of its terms."""
    count, cols = len(heads.x) // SEQ, case.part[0]
    sums = [[0.0] * cols for _ in range(count)]
    sizes = [[1e-30] * cols for _ in range(count)]
    for row, (x, dy) in enumerate(zip(heads.x, dys.x, strict=True)):
        by, head = forward.rstd_of(x), row % count
        h = [by * value for value in x]
        t = forward.rotated(case, dy, row // count, freqs, -1)
        g = [a * w for a, w in zip(t, heads.factors[head], strict=True)]
        mean = math.fsum(a * b for a, b in zip(g, h, strict=True)) / cols
        size = by * (max(map(abs, g)) + max(map(abs, h)) * abs(mean)) * 2
        for col in range(cols):
            right = by * (g[col] - h[col] * mean)
            yield abs(dx[row * cols + col] - right) / (size + abs(right))
            group = head if case.of_each_head else 0
            sums[group][col] += t[col] * h[col]
            sizes[group][col] += abs(t[col] * h[col]) + OFFSET * 1e-3
    for group in range(count if case.of_each_head else 1):
        for col in range(cols):
            yield abs(dweight[group * cols + col] - sums[group][col]) / (2 * sizes[group][col])
