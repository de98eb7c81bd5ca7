# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy_backward against its definition in Python's floats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import membound
from membound import _check_cross_entropy as forward
from membound._check_cross_entropy import Case, Given
from membound._frameworks import Framework
from membound._ulps import SOFTMAX_ALLOWED


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    return forward.cases(framework, dtype, thorough, ("returned", "out", "in place"))


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for exponentials, and the limit."""
    given, kind = Given.of(case, framework), forward.statistics(case)
    options: dict[str, Any] = dict(forward.OPTIONS[case.kind])
    known = [
        part for row in given.held for part in forward.log_of_sum(forward.capped(case, row)[0])
    ]
    lse = framework.array(known, (forward.ROWS, 2), kind)
    dloss = framework.array(list(forward.DLOSS), (forward.ROWS,), kind)
    if case.form == "out":
        options["dlogits"] = forward.zeros(framework, case, forward.ROWS, case.cols)
    elif case.form == "in place":
        options["dlogits"] = given.logits
    found = membound.cross_entropy_backward(dloss, given.logits, given.labels, lse, **options)
    return forward.worst_gradient(case, framework, given, found), SOFTMAX_ALLOWED[case.dtype]
