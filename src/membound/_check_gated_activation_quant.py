# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation_quant: the definition applied to what the activation returns in float32.

The activation has a check of its own; quantisation of its result is exact, bit for bit.
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
    """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
    numbers = Numbers.of(case)
    wide = dataclasses.replace(case, dtype=norm.statistics_dtype(case.dtype))
    y = membound.gated_activation(
        *(norm.to_array(wide, framework, values) for values in (numbers.gate, numbers.up)),
        **case.options,
    )
    inputs = [norm.to_array(case, framework, values) for values in (numbers.gate, numbers.up)]
    found = _call(case, framework, inputs)
    norm.require_shape(found[0], tuple(y.shape))
    _, columns, _ = case.form.split()
    group = 0 if columns == "static" else quant.SCALES[columns] or case.cols
    codes, scales = quant.quantised(case, framework.values(y), group)
    right = list(map(framework.values, found)) == [codes, *([scales] if group else [])]
    return 0.0 if right else math.inf, 0.0


def _call(case: Case, framework: Framework, inputs: list[Any]) -> list[Any]:
    """Return out, and the scales unless the scale is static."""
    kind, columns, to_array = case.form.split()
    options = {**case.options, "dtype": kind, "group_size": quant.SCALES[columns]}
    if columns == "static":
        options["scale"] = framework.array([quant.STATIC_SCALE], (1,), "float32")
    results = membound.gated_activation_quant(*inputs, **options)
    results = list(results) if isinstance(results, tuple) else [results]
    if to_array == "out":  # write over the first call's results, whose bits were changed before
        given = dict(zip(("out", "scale_out"), results, strict=False))
        membound.gated_activation_quant(*reversed(inputs), **{**options, **given})
        membound.gated_activation_quant(*inputs, **{**options, **given})
    return results
