# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Element-wise ops against the formulas of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import membound
from membound._elementwise import OPS, Elementwise
from membound._frameworks import Framework
from membound.check import cases
from membound.oracle import elementwise, round_to

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
    forms = cases.available_forms(framework, FORMS)
    return cols, numbers, cases.transposed_or_not(framework), forms


def run(name: str, op: Elementwise, case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps, and the limit."""
    rng, shape = cases.generator(case), (ROWS, case.cols)
    held = [round_to(SPREAD * rng.standard_normal(shape), case.dtype) for _ in op.inputs]
    arrays = [cases.plain(framework, one, case.dtype) for one in held]
    arrays[-1] = cases.matrix(framework, held[-1], case.dtype, case.transposed)
    numbers = [value for _, value in case.numbers]
    options = cases.target(case, framework, op.result, arrays[0])
    found = getattr(membound, name)(*arrays, *numbers, **options)
    right = elementwise(op.formula, held, numbers, case.dtype)
    return cases.compare(framework, case.dtype, [(found, right)])


ROWS_OF_TABLE = tuple(
    cases.Product(name, partial(run, name, op), Case, partial(axes, op)) for name, op in OPS.items()
)
