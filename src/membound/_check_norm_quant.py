# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_quant and its added form: the definition applied to what the norm itself returns.

The norm has a check of its own; quantisation of its result is exact, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound import _check_norm as norm
from membound import _ulps
from membound._check_norm import Case
from membound._frameworks import QUANTISED, Framework

LIMITS = {**{name: _ulps.FORMATS[name][2] for name in QUANTISED if name != "int8"}, "int8": 127.0}
# Columns per scale, and the static scale.
SCALES = {"row": None, "64": 64, "128": 128, "static": None}
STATIC_SCALE = 0.03125
SMALLEST_SCALE = 2.0**-126
# Dtype, scale and destination of the results.
FORMS = tuple(map(" ".join, itertools.product(QUANTISED, SCALES, ("returned", "out"))))


@dataclass(frozen=True)
class Op:
    """One of the two ops."""

    name: str
    norm: str  # the op whose result is quantised
    added: bool = False

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # it takes no device
            return iter(())
        forms = [form for form in FORMS if fits(framework, form)]
        return norm.all_cases(framework, dtype, thorough, forms)


def fits(framework: Framework, form: str) -> bool:
    kind, _, to_array = form.split()
    return kind in framework.quantised and (to_array == "returned" or framework.takes_out)


def number_of(value: float, dtype: str) -> float:
    """The nearest number of an 8-bit dtype, ties to even."""
    if math.isnan(value):
        return 0.0 if dtype == "int8" else value
    value = max(-LIMITS[dtype], min(LIMITS[dtype], value))
    unit = 1.0 if dtype == "int8" else _ulps.ulp(value, dtype)
    return round(value / unit) * unit


def quantised(case: Case, y: Sequence[float], group: int) -> tuple[list[float], list[float]]:
    """Codes and scales of rows of y; group 0 uses the static scale."""
    kind = case.form.split()[0]
    wide = norm.statistics_dtype(case.dtype)
    numbers, scales = [], []
    for first in range(0, len(y), case.cols):
        for start in range(first, first + case.cols, group or case.cols):
            values = y[start : min(start + (group or case.cols), first + case.cols)]
            if group:
                quotient = norm.round_to([max(map(abs, values)) / LIMITS[kind]], wide)
                (scale,) = norm.round_to([max(*quotient, SMALLEST_SCALE)], "float32")
                scales.append(scale)
            else:
                scale = STATIC_SCALE
            (factor,) = norm.round_to([1 / scale], wide)
            scaled = norm.round_to([value * factor for value in values], wide)
            numbers += [number_of(value, kind) for value in scaled]
    return numbers, scales


def run(case: Case, framework: Framework, op: Op) -> tuple[float, float]:
    """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
    values = [norm.draw(case), *([norm.draw_residual(case)] if op.added else [])]
    inputs = [norm.to_array(case, framework, one) for one in values]
    weight = norm.draw_weight(case)
    inputs.append(norm.parameter_array(case, framework, weight, norm.weight_dtype(case)))
    options = {"eps": case.eps, "weight_offset": case.weight_offset, "rounding": case.rounding}
    by_head = {"normalized_shape": case.cols} if case.by_head else {}
    found = getattr(membound, op.norm)(*inputs, **options, **by_head)
    y, *total = found if op.added else (found,)
    out, *rest = _call(case, framework, op, inputs, options)
    norm.require_shape(out, y.shape)

    _, columns, _ = case.form.split()
    group = 0 if columns == "static" else SCALES[columns] or case.cols
    numbers, scales = quantised(case, framework.values(y), group)
    wanted = [numbers, *map(framework.values, total), *([scales] if group else [])]
    right = [framework.values(one) for one in (out, *rest)] == wanted
    return 0.0 if right else math.inf, 0.0


def _call(
    case: Case, framework: Framework, op: Op, inputs: list[Any], options: dict[str, Any]
) -> list[Any]:
    """Return out, residual_out in the added form, and the scales unless the scale is static."""
    kind, columns, to_array = case.form.split()
    options = {**options, "dtype": kind, "group_size": SCALES[columns]}
    if columns == "static":
        options["scale"] = framework.array([STATIC_SCALE], (1,), "float32")
    results = getattr(membound, op.name)(*inputs, **options)
    results = list(results) if isinstance(results, tuple) else [results]
    if to_array == "out":  # write over the first call's results, whose bits were changed before
        names = ["out", *(["residual_out"] if op.added else []), "scale_out"]
        given = dict(zip(names, results, strict=False))
        other = {**options, "eps": case.eps + 1.0, **given}
        getattr(membound, op.name)(*inputs, **other)
        getattr(membound, op.name)(*inputs, **{**options, **given})
    return results
