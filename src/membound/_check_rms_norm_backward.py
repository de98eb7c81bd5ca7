# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_backward and add_rms_norm_backward against exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound import _check_norm as norm
from membound._check_norm import Case, Number
from membound._frameworks import Framework
from membound._ulps import ALLOWED, gradient_slack

FORMS = ("returned", "given", "over dy", "over x", "accumulated", "dx alone", "dweight alone")
WITHOUT_OUT = ("returned", "dx alone", "dweight alone")


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # gradients of NumPy arrays are not carried through a GPU
        return
    forms = FORMS if framework.takes_out else WITHOUT_OUT
    yield from norm.all_cases(framework, dtype, thorough, forms)
    # Rows that several partial sums, threads and blocks share.
    for rows, cols in ((300, 64), (1031, 7)):
        yield Case(dtype, rows, cols, form=forms[0])


@dataclass
class Gradient:
    """Right values, and the size of the terms that each is the sum of."""

    values: list[Number]
    terms: list[Number]

    def error(self, got: Sequence[float], dtype: str, sums: str) -> float:
        relative = gradient_slack(sums)
        return max(
            norm.gradient_error(value, wanted, relative * float(size), dtype)
            for value, wanted, size in zip(got, self.values, self.terms, strict=True)
        )


@dataclass
class Expected:
    inputs: dict[str, list[float]]  # dy, x, and dresidual_out where there is one
    weight: list[float] | None
    rstd: list[float]
    dx: Gradient
    dweight: Gradient


@functools.cache
def expected(case: Case, added: bool) -> Expected:
    """What goes in and what must come out."""
    inputs = {"dy": norm.draw(case, "dy", "normal"), "x": norm.draw(case)}
    if added:
        inputs["dresidual_out"] = norm.draw(case, "dresidual_out", "normal")
    weight = norm.draw_weight(case)
    number, cols = norm.number_type(case.dtype), case.cols
    dx, dweight = Gradient([], []), Gradient([number(0)] * cols, [number(0)] * cols)
    columns: list[list[Number]] = [[] for _ in range(cols)]
    rstds = [float(one) for one in norm.norm_of(case, inputs["x"], None)[1]]
    rstds = norm.round_to(rstds, norm.statistics_dtype(case.dtype))
    with norm.exactly():
        factors = norm.factors(case, weight) or [number(1)] * cols
        for row, root in enumerate(rstds):
            part = slice(row * cols, (row + 1) * cols)
            dy = [number(v) for v in inputs["dy"][part]]
            h = [number(v) * number(root) for v in inputs["x"][part]]
            g = [a * b for a, b in zip(dy, factors, strict=True)]
            products = [a * b for a, b in zip(g, h, strict=True)]
            mean = norm.total(products, case.dtype) / cols
            size = norm.total(map(abs, products), case.dtype) / cols
            added_to = (
                [number(v) for v in inputs["dresidual_out"][part]] if added else [number(0)] * cols
            )
            for first, normal, more in zip(g, h, added_to, strict=True):
                dx.values.append(number(root) * (first - normal * mean) + more)
                dx.terms.append(number(root) * (abs(first) + abs(normal) * size) + abs(more))
            if norm.is_narrowed(case):  # the forward rounded the float32 product once more
                h = norm.round_to(norm.round_to(h, "float32"), case.dtype)
            for column, value, normal in zip(columns, dy, h, strict=True):
                column.append(value * normal)
        dweight.values = [norm.total(column, case.dtype) for column in columns]
        dweight.terms = [norm.total(map(abs, column), case.dtype) for column in columns]
    return Expected(inputs, weight, rstds, dx, dweight)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    return run_backward(case, framework, added=False)


def run_backward(case: Case, framework: Framework, added: bool) -> tuple[float, float]:
    """Runs one case: the worst error in ulps, and what is allowed."""
    want = expected(case, added)
    shape = norm.LAYOUTS[case.layout].shape(case.rows, case.cols)
    rstd = framework.array(want.rstd, shape[:-1], norm.statistics_dtype(case.dtype))
    weight = norm.place_weight(case, framework, want.weight)
    start = norm.round_to(
        [1.0 + at % 7 for at in range(case.cols)], norm.statistics_dtype(case.dtype)
    )

    def gradients() -> tuple[Any, Any, str]:
        """dx, dweight and dweight's dtype, from fresh arrays."""
        arrays = {name: norm.place(case, framework, one) for name, one in want.inputs.items()}
        options: dict[str, Any] = {"rounding": case.rounding, "weight_offset": case.weight_offset}
        options |= {
            "need_dx": case.form != "dweight alone",
            "need_dweight": case.form != "dx alone",
        }
        if case.form.startswith("over "):
            options["dx"] = arrays[case.form.removeprefix("over ")]
        elif case.form == "given":
            options["dx"] = norm.place(case, framework)
        dweight_dtype = norm.weight_dtype(case)
        if case.form in ("given", "accumulated") and weight is not None:
            dweight_dtype = norm.statistics_dtype(case.dtype)
            options["dweight"] = framework.array(start, (case.cols,), dweight_dtype)
            options["accumulate"] = case.form == "accumulated"
        if added:
            function = membound.add_rms_norm_backward
            inputs = (arrays["dy"], arrays["dresidual_out"], arrays["x"])
        else:
            function = membound.rms_norm_backward
            inputs = (arrays["dy"], arrays["x"])
        return *function(*inputs, weight, rstd, **options), dweight_dtype

    dx, dweight, dweight_dtype = gradients()
    worst = 0.0
    if (dx is None) != (case.form == "dweight alone"):
        raise AssertionError("dx is there where it is not wanted, or the other way round")
    if (dweight is None) != (case.form == "dx alone" or weight is None):
        raise AssertionError("dweight is there where it is not wanted, or the other way round")
    if dx is not None:
        norm.require_shape(dx, shape)
        worst = want.dx.error(framework.values(dx), case.dtype, case.dtype)
    if dweight is not None:
        right = want.dweight
        if case.form == "accumulated":
            number = norm.number_type(case.dtype)
            with norm.exactly():
                right = Gradient(
                    [a + number(b) for a, b in zip(right.values, start, strict=True)],
                    [a + number(b) for a, b in zip(right.terms, start, strict=True)],
                )
        got = framework.values(dweight)
        error = right.error(got, dweight_dtype, case.dtype)
        if dweight_dtype != case.dtype:  # the table's figures are in ulps of the case's dtype
            error = 0.0 if error <= ALLOWED[dweight_dtype] else math.inf
        worst = max(worst, error)
        if got != framework.values(gradients()[1]):  # another run, other bits
            worst = math.inf
    return worst, ALLOWED[case.dtype]
