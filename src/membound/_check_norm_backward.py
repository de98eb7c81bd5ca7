# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients of rms_norm, layer_norm and their added forms against exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import membound
from membound import _check_norm as norm
from membound._check_norm import Case, Number, Sums
from membound._check_norm_forward import is_narrowed, statistics_of
from membound._frameworks import Framework
from membound._ulps import ALLOWED

FORMS = ("returned", "given", "over dy", "over x", "accumulated", "dx alone", "dweight alone")
# The gradients that a form has; any other has all.
ALONE = {"dx alone": "dx", "dweight alone": "dweight", "dbias alone": "dbias"}
_WRITING = ("given", "over dy", "over x", "accumulated")


@dataclass(frozen=True)
class Op:
    """Which of the backwards it is."""

    name: str
    centred: bool = False
    added: bool = False

    @property
    def forms(self) -> tuple[str, ...]:
        return (*FORMS, "dbias alone") if self.centred else FORMS

    @property
    def gradients(self) -> tuple[str, ...]:
        return ("dx", "dweight", "dbias") if self.centred else ("dx", "dweight")

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # gradients of NumPy arrays are not carried through a GPU
            return
        given = [form for form in self.forms if framework.takes_out or form not in _WRITING]
        if self.centred:
            # The largest values have differences from their mean that leave the range.
            special = [name for name in (*norm.SPECIAL, "far mean") if name != "largest"]
            nothing = ("rounding", ("once",))
            yield from norm.all_cases(framework, dtype, thorough, given, nothing, special)
        else:
            yield from norm.all_cases(framework, dtype, thorough, given)
        # Rows that several partial sums, threads and blocks share.
        for rows, cols in ((300, 64), (1031, 7)):
            yield Case(dtype, rows, cols, form=given[0])


@dataclass
class Expected:
    """What goes in and what must come out."""

    inputs: dict[str, list[float]]  # dy, x, and dresidual_out where there is one
    weight: list[float] | None
    mean: list[float]
    rstd: list[float]
    gradients: dict[str, Sums]


@functools.cache
def expected(case: Case, op: Op) -> Expected:
    inputs = {"dy": norm.draw(case, "dy", "normal"), "x": norm.draw(case)}
    if op.added:
        inputs["dresidual_out"] = norm.draw(case, "dresidual_out", "normal")
    weight = norm.draw_weight(case)
    found = statistics_of(case, inputs["x"], op.centred)
    kind = norm.statistics_dtype(case.dtype)
    means = norm.round_to([float(row.mean) for row in found], kind)
    rstds = norm.round_to([float(row.rstd) for row in found], kind)
    gradients = _gradients(case, op, inputs, weight, list(zip(means, rstds, strict=True)))
    return Expected(inputs, weight, means, rstds, gradients)


def _gradients(
    case: Case,
    op: Op,
    inputs: dict[str, list[float]],
    weight: list[float] | None,
    statistics: list[tuple[float, float]],
) -> dict[str, Sums]:
    number, cols = norm.number_type(case.dtype), case.cols
    dx = Sums([], [])
    columns: dict[str, list[list[Number]]] = {
        name: [[] for _ in range(cols)] for name in ("dweight", "dbias")
    }
    nothing = [0.0] * (case.rows * cols)
    with norm.exactly():
        factors = norm.factors(case, weight) or [number(1)] * cols
        matrices = (inputs["dy"], inputs["x"], inputs.get("dresidual_out", nothing))
        for at, (mean, rstd) in enumerate(statistics):
            part = slice(at * cols, (at + 1) * cols)
            dy, x, added = ([number(v) for v in matrix[part]] for matrix in matrices)
            root, centre = number(rstd), number(mean)
            h = [(v - centre) * root for v in x]
            g = [a * b for a, b in zip(dy, factors, strict=True)]
            _add_row_of_dx(case, op, dx, root, h, g, added)
            if is_narrowed(case):  # the forward rounded the float32 product once more
                h = norm.round_to(norm.round_to(h, "float32"), case.dtype)
            for column, (gradient, normal) in enumerate(zip(dy, h, strict=True)):
                columns["dweight"][column].append(gradient * normal)
                columns["dbias"][column].append(gradient)
        sums = {
            name: Sums(
                [norm.total(column, case.dtype) for column in all_columns],
                [norm.total(map(abs, column), case.dtype) for column in all_columns],
            )
            for name, all_columns in columns.items()
        }
    return {"dx": dx, **sums}


def _add_row_of_dx(
    case: Case,
    op: Op,
    dx: Sums,
    root: Number,
    h: list[Number],
    g: list[Number],
    added: list[Number],
) -> None:
    def mean_of(values: Any) -> Number:
        return norm.total(values, case.dtype) / case.cols

    products = [a * b for a, b in zip(g, h, strict=True)]
    along, size = mean_of(products), mean_of(map(abs, products))
    zero = norm.number_type(case.dtype)(0)
    mean, mean_size = (mean_of(g), mean_of(map(abs, g))) if op.centred else (zero, zero)
    for first, normal, more in zip(g, h, added, strict=True):
        dx.values.append(root * (first - mean - normal * along) + more)
        dx.terms.append(root * (abs(first) + mean_size + abs(normal) * size) + abs(more))


def run(case: Case, framework: Framework, op: Op) -> tuple[float, float]:
    """Runs one case: the worst error in ulps, and what is allowed."""
    want = expected(case, op)
    wanted = [ALONE[case.form]] if case.form in ALONE else list(op.gradients)
    if want.weight is None and "dweight" in wanted:
        wanted.remove("dweight")
    kind = norm.statistics_dtype(case.dtype)
    start = norm.round_to([1.0 + at % 7 for at in range(case.cols)], kind)
    sums = [name for name in ("dweight", "dbias") if name in wanted]
    given = dict.fromkeys(sums, start) if case.form in ("given", "accumulated") else {}
    got, again = (_call(case, framework, op, want, given) for _ in range(2))
    worst = 0.0
    for name in op.gradients:
        if (got[name] is None) == (name in wanted):
            raise AssertionError(f"{name} is there where it is not wanted, or the other way round")
    if "dx" in wanted:
        norm.require_shape(got["dx"], norm.LAYOUTS[case.layout].shape(case.rows, case.cols))
        worst = want.gradients["dx"].error(framework.values(got["dx"]), case.dtype)
    for name in sums:
        right, values = want.gradients[name], framework.values(got[name])
        if case.form == "accumulated":
            right = _added_to(case, right, start)
        dtype = kind if given else case.dtype if want.weight is None else norm.weight_dtype(case)
        error = right.error(values, dtype, case.dtype)
        if dtype != case.dtype:  # the table's figures are in ulps of the case's dtype
            error = 0.0 if error <= ALLOWED[dtype] else math.inf
        worst = max(worst, error)
        if values != framework.values(again[name]):  # another run, other bits
            worst = math.inf
    return worst, ALLOWED[case.dtype]


def _added_to(case: Case, sums: Sums, start: list[float]) -> Sums:
    number = norm.number_type(case.dtype)
    with norm.exactly():
        both = zip(sums.values, sums.terms, map(number, start), strict=True)
        values, terms = zip(*((a + c, b + c) for a, b, c in both), strict=True)
        return Sums(list(values), list(terms))


def _call(
    case: Case, framework: Framework, op: Op, want: Expected, given: dict[str, list[float]]
) -> dict[str, Any]:
    """The gradients by name, from fresh arrays."""
    arrays = {name: norm.place(case, framework, one) for name, one in want.inputs.items()}
    options: dict[str, Any] = {"weight_offset": case.weight_offset}
    if not op.centred:
        options["rounding"] = case.rounding
    if case.form in ALONE:
        options |= {f"need_{name}": name == ALONE[case.form] for name in op.gradients}
    if case.form.startswith("over "):
        options["dx"] = arrays[case.form.removeprefix("over ")]
    elif case.form == "given":
        options["dx"] = norm.place(case, framework)
    kind = norm.statistics_dtype(case.dtype)
    for name, values in given.items():
        options[name] = framework.array(values, (case.cols,), kind)
    options["accumulate"] = case.form == "accumulated" and bool(given)
    if not framework.takes_out:
        del options["accumulate"]
    rows = norm.LAYOUTS[case.layout].shape(case.rows, case.cols)[:-1]
    statistics = [framework.array(one, rows, kind) for one in (want.mean, want.rstd)]
    names = ("dy", "dresidual_out", "x") if op.added else ("dy", "x")
    inputs = [arrays[name] for name in names]
    inputs += [norm.place_weight(case, framework, want.weight), *statistics[not op.centred :]]
    found = getattr(membound, op.name)(*inputs, **options)
    return dict(zip(op.gradients, found, strict=True))
