# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The forward norms against exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, GATED_ALLOWED, ulp
from membound.check import cases
from membound.check.cases import Case
from membound.check.values import (
    Candidates,
    Number,
    Sums,
    exact_sum,
    exactly,
    number_type,
    require_shape,
    round_to,
    sigmoid,
    statistics_dtype,
)

# "fused": the alias that overwrites both inputs.
FORMS = ("returned", "out", "in place")
WITH_ALIAS = (*FORMS, "fused")


@dataclass(frozen=True)
class Norm:
    """One of the forward ops."""

    name: str
    centred: bool = False
    added: bool = False
    gated: bool = False
    forms: tuple[str, ...] = FORMS

    @property
    def allowed(self) -> dict[str, float]:
        return GATED_ALLOWED if self.gated else ALLOWED

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        forms = cases.available_forms(framework, self.forms)
        forms = forms[:3] if framework.call_options else forms  # the alias takes no device
        if self.gated:
            return cases.both_orders(cases.all_cases(framework, dtype, thorough, forms))
        if not self.centred:
            return cases.all_cases(framework, dtype, thorough, forms)
        special = (*cases.SPECIAL, "far mean")
        return cases.all_cases(framework, dtype, thorough, forms, cases.BIASES, special)

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return the worst error in ulps, and the limit."""
        want = expected(case, self)
        inputs = [cases.to_array(case, framework, one) for one in want.inputs]
        parameters = [cases.parameter_array(case, framework, want.weight, cases.weight_dtype(case))]
        if self.centred:
            parameters.append(cases.parameter_array(case, framework, want.bias, case.bias))
        shape = tuple(inputs[0].shape)
        y, total, mean, rstd = _call(case, framework, self, inputs, parameters)
        require_shape(y, shape)
        worst = want.out.error(framework.values(y), case.dtype)
        kind = statistics_dtype(case.dtype)
        for got, right in ((mean, want.mean), (rstd, want.rstd)):
            # The table's figures are in ulps of the case's dtype.
            if (
                got is not None
                and not right.error(framework.values(got), kind) <= self.allowed[kind]
            ):
                worst = math.inf
        if total is not None and framework.values(total) != want.total:
            worst = math.inf
        return worst, self.allowed[case.dtype]


@dataclass
class Row:
    """Exact deviations from the mean (0 if not centred), their magnitudes, and rstd."""

    apart: list[Number]
    mean: Number
    distance: Number
    rstd: Number


def statistics_of(case: Case, values: Sequence[Number], centred: bool) -> list[Row]:
    number = number_type(case.dtype)
    found = []
    with exactly():
        for first in range(0, len(values), case.cols):
            apart = [number(v) for v in values[first : first + case.cols]]
            mean = number(0)
            if centred:
                mean, apart = _deviations(apart, case)
            variance = exact_sum((v * v for v in apart), case.dtype) / case.cols + number(case.eps)
            root = variance.sqrt() if isinstance(variance, Decimal) else math.sqrt(variance)
            distance = exact_sum(map(abs, apart), case.dtype) / case.cols
            found.append(Row(apart, mean, distance, 1 / root))
    return found


def _deviations(row: list[Number], case: Case) -> tuple[Number, list[Number]]:
    if min(row) == max(row):  # the mean need not be rounded
        return row[0], [row[0] * 0] * case.cols
    mean = exact_sum(row, case.dtype) / case.cols
    apart = [v - mean for v in row]
    rest = exact_sum(apart, case.dtype) / case.cols  # the rounding error of the mean
    return mean + rest, [v - rest for v in apart]


def is_narrowed(case: Case) -> bool:
    """Whether x * rstd is rounded before it is multiplied by the weight."""
    return case.rounding == "before_weight" and case.dtype in ("float16", "bfloat16")


def rounded(value: float, dtype: str) -> set[float]:
    """The value rounded to dtype; two values if float32 arithmetic may land on either."""
    step, slack = ulp(value, dtype), abs(value) * 2**-20
    return {round(v / step) * step for v in (value - slack, value + slack)}


def _plain(
    case: Case, rows: Sequence[Row], weight: Sequence[float] | None, gate: Sequence[float]
) -> Candidates:
    """gate: z if the gate follows the norm, else empty."""
    wanted: list[set[Number]] = []
    narrow = is_narrowed(case)
    with exactly():
        weights, gates = cases.factors(case, weight), silus(case, gate)
        for at, row in enumerate(rows):
            normal = [v * row.rstd for v in row.apart]
            results = [rounded(v, case.dtype) if narrow else {v} for v in normal]
            results = _times(results, case.of_row(weights, at))
            if gates:
                if narrow:
                    results = [set().union(*(rounded(v, case.dtype) for v in r)) for r in results]
                results = _times(results, gates[at * case.cols : (at + 1) * case.cols])
            wanted += results
    return Candidates(wanted)


def _times(results: list[set[Number]], by: Sequence[Number]) -> list[set[Number]]:
    return [{v * factor for v in both} for both, factor in zip(results, by, strict=True)]


def silus(case: Case, gate: Sequence[float]) -> list[Number]:
    """The exact silu of each element."""
    values = map(number_type(case.dtype), gate)
    return [z * sigmoid(z) for z in values]


def gated_first(case: Case, x: Sequence[float], gate: Sequence[float]) -> list[Number]:
    """The product that is normalised if the gate comes first."""
    number = number_type(case.dtype)
    with exactly():
        return [number(v) * s for v, s in zip(x, silus(case, gate), strict=True)]


def _rounded_mean(case: Case, row: Row) -> Number:
    """The error term of the mean: for 16 bits it is kept in the accumulator's dtype only."""
    number = number_type(case.dtype)
    return abs(row.mean) if case.dtype in ("float16", "bfloat16") else number(0)


def _centred(
    case: Case, rows: Sequence[Row], weight: Sequence[float] | None, bias: Sequence[float] | None
) -> Sums:
    wanted = Sums([], [])
    number = number_type(case.dtype)
    with exactly():
        weights = cases.factors(case, weight)
        biases = [number(0)] * len(weights) if bias is None else [number(b) for b in bias]
        for at, row in enumerate(rows):
            around = row.distance + _rounded_mean(case, row)
            columns = (case.of_row(all_heads, at) for all_heads in (weights, biases))
            for apart, factor, added in zip(row.apart, *columns, strict=True):
                scale = row.rstd * factor
                wanted.values.append(apart * scale + added)
                wanted.terms.append((abs(apart) + around) * abs(scale) + abs(added))
    return wanted


@dataclass
class Expected:
    """Inputs, and the expected results."""

    inputs: list[list[float]]  # x, residual in the added forms, z in the gated one
    weight: list[float] | None
    bias: list[float] | None
    total: list[float] | None  # residual_out is exact up to one rounding, so its bits are known
    out: Candidates | Sums
    mean: Sums
    rstd: Candidates


@functools.cache
def expected(case: Case, op: Norm) -> Expected:
    inputs, total = [cases.draw(case)], None
    values: Sequence[Number] = inputs[0]
    gate: list[float] = []  # after the norm
    if op.gated:
        inputs.append(cases.draw(case, "z", "normal"))
        if case.norm_before_gate:
            gate = inputs[1]
        else:
            values = gated_first(case, *inputs)
    if op.added:
        inputs.append(cases.draw_residual(case))
        sums = [a + b for a, b in zip(*inputs, strict=True)]
        values = sums = round_to(sums, statistics_dtype(case.dtype))
        total = round_to(sums, case.dtype)
    weight, bias = cases.draw_weight(case), cases.draw_bias(case)
    rows = statistics_of(case, values, op.centred)
    out = _centred(case, rows, weight, bias) if op.centred else _plain(case, rows, weight, gate)
    with exactly():
        terms = [row.distance + _rounded_mean(case, row) for row in rows]
    mean, rstd = Sums([row.mean for row in rows], terms), Candidates([{row.rstd} for row in rows])
    return Expected(inputs, weight, bias, total, out, mean, rstd)


def _call(
    case: Case, framework: Framework, op: Norm, inputs: list[Any], parameters: list[Any]
) -> tuple[Any, Any, Any, Any]:
    """Return out, residual_out, mean and rstd; None for results that the op does not have."""
    form = case.form
    if form == "fused" and case.rounding == "once":
        alias = membound.fused_add_rms_norm
        if case.weight_offset:
            alias = membound.gemma_fused_add_rms_norm
        alias(*inputs, *parameters, case.eps)
        return *inputs, None, None
    options: dict[str, Any] = {"eps": case.eps, "weight_offset": case.weight_offset}
    options |= framework.call_options
    if not op.centred:
        options["rounding"] = case.rounding
    if op.gated:
        options["norm_before_gate"] = case.norm_before_gate
    names = ("out", "residual_out") if op.added else ("out",)
    if form == "out":
        options |= {name: cases.to_array(case, framework) for name in names}
    elif form != "returned":  # in place; also for a fused call with a rounding that the alias lacks
        options |= dict(zip(names, inputs, strict=False))
    if form == "returned":
        options["return_stats" if op.centred else "return_rstd"] = True
    if case.by_head:
        options["normalized_shape"] = case.cols
    found = getattr(membound, op.name)(*inputs, *parameters, **options)
    results = list(found) if isinstance(found, tuple) else [found]
    y = results.pop(0)
    total = results.pop(0) if op.added else None
    rstd = results.pop() if form == "returned" else None
    return y, total, results.pop() if results else None, rstd
