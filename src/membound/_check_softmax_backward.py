# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax_backward against its definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import membound
from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import SOFTMAX_ALLOWED, error_beyond, sum_slack

FORMS = ("returned", "out", "in place")
COLS = (1, 7, 64, 200, 1000)  # multiples of a GPU's vector width, and not
WIDE = (2056, 9000)  # more than one CPU block and more than one GPU part
ROWS = 4


@dataclass(frozen=True)
class Case:
    dtype: str
    cols: int
    scale: float
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        return f"{ROWS} x {self.cols} {self.dtype}{layout}, scale {self.scale}, {self.form}"


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    layouts = (False, True) if framework.strided else (False,)
    cols = (*COLS, *WIDE) if thorough else COLS
    for at, rest in enumerate(itertools.product(cols, (1.0, 0.3), layouts, forms)):
        if thorough or at % 2 == 0:
            yield Case(dtype, *rest)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for a sum, and the limit."""
    draw = random.Random(str(case))
    shape, count = (ROWS, case.cols), ROWS * case.cols
    dy = framework.array(normals(draw, count), shape, case.dtype)
    y = framework.array([draw.random() / case.cols for _ in range(count)], shape, case.dtype)
    held_dy, held_y = framework.values(dy), framework.values(y)
    if case.transposed:
        columns = [held_y[row * case.cols + col] for col in range(case.cols) for row in range(ROWS)]
        y = framework.transpose(framework.array(columns, shape[::-1], case.dtype), (1, 0))
    options = {"scale": case.scale}
    if case.form != "returned":
        zeros = framework.array([0.0] * count, shape, case.dtype)
        options["dx"] = dy if case.form == "in place" else zeros
    found = framework.values(membound.softmax_backward(dy, y, **options))
    worst = 0.0
    for row in range(ROWS):
        part = slice(row * case.cols, (row + 1) * case.cols)
        products = [a * b for a, b in zip(held_dy[part], held_y[part], strict=True)]
        whole, size = math.fsum(products), math.fsum(map(abs, products))
        for at in range(part.start, part.stop):
            right = case.scale * held_y[at] * (held_dy[at] - whole)
            terms = abs(case.scale * held_y[at]) * (abs(held_dy[at]) + size)
            slack = sum_slack(case.dtype) * terms
            worst = max(worst, error_beyond(slack, found[at], right, case.dtype))
    return worst, SOFTMAX_ALLOWED[case.dtype]
