# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients of the norms against exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, GATED_ALLOWED, sum_slack
from membound.check import cases
from membound.check.cases import Case
from membound.check.norms import gated_first, is_narrowed, rounded, statistics_of
from membound.check.values import (
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

FORMS = ("returned", "given", "over dy", "over x", "accumulated", "dx alone", "dweight alone")
# The gradients that a form computes; any other form computes all.
ALONE = {f"{name} alone": name for name in ("dx", "dz", "dweight", "dbias")}
_WRITING = ("given", "over dy", "over x", "accumulated")


@dataclass(frozen=True)
class NormBackward:
    """One of the backward ops."""

    name: str
    centred: bool = False
    added: bool = False
    gated: bool = False

    @property
    def forms(self) -> tuple[str, ...]:
        if self.gated:
            return (*FORMS, "dz alone")
        return (*FORMS, "dbias alone") if self.centred else FORMS

    @property
    def gradients(self) -> tuple[str, ...]:
        if self.gated:
            return ("dx", "dz", "dweight")
        return ("dx", "dweight", "dbias") if self.centred else ("dx", "dweight")

    @property
    def of_rows(self) -> tuple[str, ...]:
        """The gradients that have a value per row and column."""
        return tuple(name for name in self.gradients if name in ("dx", "dz"))

    @property
    def allowed(self) -> dict[str, float]:
        return GATED_ALLOWED if self.gated else ALLOWED

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # backward ops do not copy NumPy arrays to a GPU
            return
        given = [form for form in self.forms if framework.takes_out or form not in _WRITING]
        if self.centred:
            # Differences of the largest values from their mean overflow.
            special = [name for name in (*cases.SPECIAL, "far mean") if name != "largest"]
            nothing = ("rounding", ("once",))
            yield from cases.all_cases(framework, dtype, thorough, given, nothing, special)
        elif self.gated:
            yield from cases.both_orders(cases.all_cases(framework, dtype, thorough, given))
        else:
            yield from cases.all_cases(framework, dtype, thorough, given)
        # Enough rows for several partial sums, threads and blocks.
        for rows, cols in ((300, 64), (1031, 7)):
            yield Case(dtype, rows, cols, form=given[0])

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return the worst error in ulps, and the limit."""
        want = expected(case, self)
        wanted = [ALONE[case.form]] if case.form in ALONE else list(self.gradients)
        if want.weight is None and "dweight" in wanted:
            wanted.remove("dweight")
        kind = statistics_dtype(case.dtype)
        start = round_to([1.0 + at % 7 for at in range(case.heads * case.cols)], kind)
        sums = [name for name in ("dweight", "dbias") if name in wanted]
        given = dict.fromkeys(sums, start) if case.form in ("given", "accumulated") else {}
        got, again = (_call(case, framework, self, want, given) for _ in range(2))
        for name in self.gradients:
            if (got[name] is None) == (name in wanted):
                raise AssertionError(f"{name} is there but not wanted, or missing")
        errors = [0.0]
        for name in self.of_rows:
            if name in wanted:
                require_shape(got[name], cases.LAYOUTS[case.layout].shape(case.rows, case.cols))
                values = framework.values(got[name])
                errors.append(want.gradients[name].error(values, case.dtype))
        dtype = case.dtype if want.weight is None else cases.weight_dtype(case)
        for name in sums:
            values = framework.values(got[name])
            right = want.gradients[name]
            if case.form == "accumulated":
                right = _added_to(case, right, start)
            errors.append(self._error_of_sum(case, right, values, kind if given else dtype))
            if values != framework.values(again[name]):  # a second run gave other bits
                errors.append(math.inf)
        return max(errors), self.allowed[case.dtype]

    def _error_of_sum(self, case: Case, right: Sums, values: list[float], dtype: str) -> float:
        error = right.error(values, dtype, case.dtype)
        if dtype == case.dtype:
            return error
        # The table's figures are in ulps of the case's dtype.
        return 0.0 if error <= self.allowed[dtype] else math.inf


@dataclass
class Expected:
    """Inputs, and the expected results."""

    inputs: dict[str, list[float]]  # dy, x, and dresidual_out or z where there is one
    weight: list[float] | None
    mean: list[float]
    rstd: list[float]
    gradients: dict[str, Sums]


@functools.cache
def expected(case: Case, op: NormBackward) -> Expected:
    inputs = {"dy": cases.draw(case, "dy", "normal"), "x": cases.draw(case)}
    if op.added:
        inputs["dresidual_out"] = cases.draw(case, "dresidual_out", "normal")
    normalised: Any = inputs["x"]
    if op.gated:
        inputs["z"] = cases.draw(case, "z", "normal")
        if not case.norm_before_gate:
            normalised = gated_first(case, inputs["x"], inputs["z"])
    weight = cases.draw_weight(case)
    found = statistics_of(case, normalised, op.centred)
    kind = statistics_dtype(case.dtype)
    means = round_to([float(row.mean) for row in found], kind)
    rstds = round_to([float(row.rstd) for row in found], kind)
    gradients = _gradients(case, op, inputs, weight, list(zip(means, rstds, strict=True)))
    return Expected(inputs, weight, means, rstds, gradients)


@dataclass
class Row:
    """The numbers of one row."""

    dy: list[Number]
    x: list[Number]
    z: list[Number]  # empty without a gate
    added: list[Number]
    factors: Sequence[Number]
    mean: Number
    rstd: Number


def _gradients(
    case: Case,
    op: NormBackward,
    inputs: dict[str, list[float]],
    weight: list[float] | None,
    statistics: list[tuple[float, float]],
) -> dict[str, Sums]:
    number, cols = number_type(case.dtype), case.cols
    found = {name: Sums([], []) for name in op.of_rows}
    sums = {
        name: Sums([number(0)] * (cols * case.heads), [number(0)] * (cols * case.heads))
        for name in ("dweight", "dbias")
    }
    nothing = [0.0] * (case.rows * cols)
    with exactly():
        factors = cases.factors(case, weight)
        for at, (mean, rstd) in enumerate(statistics):
            part = slice(at * cols, (at + 1) * cols)
            matrices = (inputs["dy"], inputs["x"], inputs.get("z", []))
            matrices = (*matrices, inputs.get("dresidual_out", nothing))
            numbers = ([number(v) for v in matrix[part]] for matrix in matrices)
            row = Row(*numbers, case.of_row(factors, at), number(mean), number(rstd))
            first = at % case.heads * cols
            _add_row(case, op, row, found, {n: (s, first) for n, s in sums.items()})
    return {**found, **sums}


def _add_row(
    case: Case,
    op: NormBackward,
    row: Row,
    found: dict[str, Sums],
    sums: dict[str, tuple[Sums, int]],
) -> None:
    """Append the row's gradients, and add its terms to dweight and dbias."""
    dy, x = row.dy, row.x
    gates = [_gate(z) for z in row.z]
    if gates and case.norm_before_gate:
        dy = [a * silu for a, (silu, _, _) in zip(dy, gates, strict=True)]
    elif gates:
        x = [a * silu for a, (silu, _, _) in zip(x, gates, strict=True)]
    h = [(v - row.mean) * row.rstd for v in x]
    dx = _row_of_dx(case, op, row, h, [a * b for a, b in zip(dy, row.factors, strict=True)])
    normal, apart = _as_forward(case, op, h)
    for column, (gradient, one, between) in enumerate(zip(dy, normal, apart, strict=True)):
        _add(sums["dweight"], column, gradient * one, abs(gradient) * (abs(one) + between))
        _add(sums["dbias"], column, gradient, abs(gradient))
    if gates and case.norm_before_gate:
        out = [a * b for a, b in zip(normal, row.factors, strict=True)]
        spread = [out[0] * 0] * case.cols
        if is_narrowed(case):  # the forward rounded here too, before the gate
            out, spread = _narrowed(out, case.dtype, either=True)
        dz = [(a * b, abs(a) * (abs(b) + c)) for a, b, c in zip(row.dy, out, spread, strict=True)]
    elif gates:
        dz = [(a * v, b * abs(v)) for (a, b), v in zip(dx, row.x, strict=True)]
        dx = [(a * s, b * abs(s)) for (a, b), (s, _, _) in zip(dx, gates, strict=True)]
    if gates:
        dz = [(a * d, b * size) for (a, b), (_, d, size) in zip(dz, gates, strict=True)]
        _append(found["dz"], dz)
    _append(found["dx"], dx)


def _append(to: Sums, pairs: list[tuple[Number, Number]]) -> None:
    to.values += [value for value, _ in pairs]
    to.terms += [terms for _, terms in pairs]


def _add(to: tuple[Sums, int], column: int, value: Number, terms: Number) -> None:
    sums, first = to
    sums.values[first + column] += value
    sums.terms[first + column] += terms


def _gate(z: Number) -> tuple[Number, Number, Number]:
    """silu of z, its derivative, and the magnitude of the derivative's terms."""
    s = sigmoid(z)
    return z * s, s * (1 + z * (1 - s)), s * (1 + abs(z) * (1 - s))


def _as_forward(case: Case, op: NormBackward, h: list[Number]) -> tuple[list[Number], list[Number]]:
    """The normalised row as the forward rounded it, and the distance between its possible values.

    The distance, in units of the slack for sums, is not 0 for x times a gate: the last bit of that
    float32 product is not known.
    """
    if not is_narrowed(case):
        return h, [h[0] * 0] * case.cols
    return _narrowed(h, case.dtype, either=op.gated and not case.norm_before_gate)


def _narrowed(
    values: list[Number], dtype: str, *, either: bool
) -> tuple[list[Number], list[Number]]:
    """Values rounded to float32, then dtype, and the distance between two possible roundings.

    either: float32 arithmetic may land on two values; their distance is in units of the slack for
    sums.
    """
    nearest = round_to(round_to(values, "float32"), dtype)
    if not either:
        return nearest, [0.0] * len(values)
    two = [rounded(v, dtype) for v in values]
    return nearest, [(max(both) - min(both)) / sum_slack(dtype) for both in two]


def _row_of_dx(
    case: Case, op: NormBackward, row: Row, h: list[Number], g: list[Number]
) -> list[tuple[Number, Number]]:
    """The row's dx, and the magnitude of the terms of each value."""

    def mean_of(values: Any) -> Number:
        return exact_sum(values, case.dtype) / case.cols

    products = [a * b for a, b in zip(g, h, strict=True)]
    along, size = mean_of(products), mean_of(map(abs, products))
    zero = number_type(case.dtype)(0)
    mean, mean_size = (mean_of(g), mean_of(map(abs, g))) if op.centred else (zero, zero)
    return [
        (
            row.rstd * (first - mean - normal * along) + more,
            row.rstd * (abs(first) + mean_size + abs(normal) * size) + abs(more),
        )
        for first, normal, more in zip(g, h, row.added, strict=True)
    ]


def _added_to(case: Case, sums: Sums, start: list[float]) -> Sums:
    number = number_type(case.dtype)
    with exactly():
        both = zip(sums.values, sums.terms, map(number, start), strict=True)
        values, terms = zip(*((a + c, b + c) for a, b, c in both), strict=True)
        return Sums(list(values), list(terms))


def _call(
    case: Case,
    framework: Framework,
    op: NormBackward,
    want: Expected,
    given: dict[str, list[float]],
) -> dict[str, Any]:
    """Call the op on fresh arrays; return the gradients by name."""
    arrays = {name: cases.to_array(case, framework, one) for name, one in want.inputs.items()}
    options: dict[str, Any] = {"weight_offset": case.weight_offset}
    if not op.centred:
        options["rounding"] = case.rounding
    if op.gated:
        options["norm_before_gate"] = case.norm_before_gate
    if case.form in ALONE:
        options |= {f"need_{name}": name == ALONE[case.form] for name in op.gradients}
    if case.form.startswith("over "):
        options["dx"] = arrays[case.form.removeprefix("over ")]
    elif case.form == "given":
        options |= {name: cases.to_array(case, framework) for name in op.of_rows}
    kind = statistics_dtype(case.dtype)
    for name, values in given.items():
        options[name] = cases.parameter_array(case, framework, values, kind)
    options["accumulate"] = case.form == "accumulated" and bool(given)
    if not framework.takes_out:
        del options["accumulate"]
    rows = cases.LAYOUTS[case.layout].shape(case.rows, case.cols)[:-1]
    statistics = [framework.array(one, rows, kind) for one in (want.mean, want.rstd)]
    names = ("dy", "dresidual_out", "x", "z")
    inputs = [arrays[name] for name in names if name in arrays]
    inputs.append(cases.parameter_array(case, framework, want.weight, cases.weight_dtype(case)))
    inputs += statistics[not op.centred :]
    if case.by_head:
        options["normalized_shape"] = case.cols
    found = getattr(membound, op.name)(*inputs, **options)
    return dict(zip(op.gradients, found, strict=True))
