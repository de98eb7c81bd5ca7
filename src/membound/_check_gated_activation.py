# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation against exact arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import membound
from membound import _check_activation as activation
from membound import _check_norm as norm
from membound._check_activation import Case, Numbers
from membound._frameworks import Framework
from membound._ulps import ACTIVATION_ALLOWED

FORMS = ("returned", "out", "in place")


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    return activation.cases(framework, dtype, thorough, FORMS)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    numbers = Numbers.of(case)
    gate, up = (norm.to_array(case, framework, values) for values in (numbers.gate, numbers.up))
    options = case.options
    if case.form != "returned":
        options["out"] = norm.to_array(case, framework) if case.form == "out" else gate
    got = membound.gated_activation(gate, up, **options)
    norm.require_shape(got, tuple(gate.shape))
    with norm.exactly():
        wanted = [
            {activation.functions(case, g)[0] * factor}
            for g, factor, _, _, _ in numbers.factors(case)
        ]
        worst = norm.Candidates(wanted).error(framework.values(got), case.dtype)
    return worst, ACTIVATION_ALLOWED[case.dtype]
