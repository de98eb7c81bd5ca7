# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding against its definition in Python's floats."""

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

FORMS = ("returned", "out")
DIMS = (1, 7, 64, 96, 1000)  # multiples of a GPU's vector width, and not
KINDS = ("copy", "scale", "positions", "both")
VOCAB, POSITIONS, TOKENS = 37, 5, (3, 4)


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


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    layouts = (False, True) if framework.strided else (False,)
    every = itertools.product(DIMS, KINDS, ("int32", "int64"), (0, 1000), layouts, forms)
    for at, rest in enumerate(every):
        if thorough or at % 3 == 0:
            yield Case(dtype, *rest)


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
        columns = [held[at * case.dim + col] for col in range(case.dim) for at in range(rows)]
        table = framework.transpose(framework.array(columns, (case.dim, rows), case.dtype), (1, 0))
    return table, held
