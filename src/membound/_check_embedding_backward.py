# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding_backward against exact sums."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import membound
from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond

FORMS = ("returned", "out", "accumulated")
DIMS = (1, 7, 64, 96, 264)  # multiples of a GPU's vector width, and not
TOKENS = ((3, 4), (70, 2))  # one segment of tokens per row, and several
VOCAB, PADDING, SCALE = 37, 3, 1.75


@dataclass(frozen=True)
class Case:
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


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    layouts = (False, True) if framework.strided else (False,)
    every = itertools.product(
        DIMS, TOKENS, ("int32", "int64"), (0, 1000), (False, True), layouts, forms
    )
    for at, rest in enumerate(every):
        if thorough or at % 11 == 0:
            yield Case(dtype, *rest)


def run(case: Case, framework: Framework) -> tuple[float, float]:
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
