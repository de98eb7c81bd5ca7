# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation_backward against exact arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import membound
from membound import _check_activation as activation
from membound import _check_norm as norm
from membound._check_activation import Case, Numbers
from membound._check_norm import Number
from membound._frameworks import Framework
from membound._ulps import ACTIVATION_ALLOWED, ACTIVATION_SLACK

FORMS = ("returned", "out", "in place")


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    return activation.cases(framework, dtype, thorough, FORMS)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    numbers = Numbers.of(case)
    dy, gate, up = (
        norm.to_array(case, framework, values) for values in (numbers.dy, numbers.gate, numbers.up)
    )
    options = case.options
    if case.form == "out":
        options |= {name: norm.to_array(case, framework) for name in ("dgate", "dup")}
    elif case.form == "in place":
        options |= {"dgate": up, "dup": dy}
    gradients = membound.gated_activation_backward(dy, gate, up, **options)
    worst = 0.0
    for got, wanted in zip(gradients, _expected(case, numbers), strict=True):
        norm.require_shape(got, tuple(gate.shape))
        for value, (right, terms) in zip(framework.values(got), wanted, strict=True):
            slack = ACTIVATION_SLACK[case.dtype] * float(terms)
            worst = max(worst, norm.sum_error(value, right, slack, case.dtype))
    return worst, ACTIVATION_ALLOWED[case.dtype]


def _expected(case: Case, numbers: Numbers) -> tuple[list[tuple[Number, Number]], ...]:
    """dgate and dup, each with the magnitude of its terms."""
    dgates: list[tuple[Number, Number]] = []
    dups: list[tuple[Number, Number]] = []
    zero = norm.number_type(case.dtype)(0)
    with norm.exactly():
        for gate, factor, gate_slope, up_slope, dy in numbers.factors(case):
            value, slope, size = activation.functions(case, gate)
            dgates.append((dy * slope * factor * gate_slope, abs(dy * factor) * size))
            dups.append((dy * value * up_slope, zero))
    return dgates, dups
