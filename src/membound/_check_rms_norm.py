# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm against exact arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import membound
from membound import _check_norm as norm
from membound._check_norm import Case, Number
from membound._frameworks import Framework
from membound._ulps import ALLOWED

FORMS = ("returned", "out", "in place")


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    return norm.all_cases(framework, dtype, thorough, forms)


@functools.cache
def expected(
    case: Case,
) -> tuple[list[float], list[float] | None, list[set[Number]], list[Number]]:
    """Return x, weight, for each element the results that are right, and each row's rstd."""
    x, weight = norm.draw(case), norm.draw_weight(case)
    return x, weight, *norm.norm_of(case, x, weight)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Runs one case: the worst error in ulps, and what is allowed."""
    x_values, weight_values, wanted, rstds = expected(case)
    x = norm.place(case, framework, x_values)
    weight = norm.place_weight(case, framework, weight_values)
    options: dict[str, Any] = {"eps": case.eps, "rounding": case.rounding}
    options |= {"weight_offset": case.weight_offset, **framework.call_options}
    if case.form == "out":
        options["out"] = norm.place(case, framework)
    elif case.form == "in place":
        options["out"] = x
    shape = tuple(x.shape)
    with_rstd = case.form == "returned"
    result = membound.rms_norm(x, weight, return_rstd=with_rstd, **options)
    y, rstd = result if with_rstd else (result, None)
    norm.require_shape(y, shape)
    worst = norm.worst_of(case, framework, y, wanted)
    if rstd is not None:
        worst = max(worst, norm.check_rstd(case, framework, rstd, rstds))
    return worst, ALLOWED[case.dtype]
