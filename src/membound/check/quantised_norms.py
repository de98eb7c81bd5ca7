# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_quant and its added form: the definition applied to what the norm itself returns.

The norm has a check of its own; quantisation of its result is exact, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import QUANTISED, Framework
from membound.check import cases
from membound.check.cases import Case
from membound.oracle import np, statistics_dtype
from membound.oracle.quantised import quantised

# Columns per scale, and the static scale.
SCALES = {"row": None, "64": 64, "128": 128, "static": None}
STATIC_SCALE = 0.03125
# Dtype, scale and destination of the results.
FORMS = tuple(map(" ".join, itertools.product(QUANTISED, SCALES, ("returned", "out"))))


@dataclass(frozen=True)
class QuantisedNorm:
    """One of the two ops."""

    name: str
    added: bool = False
    forms: tuple[str, ...] = FORMS

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if framework.call_options:  # it takes no device
            return iter(())
        forms = [form for form in self.forms if fits(framework, form)]
        return cases.all_cases(framework, dtype, thorough, forms)

    def run(self, case: Case, framework: Framework) -> tuple[float, float]:
        """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
        values = [cases.draw(case), *([cases.draw_residual(case)] if self.added else [])]
        inputs = [cases.to_array(case, framework, one) for one in values]
        weight = cases.draw_weight(case)
        inputs.append(cases.plain(framework, weight, cases.weight_dtype(case)))
        options = {"eps": case.eps, "weight_offset": case.weight_offset, "rounding": case.rounding}
        by_head = {"normalized_shape": case.cols} if case.by_head else {}
        found = getattr(membound, self.name.removesuffix("_quant"))(*inputs, **options, **by_head)
        y, *total = found if self.added else (found,)
        changed = (inputs, {"eps": case.eps + 1.0})
        results = call(case, framework, self.name, inputs, options, changed)
        return error_of(case, framework, results, y, total)


def fits(framework: Framework, form: str) -> bool:
    kind, _, to_array = form.split()
    return kind in framework.quantised and (to_array == "returned" or framework.takes_out)


def error_of(
    case: Case, framework: Framework, results: list[Any], y: Any, total: Sequence[Any] = ()
) -> tuple[float, float]:
    """Compare results with the quantised y; return 0, or infinity if any bit differs, and 0."""
    kind, columns, _ = case.form.split()
    values = cases.held(framework, y).astype(statistics_dtype(case.dtype))
    codes, scales = quantised(values, kind, SCALES[columns] or columns, given=STATIC_SCALE)
    wanted = [codes, *(cases.held(framework, one) for one in total)]
    wanted += [] if scales is None else [scales]
    pairs = zip(results, wanted, strict=True)
    same = all(np.array_equal(cases.held(framework, one), right) for one, right in pairs)
    return 0.0 if same else math.inf, 0.0


def call(
    case: Case,
    framework: Framework,
    op: str,
    inputs: list[Any],
    options: dict[str, Any],
    changed: tuple[Sequence[Any], dict[str, Any]],
) -> list[Any]:
    """Return out, residual_out in the added form, and the scales unless the scale is static.

    changed: inputs and options with other results. The form "out" writes over the results of such a
    call.
    """
    kind, columns, to_array = case.form.split()
    function = getattr(membound, op)
    options = {**options, "dtype": kind, "group_size": SCALES[columns]}
    if columns == "static":
        options["scale"] = framework.array([STATIC_SCALE], (1,), "float32")
    results = function(*inputs, **options)
    results = list(results) if isinstance(results, tuple) else [results]
    if to_array == "out":
        names = ["out", *(["residual_out"] if op.startswith("add_") else []), "scale_out"]
        given = dict(zip(names, results, strict=False))
        other, more = changed
        function(*other, **{**options, **more, **given})
        function(*inputs, **{**options, **given})
    return results
