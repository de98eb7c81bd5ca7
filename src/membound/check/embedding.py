# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding and its gradient against their definition in Python's floats."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond
from membound.check.cases import LAYOUTS, available_forms, transposed_or_not
from membound.check.values import normals

VOCAB, POSITIONS, TOKENS = 37, 5, (3, 4)
IDS, STARTS = ("int32", "int64"), (0, 1000)


@dataclass(frozen=True)
class Case:
    dtype: str
    dim: int
    kind: str
    ids: str
    start: int
    transposed: bool
    form: str

    def __str__(self) -> str:
        return (
            f"{self.kind}, {VOCAB} x {self.dim} {self.dtype}"
            + (" transposed" if self.transposed else "")
            + f", {self.ids} from {self.start}, {self.form}"
        )


def axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    dims = (1, 7, 64, 96, 1000)  # multiples of a GPU's vector width, and not
    kinds = ("copy", "scale", "positions", "both")
    forms = available_forms(framework, ("returned", "out"))
    return dims, kinds, IDS, STARTS, transposed_or_not(framework), forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for products and sums, and the limit."""
    draw = random.Random(str(case))
    weight, held = _table(case, framework, draw, VOCAB)
    ids = [case.start + draw.randrange(VOCAB) for _ in range(math.prod(TOKENS))]
    ids[1], ids[5] = case.start + VOCAB, -1
    options: dict[str, Any] = {"vocab_start": case.start}
    scale = 1.75 if case.kind in ("scale", "both") else 1.0
    added = None
    if scale != 1.0:
        options["scale"] = scale
    if case.kind in ("positions", "both"):
        options["position_weight"], added = _table(case, framework, draw, POSITIONS)
    if case.form == "out":
        zeros = [0.0] * (len(ids) * case.dim)
        options["out"] = framework.array(zeros, (*TOKENS, case.dim), case.dtype)
    out = membound.embedding(framework.array(ids, TOKENS, case.ids), weight, **options)
    rounding = 2.0 ** -(52 if case.dtype == "float64" else 23)
    worst, found = 0.0, framework.values(out)
    for token, number in enumerate(ids):
        row = number - case.start
        for col in range(case.dim):
            right = slack = 0.0
            if 0 <= row < VOCAB:
                right = held[row * case.dim + col] * scale
                if added is not None:
                    more = added[token % TOKENS[1] * case.dim + col]
                    slack = rounding * (abs(right) + abs(more))
                    right += more
            value = found[token * case.dim + col]
            worst = max(worst, error_beyond(slack, value, right, case.dtype))
    return worst, ALLOWED[case.dtype]


def _table(
    case: Case, framework: Framework, draw: random.Random, rows: int
) -> tuple[Any, list[float]]:
    """A table, and its values as floats."""
    values = normals(draw, rows * case.dim)
    table = framework.array(values, (rows, case.dim), case.dtype)
    held = framework.values(table)
    if case.transposed:
        layout = LAYOUTS["transposed"]
        table = layout.array(framework, held, rows, case.dim, case.dtype)
    return table, held


BACKWARD_TOKENS = ((3, 4), (70, 2))  # one segment of tokens per row, and several
PADDING, SCALE = 3, 1.75


@dataclass(frozen=True)
class BackwardCase:
    dtype: str
    dim: int
    tokens: tuple[int, int]
    ids: str
    start: int
    frequency: bool
    transposed: bool
    form: str

    def __str__(self) -> str:
        return (
            f"{self.tokens[0]} x {self.tokens[1]} tokens of {VOCAB} x {self.dim} {self.dtype}"
            + (" transposed" if self.transposed else "")
            + (" by frequency" if self.frequency else "")
            + f", {self.ids} from {self.start}, {self.form}"
        )


def backward_axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    dims = (1, 7, 64, 96, 264)  # multiples of a GPU's vector width, and not
    layouts = transposed_or_not(framework)
    forms = available_forms(framework, ("returned", "out", "accumulated"))
    return dims, BACKWARD_TOKENS, IDS, STARTS, (False, True), layouts, forms


def run_backward(case: BackwardCase, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for sums, and the limit."""
    draw = random.Random(str(case))
    rows, cols = case.tokens
    ids = [case.start + draw.choice((5, draw.randrange(VOCAB))) for _ in range(rows * cols)]
    ids[1], ids[5] = case.start + VOCAB, -1
    values = normals(draw, len(ids) * case.dim)
    dy = framework.array(values, (rows, cols, case.dim), case.dtype)
    held = framework.values(dy)
    given = framework.array(ids, (rows, cols), case.ids)
    if case.transposed:  # another order of the same tokens
        dy, given = framework.transpose(dy, (1, 0, 2)), framework.transpose(given, (1, 0))
    options: dict[str, Any] = {
        "vocab_start": case.start,
        "padding_idx": case.start + PADDING,
        "scale": SCALE,
        "scale_grad_by_freq": case.frequency,
    }
    before = [0.0] * (VOCAB * case.dim)
    if case.form == "accumulated":
        before = normals(draw, len(before))
    if case.form != "returned":
        options["out"] = framework.array(before, (VOCAB, case.dim), case.dtype)
        before = framework.values(options["out"])
        options["accumulate"] = case.form == "accumulated"
    found = framework.values(membound.embedding_backward(dy, given, VOCAB, **options))
    rounding = 2.0 ** -(52 if case.dtype == "float64" else 23)
    worst = 0.0
    for row in range(VOCAB):
        its = [token for token, number in enumerate(ids) if number == case.start + row]
        its = [] if row == PADDING else its
        factor = SCALE / len(its) if case.frequency and its else SCALE
        for col in range(case.dim):
            terms = [held[token * case.dim + col] * factor for token in its]
            right = math.fsum([*terms, before[row * case.dim + col]])
            slack = rounding * (len(terms) + 3) * math.fsum(map(abs, [*terms, right]))
            value = found[row * case.dim + col]
            worst = max(worst, error_beyond(slack if its else 0.0, value, right, case.dtype))
    return worst, ALLOWED[case.dtype]
