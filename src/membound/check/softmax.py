# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax and its gradient against their definition in Python's floats."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import SOFTMAX_ALLOWED, error_beyond, sum_slack
from membound.check.cases import LAYOUTS, Layout, available_forms, transposed_or_not
from membound.check.values import normals

FORMS = ("returned", "out", "in place")
COLS = (1, 7, 64, 200, 1000)  # multiples of a GPU's vector width, and not
WIDE = (2056, 9000)  # more than one CPU block and more than one GPU part
MASKS = ("none", "bool", "added", "causal", "all")
HEADS, QUERIES = 2, 3
TRANSPOSED = Layout(order=(2, 1, 0))
INFINITE = -math.inf


def widths(thorough: bool) -> tuple[int, ...]:
    return (*COLS, *WIDE) if thorough else COLS


@dataclass(frozen=True)
class Case:
    dtype: str
    cols: int
    mask: str
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        shape = f"{HEADS} x {QUERIES} x {self.cols}"
        return f"{shape} {self.dtype}{layout}, mask {self.mask}, {self.form}"


def axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    masks = ("none", "added", "causal") if framework.name == "memoryview" else MASKS
    forms = available_forms(framework, FORMS)
    return widths(thorough), masks, transposed_or_not(framework), forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for rounded logits, and the limit."""
    draw = random.Random(str(case))
    shape = (HEADS, QUERIES, case.cols)
    count = math.prod(shape)
    values = [2.0 * v for v in normals(draw, count)]
    x = framework.array(values, shape, case.dtype)
    held = framework.values(x)
    if case.transposed:
        x = TRANSPOSED.array(framework, held, HEADS * QUERIES, case.cols, case.dtype)
    options: dict[str, object] = {}
    added = _mask(case, framework, draw, options)
    scale, offset = options.get("scale", 1.0), options.get("causal_offset", case.cols)
    assert isinstance(scale, float)
    assert isinstance(offset, int)
    if case.form != "returned":
        zeros = framework.array([0.0] * count, shape, case.dtype)
        options["out"] = x if case.form == "in place" else zeros
    found = framework.values(membound.softmax(x, **options))
    worst = 0.0
    for row in range(HEADS * QUERIES):
        kept = max(0, min(case.cols, row % QUERIES + offset + 1))
        logits = [scale * held[row * case.cols + col] + added[row % QUERIES * case.cols + col]
                  for col in range(kept)]  # fmt: skip
        right = _softmax(logits) + [0.0] * (case.cols - kept)
        slack = _slack(case.dtype, logits)
        for col, wanted in enumerate(right):
            value = found[row * case.cols + col]
            worst = max(worst, error_beyond(slack * wanted, value, wanted, case.dtype))
    return worst, SOFTMAX_ALLOWED[case.dtype]


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits, default=0.0)
    powers = [math.exp(one - top) for one in logits]
    whole = math.fsum(powers)
    return [power / whole for power in powers]


def _slack(dtype: str, logits: list[float]) -> float:
    """The relative slack of a softmax: logits and their differences are rounded."""
    finite = [abs(one) for one in logits if one != INFINITE]
    return 2.0 ** -(51 if dtype == "float64" else 22) * max(finite, default=0.0)


def _mask(
    case: Case, framework: Framework, draw: random.Random, options: dict[str, object]
) -> list[float]:
    """Add the case's mask and options to the call; return what the mask adds for each query."""
    count = QUERIES * case.cols
    nothing = [0.0] * count
    if case.mask in ("added", "all"):
        options["scale"] = 0.75
    if case.mask in ("causal", "all"):
        options["causal_offset"] = max(case.cols - QUERIES, 0)
    if case.mask in ("none", "causal"):
        return nothing
    if case.mask == "added":
        more = normals(draw, count)
        mask = framework.array(more, (QUERIES, case.cols), case.dtype)
        options["mask"] = mask
        return framework.values(mask)
    kept = [float(col == 0 or draw.random() < 0.7) for _ in range(QUERIES)
            for col in range(case.cols)]  # fmt: skip
    options["mask"] = framework.array(kept, (QUERIES, case.cols), "bool")
    return [0.0 if one else INFINITE for one in kept]


ROWS = 4


@dataclass(frozen=True)
class BackwardCase:
    dtype: str
    cols: int
    scale: float
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        return f"{ROWS} x {self.cols} {self.dtype}{layout}, scale {self.scale}, {self.form}"


def backward_axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    forms = available_forms(framework, FORMS)
    return widths(thorough), (1.0, 0.3), transposed_or_not(framework), forms


def run_backward(case: BackwardCase, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for a sum, and the limit."""
    draw = random.Random(str(case))
    shape, count = (ROWS, case.cols), ROWS * case.cols
    dy = framework.array(normals(draw, count), shape, case.dtype)
    y = framework.array([draw.random() / case.cols for _ in range(count)], shape, case.dtype)
    held_dy, held_y = framework.values(dy), framework.values(y)
    if case.transposed:
        layout = LAYOUTS["transposed"]
        y = layout.array(framework, held_y, ROWS, case.cols, case.dtype)
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
