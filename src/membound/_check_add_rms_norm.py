# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""add_rms_norm and fused_add_rms_norm against exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import membound
from membound import _check_norm as norm
from membound._check_norm import Case, Number
from membound._frameworks import Framework
from membound._ulps import ALLOWED

FORMS = ("returned", "out", "in place", "fused")


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    forms = FORMS if framework.takes_out else FORMS[:1]
    forms = FORMS[1:] if framework.name == "memoryview" else forms
    forms = forms[:3] if framework.call_options else forms  # the alias takes no device
    return norm.all_cases(framework, dtype, thorough, forms)


@functools.cache
def expected(
    case: Case,
) -> tuple[list[list[float]], list[float] | None, list[float], list[set[Number]], list[Number]]:
    """Return x and residual, weight, the sum, for each element its right norms, and the rstds."""
    other = "every magnitude" if case.values == "every magnitude" else "normal"
    inputs = [norm.draw(case), norm.draw(case, "residual", other)]
    weight = norm.draw_weight(case)
    sums = [a + b for a, b in zip(*inputs, strict=True)]
    sums = norm.round_to(sums, norm.statistics_dtype(case.dtype))
    return inputs, weight, norm.round_to(sums, case.dtype), *norm.norm_of(case, sums, weight)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Runs one case: the worst error in ulps, and what is allowed."""
    values, weight_values, sums, wanted, rstds = expected(case)
    x, residual = (norm.place(case, framework, one) for one in values)
    weight = norm.place_weight(case, framework, weight_values)
    form = case.form
    if form == "fused" and (case.rounding != "once" or case.weight_offset):
        form = "in place"  # the alias has no such options
    shape, rstd = tuple(x.shape), None
    if form == "fused":
        membound.fused_add_rms_norm(x, residual, weight, case.eps)
        y, total = x, residual
    else:
        options: dict[str, Any] = {"eps": case.eps, "rounding": case.rounding}
        options |= {"weight_offset": case.weight_offset, **framework.call_options}
        if form == "out":
            options |= {name: norm.place(case, framework) for name in ("out", "residual_out")}
        elif form == "in place":
            options |= {"out": x, "residual_out": residual}
        with_rstd = form == "returned"
        y, total, *rest = membound.add_rms_norm(
            x, residual, weight, return_rstd=with_rstd, **options
        )
        rstd = rest[0] if with_rstd else None
    norm.require_shape(y, shape)
    worst = norm.worst_of(case, framework, y, wanted)
    if rstd is not None:
        worst = max(worst, norm.check_rstd(case, framework, rstd, rstds))
    if framework.values(total) != sums:  # one rounding: its bits are known
        worst = math.inf
    return worst, ALLOWED[case.dtype]
