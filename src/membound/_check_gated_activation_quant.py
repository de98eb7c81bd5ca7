# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation_quant: the definition applied to what the activation returns in float32.

The activation has a check of its own; from there on every bit is known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import membound
from membound import _check_activation as activation
from membound import _check_norm as norm
from membound import _check_norm_quant as quant
from membound._check_activation import Case, Numbers
from membound._frameworks import Framework

FORMS = quant.FORMS


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    forms = [form for form in FORMS if quant.fits(framework, form)]
    return activation.all_cases(framework, dtype, thorough, forms) if forms else iter(())


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Runs one case: 0, or infinity where a bit is wrong; and 0, what is allowed."""
    numbers = Numbers.of(case)
    wide = dataclasses.replace(case, dtype=norm.statistics_dtype(case.dtype))
    y = membound.gated_activation(
        *(norm.place(wide, framework, values) for values in (numbers.gate, numbers.up)),
        **case.options,
    )
    inputs = [norm.place(case, framework, values) for values in (numbers.gate, numbers.up)]
    found = _call(case, framework, inputs)
    norm.require_shape(found[0], tuple(y.shape))
    _, columns, _ = case.form.split()
    group = 0 if columns == "static" else quant.SCALES[columns] or case.cols
    codes, scales = quant.quantised(case, framework.values(y), group)
    right = list(map(framework.values, found)) == [codes, *([scales] if group else [])]
    return 0.0 if right else math.inf, 0.0


def _call(case: Case, framework: Framework, inputs: list[Any]) -> list[Any]:
    """out, and the scales unless one is given."""
    kind, columns, place = case.form.split()
    options = {**case.options, "dtype": kind, "group_size": quant.SCALES[columns]}
    if columns == "static":
        options["scale"] = framework.array([quant.STATIC_SCALE], (1,), "float32")
    results = membound.gated_activation_quant(*inputs, **options)
    results = list(results) if isinstance(results, tuple) else [results]
    if place == "out":  # into what the first call made, after the bits there were others
        given = dict(zip(("out", "scale_out"), results, strict=False))
        membound.gated_activation_quant(*reversed(inputs), **{**options, **given})
        membound.gated_activation_quant(*inputs, **{**options, **given})
    return results
