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
from membound import _ulps
from membound._frameworks import QUANTISED, Framework
from membound.check import cases
from membound.check.cases import Case
from membound.check.values import require_shape, round_to, statistics_dtype

LIMITS = {**{name: _ulps.FORMATS[name][2] for name in QUANTISED if name != "int8"}, "int8": 127.0}
# Columns per scale, and the static scale.
SCALES = {"row": None, "64": 64, "128": 128, "static": None}
STATIC_SCALE = 0.03125
SMALLEST_SCALE = 2.0**-126
# Dtype, scale and destination of the results.
FORMS = tuple(map(" ".join, itertools.product(QUANTISED, SCALES, ("returned", "out"))))


@dataclass(frozen=True)
class QuantisedNorm:
    """One of the two ops."""

    name: str
    added: bool = False
    forms: tuple[str, ...] = FORMS

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # it takes no device
            return iter(())
        forms = [form for form in self.forms if fits(framework, form)]
        return cases.all_cases(framework, dtype, thorough, forms)

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
        values = [cases.draw(case), *([cases.draw_residual(case)] if self.added else [])]
        inputs = [cases.to_array(case, framework, one) for one in values]
        weight = cases.draw_weight(case)
        inputs.append(cases.parameter_array(case, framework, weight, cases.weight_dtype(case)))
        options = {"eps": case.eps, "weight_offset": case.weight_offset, "rounding": case.rounding}
        by_head = {"normalized_shape": case.cols} if case.by_head else {}
        found = getattr(membound, self.name.removesuffix("_quant"))(*inputs, **options, **by_head)
        y, *total = found if self.added else (found,)
        changed = (inputs, {"eps": case.eps + 1.0})
        results = call(case, framework, self.name, inputs, options, changed)
        return error_of(case, framework, results, y, total)


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
    wide = statistics_dtype(case.dtype)
    numbers, scales = [], []
    for first in range(0, len(y), case.cols):
        for start in range(first, first + case.cols, group or case.cols):
            values = y[start : min(start + (group or case.cols), first + case.cols)]
            if group:
                quotient = round_to([max(map(abs, values)) / LIMITS[kind]], wide)
                (scale,) = round_to([max(*quotient, SMALLEST_SCALE)], "float32")
                scales.append(scale)
            else:
                scale = STATIC_SCALE
            (factor,) = round_to([1 / scale], wide)
            scaled = round_to([value * factor for value in values], wide)
            numbers += [number_of(value, kind) for value in scaled]
    return numbers, scales


def error_of(
    case: Case, framework: Framework, results: list[Any], y: Any, total: Sequence[Any] = ()
) -> tuple[float, float]:
    """Compare results with the quantised y; return 0, or infinity if any bit differs, and 0."""
    require_shape(results[0], y.shape)
    _, columns, _ = case.form.split()
    group = 0 if columns == "static" else SCALES[columns] or case.cols
    codes, scales = quantised(case, framework.values(y), group)
    wanted = [codes, *map(framework.values, total), *([scales] if group else [])]
    return 0.0 if list(map(framework.values, results)) == wanted else math.inf, 0.0


def call(
    case: Case,
    framework: Framework,
    op: str,
    inputs: list[Any],
    options: dict[str, Any],
    changed: tuple[Sequence[Any], dict[str, Any]],
) -> list[Any]:
    """Return out, residual_out in the added form, and the scales unless the scale is static.

    changed: inputs and options with other results. The form "out" writes over the results of such a
    call.
    """
    kind, columns, to_array = case.form.split()
    function = getattr(membound, op)
    options = {**options, "dtype": kind, "group_size": SCALES[columns]}
    if columns == "static":
        options["scale"] = framework.array([STATIC_SCALE], (1,), "float32")
    results = function(*inputs, **options)
    results = list(results) if isinstance(results, tuple) else [results]
    if to_array == "out":
        names = ["out", *(["residual_out"] if op.startswith("add_") else []), "scale_out"]
        given = dict(zip(names, results, strict=False))
        other, more = changed
        function(*other, **{**options, **more, **given})
        function(*inputs, **{**options, **given})
    return results
