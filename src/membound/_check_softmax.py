# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax against its definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import membound
from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import SOFTMAX_ALLOWED, error_beyond

FORMS = ("returned", "out", "in place")
COLS = (1, 7, 64, 200, 1000)  # multiples of a GPU's vector width, and not
WIDE = (2056, 9000)  # more than one CPU block and more than one GPU part
MASKS = ("none", "bool", "added", "causal", "all")
HEADS, QUERIES = 2, 3
INFINITE = -math.inf


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


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    layouts = (False, True) if framework.strided else (False,)
    masks = ("none", "added", "causal") if framework.name == "memoryview" else MASKS
    cols = (*COLS, *WIDE) if thorough else COLS
    for at, rest in enumerate(itertools.product(cols, masks, layouts, forms)):
        if thorough or at % 4 == 0:
            yield Case(dtype, *rest)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for rounded logits, and the limit."""
    draw = random.Random(str(case))
    shape = (HEADS, QUERIES, case.cols)
    count = math.prod(shape)
    values = [2.0 * v for v in normals(draw, count)]
    x = framework.array(values, shape, case.dtype)
    held = framework.values(x)
    if case.transposed:
        transposed = [held[(i * QUERIES + j) * case.cols + col] for col in range(case.cols)
                  for j in range(QUERIES) for i in range(HEADS)]  # fmt: skip
        x = framework.transpose(framework.array(transposed, shape[::-1], case.dtype), (2, 1, 0))
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
