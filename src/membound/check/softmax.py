# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases
from membound.oracle import np, round_to
from membound.oracle import softmax as oracle

FORMS = ("returned", "out", "in place")
COLS = (1, 7, 64, 200, 1000)  # multiples of a GPU's vector width, and not
WIDE = (2056, 9000)  # more than one CPU block and more than one GPU part
MASKS = ("none", "bool", "added", "causal", "all")
HEADS, QUERIES = 2, 3
TRANSPOSED = cases.Layout(order=(2, 1, 0))


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
    forms = cases.available_forms(framework, FORMS)
    return widths(thorough), masks, cases.transposed_or_not(framework), forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for rounded logits, and the limit."""
    rng = cases.generator(case)
    shape = (HEADS, QUERIES, case.cols)
    x = round_to(2.0 * rng.standard_normal(shape), case.dtype)
    numbers, masks, added = _options(case, rng)
    right = oracle.softmax(x, case.dtype, **masks, **numbers)
    layout = TRANSPOSED if case.transposed else cases.Layout(order=(0, 1, 2))
    given = layout.array(framework, x, HEADS * QUERIES, case.cols, case.dtype)
    options: dict[str, Any] = dict(numbers)
    options |= {name: cases.plain(framework, mask, added) for name, mask in masks.items()}
    options |= cases.target(case, framework, "out", given)
    found = membound.softmax(given, **options)
    return cases.compare(framework, case.dtype, [(found, right)])


def _options(
    case: Case, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """The numbers of a call, its mask, and the mask's dtype."""
    numbers: dict[str, Any] = {"scale": 0.75} if case.mask in ("added", "all") else {}
    if case.mask in ("causal", "all"):
        numbers["causal_offset"] = max(case.cols - QUERIES, 0)
    shape = (QUERIES, case.cols)
    if case.mask in ("none", "causal"):
        return numbers, {}, ""
    if case.mask == "added":
        return numbers, {"mask": round_to(rng.standard_normal(shape), case.dtype)}, case.dtype
    kept = rng.random(shape) < 0.7
    kept[:, 0] = True
    return numbers, {"mask": kept}, "bool"


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
    forms = cases.available_forms(framework, FORMS)
    return widths(thorough), (1.0, 0.3), cases.transposed_or_not(framework), forms


def run_backward(case: BackwardCase, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for a sum, and the limit."""
    rng, shape = cases.generator(case), (ROWS, case.cols)
    dy = round_to(rng.standard_normal(shape), case.dtype)
    y = round_to(rng.random(shape) / case.cols, case.dtype)
    right = oracle.softmax_backward(dy, y, case.dtype, scale=case.scale)
    given = cases.plain(framework, dy, case.dtype)
    options = {"scale": case.scale, **cases.target(case, framework, "dx", given)}
    other = cases.matrix(framework, y, case.dtype, case.transposed)
    found = membound.softmax_backward(given, other, **options)
    return cases.compare(framework, case.dtype, [(found, right)])
