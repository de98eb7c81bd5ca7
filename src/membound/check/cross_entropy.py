# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy and its gradient against their definition in Python's floats."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import SOFTMAX_ALLOWED, error_beyond
from membound.check.cases import LAYOUTS, available_forms, transposed_or_not
from membound.check.softmax import widths
from membound.check.values import normals, statistics_dtype

OPTIONS: dict[str, dict[str, float]] = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.1},
    "z loss": {"z_loss": 0.01},
    "soft cap": {"softcap": 3.0},
    "all": {"label_smoothing": 0.2, "z_loss": 0.001, "softcap": 4.0},
}
ROWS, IGNORED, OUTSIDE = 5, 1, 3  # the rows without a loss
DLOSS = (0.75, 2.0, -0.5, 1.0, 1.25)  # exact in every dtype


@dataclass(frozen=True)
class Case:
    dtype: str
    cols: int
    kind: str
    transposed: bool
    form: str

    def __str__(self) -> str:
        layout = " transposed" if self.transposed else ""
        return f"{ROWS} x {self.cols} {self.dtype}{layout}, {self.kind}, {self.form}"


def axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    forms = ("out", "in place") if framework.takes_out else ("returned",)
    return widths(thorough), tuple(OPTIONS), transposed_or_not(framework), forms


def backward_axes(framework: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    forms = available_forms(framework, ("returned", "out", "in place"))
    return widths(thorough), tuple(OPTIONS), transposed_or_not(framework), forms


@dataclass
class Given:
    """The arrays that a case passes to the op, and their values as floats."""

    logits: Any
    held: list[list[float]]
    labels: Any
    columns: list[int]  # -1: the row is ignored; -2: its label is no column

    @classmethod
    def of(cls, case: Case, framework: Framework) -> Given:
        draw = random.Random(str(case))
        shape = (ROWS, case.cols)
        values = [2.0 * v for v in normals(draw, math.prod(shape))]
        logits = framework.array(values, shape, case.dtype)
        held = framework.values(logits)
        rows = [held[row * case.cols : (row + 1) * case.cols] for row in range(ROWS)]
        if case.transposed:
            layout = LAYOUTS["transposed"]
            logits = layout.array(framework, held, *shape, case.dtype)
        columns = [draw.randrange(case.cols) for _ in range(ROWS)]
        numbers = list(columns)
        numbers[IGNORED], columns[IGNORED] = -100, -1
        numbers[OUTSIDE], columns[OUTSIDE] = case.cols, -2
        return cls(logits, rows, framework.array(numbers, (ROWS,), "int64"), columns)


def zeros(framework: Framework, case: Case, *shape: int, dtype: str | None = None) -> Any:
    return framework.array([0.0] * math.prod(shape), shape, dtype or case.dtype)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for sums and exponentials, and the limit."""
    given = Given.of(case, framework)
    kind = statistics_dtype(case.dtype)
    options: dict[str, Any] = dict(OPTIONS[case.kind])
    gradient = None
    if case.form != "returned":
        options["out"] = zeros(framework, case, ROWS, dtype=kind)
        gradient = given.logits if case.form == "in place" else None
        if gradient is None:
            gradient = zeros(framework, case, ROWS, case.cols)
        options["dlogits"] = gradient
        options["dloss"] = framework.array(list(DLOSS), (ROWS,), kind)
    loss = membound.cross_entropy(given.logits, given.labels, **options)
    worst = 0.0
    for row, (found, column) in enumerate(zip(framework.values(loss), given.columns, strict=True)):
        right, size = expected_loss(case, given.held[row], column)
        worst = max(worst, error_beyond(rounding(kind) * size, found, right, kind))
    if gradient is not None:
        worst = max(worst, worst_gradient(case, framework, given, gradient))
    return worst, SOFTMAX_ALLOWED[case.dtype]


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for exponentials, and the limit."""
    given, kind = Given.of(case, framework), statistics_dtype(case.dtype)
    options: dict[str, Any] = dict(OPTIONS[case.kind])
    known = [part for row in given.held for part in log_of_sum(capped(case, row)[0])]
    lse = framework.array(known, (ROWS, 2), kind)
    dloss = framework.array(list(DLOSS), (ROWS,), kind)
    if case.form == "out":
        options["dlogits"] = zeros(framework, case, ROWS, case.cols)
    elif case.form == "in place":
        options["dlogits"] = given.logits
    found = membound.cross_entropy_backward(dloss, given.logits, given.labels, lse, **options)
    return worst_gradient(case, framework, given, found), SOFTMAX_ALLOWED[case.dtype]


def worst_gradient(case: Case, framework: Framework, given: Given, gradient: Any) -> float:
    worst, found = 0.0, framework.values(gradient)
    for row, column in enumerate(given.columns):
        wanted = expected_gradient(case, given.held[row], column, DLOSS[row])
        for col, (right, size) in enumerate(wanted):
            slack = rounding(statistics_dtype(case.dtype)) * size
            value = found[row * case.cols + col]
            worst = max(worst, error_beyond(slack, value, right, case.dtype))
    return worst


def rounding(kind: str) -> float:
    """Rounding of sums, logits and their differences; for 16 bits also of a GPU's fast exp."""
    return 2.0 ** -(50 if kind == "float64" else 21)


def absent(column: int) -> float:
    """The value of a row without a loss."""
    return math.nan if column == -2 else 0.0


def capped(case: Case, row: list[float]) -> tuple[list[float], list[float]]:
    """The capped logits, and the slope of the cap."""
    cap = OPTIONS[case.kind].get("softcap")
    if cap is None:
        return row, [1.0] * len(row)
    # 1 - tanh^2 would cancel where the slope is small.
    slopes = [math.cosh(one / cap) ** -2 for one in row]
    return [cap * math.tanh(one / cap) for one in row], slopes


def log_of_sum(logits: list[float]) -> tuple[float, float]:
    """log(sum(exp)) as two parts: the largest logit, and the excess over it."""
    top = max(logits)
    return top, math.log(math.fsum(math.exp(one - top) for one in logits))


def expected_loss(case: Case, row: list[float], column: int) -> tuple[float, float]:
    """The loss, and the magnitude of its terms."""
    if column < 0:
        return absent(column), 0.0
    options = OPTIONS[case.kind]
    logits, _ = capped(case, row)
    lse, smoothing = sum(log_of_sum(logits)), options.get("label_smoothing", 0.0)
    loss = (1 - smoothing) * (lse - logits[column])
    loss += smoothing * (lse - math.fsum(logits) / case.cols)
    loss += options.get("z_loss", 0.0) * lse * lse
    return loss, abs(lse) + max(map(abs, logits)) + 1.0


def expected_gradient(
    case: Case, row: list[float], column: int, dloss: float
) -> list[tuple[float, float]]:
    """The gradient of each logit, with the magnitude of its terms."""
    if column < 0:
        return [(absent(column), 0.0)] * case.cols
    options = OPTIONS[case.kind]
    logits, slopes = capped(case, row)
    lse, smoothing = sum(log_of_sum(logits)), options.get("label_smoothing", 0.0)
    along = 1 + 2 * options.get("z_loss", 0.0) * lse
    reach = abs(lse) + max(map(abs, logits)) + 4.0
    wanted = []
    for col, (logit, slope) in enumerate(zip(logits, slopes, strict=True)):
        power = along * math.exp(logit - lse)
        less = smoothing / case.cols + (1 - smoothing) * (col == column)
        right = dloss * (power - less) * slope
        wanted.append((right, abs(dloss) * (reach * power + less) * slope + abs(right)))
    return wanted
