# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops against the formulas of their tables in Python's floats."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import membound
from membound._elementwise import OPS, Elementwise
from membound._frameworks import Framework
from membound._ulps import ACTIVATION_ALLOWED, error_beyond
from membound.check.cases import LAYOUTS, Product, available_forms, transposed_or_not
from membound.check.values import normals

FORMS = ("returned", "out", "in place")
ROWS, COLS, WIDE = 4, (1, 7, 64, 1000), (20000,)
SPREAD = 40.0  # of the inputs, so that a soft cap of 30 acts


@dataclass(frozen=True)
class Case:
    dtype: str
    cols: int
    numbers: tuple[tuple[str, float], ...]
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        numbers = "".join(f", {name} {value:g}" for name, value in self.numbers)
        return f"{ROWS} x {self.cols} {self.dtype}{layout}{numbers}, {self.form}"


def axes(op: Elementwise, framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    cols = (*COLS, *WIDE) if thorough else COLS
    named = [[(name, value) for value in values] for name, values in op.samples.items()]
    numbers = list(zip(*named, strict=True)) or [()]
    return cols, numbers, transposed_or_not(framework), available_forms(framework, FORMS)


def run(name: str, op: Elementwise, case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps, and the limit."""
    draw = random.Random(str(case))
    shape, count = (ROWS, case.cols), ROWS * case.cols
    arrays = [
        framework.array([SPREAD * v for v in normals(draw, count)], shape, case.dtype)
        for _ in op.inputs
    ]
    held = [framework.values(array) for array in arrays]
    if case.transposed:
        layout = LAYOUTS["transposed"]
        arrays[-1] = layout.array(framework, held[-1], ROWS, case.cols, case.dtype)
    numbers = [value for _, value in case.numbers]
    options = {}
    if case.form != "returned":
        zeros = framework.array([0.0] * count, shape, case.dtype)
        options[op.result] = arrays[0] if case.form == "in place" else zeros
    found = framework.values(getattr(membound, name)(*arrays, *numbers, **options))
    worst, rounded = 0.0, 2.0 ** (-52 if case.dtype == "float64" else -23)
    for value, inputs in zip(found, zip(*held, strict=True), strict=True):
        wanted, above, below = (
            op.formula(math, *inputs[:-1], inputs[-1] * by, *numbers)
            for by in (1.0, 1.0 + rounded, 1.0 - rounded)
        )
        # What two roundings of the last input change in the result.
        slack = max(abs(above - wanted), abs(below - wanted))
        worst = max(worst, error_beyond(slack, value, wanted, case.dtype))
    return worst, ACTIVATION_ALLOWED[case.dtype]


ROWS_OF_TABLE = tuple(
    Product(name, partial(run, name, op), Case, partial(axes, op)) for name, op in OPS.items()
)
