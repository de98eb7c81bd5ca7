# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations and their gradients.

The quantised form is compared, bit for bit, with the definition applied to what the activation
returns in float32.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases, quantised_norms
from membound.oracle import Expected, statistics_dtype
from membound.oracle.activations import KINDS, gated_activation

WIDTHS = (1, 7, 33, 64, 257, 1000)


@dataclass(frozen=True)
class Case(cases.Case):
    """A matrix of gates, and as many of up."""

    kind: str = "silu"
    limited: bool = False

    def __str__(self) -> str:
        limited = ", limited" if self.limited else ""
        return (
            f"{self.kind}, {self.rows} x {self.cols} {self.dtype}, {self.layout}{limited}, "
            f"{self.form}"
        )

    @property
    def options(self) -> dict[str, Any]:
        """Options with values that every dtype represents exactly."""
        said: dict[str, Any] = {"kind": self.kind}
        if self.limited:
            said |= {"limit": 1.0, "up_offset": 1.0}
            if self.kind == "situ":  # up may be near -1, where up + up_offset would cancel
                del said["up_offset"]
            if self.kind in ("silu", "sigmoid", "situ"):
                said["alpha"] = 1.75
        return said


@dataclass(frozen=True)
class Activation:
    """One of the ops."""

    name: str
    run: Callable[[Case, Framework], tuple[float, float]]
    forms: tuple[str, ...] = ("returned", "out", "in place")

    def cases(self, framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
        if self.forms == quantised_norms.FORMS:
            forms = [form for form in self.forms if quantised_norms.fits(framework, form)]
        else:
            forms = list(cases.available_forms(framework, self.forms))
        return all_cases(framework, dtype, thorough, forms)


def all_cases(
    framework: Framework, dtype: str, thorough: bool, forms: Sequence[str]
) -> Iterator[Case]:
    """Cross kinds with layouts and cycle or draw the rest; thorough: the whole product."""
    if framework.call_options or not forms:  # these ops take no device
        return
    layouts = [
        name for name, layout in cases.LAYOUTS.items() if framework.strided or layout.contiguous
    ]
    source = random.Random(20251121)
    widths = itertools.cycle(width for width in WIDTHS if width <= max(cases.WIDTHS))
    in_turn = _shuffled(source, forms)
    rest = list(itertools.product(WIDTHS, forms, (False, True)))
    kinds = (kind for kind in KINDS if dtype != "float64" or kind not in cases.NEED_LONG_DOUBLE)
    for kind, layout in itertools.product(kinds, layouts):
        drawn = (next(widths), next(in_turn), bool(source.getrandbits(1)))
        for cols, form, limited in rest if thorough else [drawn]:
            yield Case(dtype, 4, cols, layout, form=form, kind=kind, limited=limited)


def _shuffled(source: random.Random, forms: Sequence[str]) -> Iterator[str]:
    """Yield all values in a random order, then again in another order, without end."""
    while True:
        yield from source.sample(forms, len(forms))


def expected(case: Case) -> tuple[list[Any], dict[str, Expected]]:
    """dy, gate and up of a case, and the results."""
    dy, gate, up = (cases.draw(case, name, "normal") for name in ("dy", "gate", "up"))
    return [dy, gate, up], gated_activation(gate, up, dy, case.dtype, **case.options)


def _arrays(case: Case, framework: Framework, values: Sequence[Any]) -> list[Any]:
    return [cases.to_array(case, framework, one) for one in values]


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    values, right = expected(case)
    gate, up = _arrays(case, framework, values[1:])
    options = case.options
    if case.form != "returned":
        options["out"] = cases.to_array(case, framework) if case.form == "out" else gate
    got = membound.gated_activation(gate, up, **options)
    return cases.compare(framework, case.dtype, [(got, right["out"])])


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    values, right = expected(case)
    dy, gate, up = _arrays(case, framework, values)
    options = case.options
    if case.form == "out":
        options |= {name: cases.to_array(case, framework) for name in ("dgate", "dup")}
    elif case.form == "in place":
        options |= {"dgate": up, "dup": dy}
    got = membound.gated_activation_backward(dy, gate, up, **options)
    pairs = list(zip(got, (right["dgate"], right["dup"]), strict=True))
    return cases.compare(framework, case.dtype, pairs)


def run_quantised(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
    values, _ = expected(case)
    wide = dataclasses.replace(case, dtype=statistics_dtype(case.dtype))
    y = membound.gated_activation(*_arrays(wide, framework, values[1:]), **case.options)
    inputs = _arrays(case, framework, values[1:])
    changed = (inputs[::-1], {})
    op = "gated_activation_quant"
    results = quantised_norms.call(case, framework, op, inputs, case.options, changed)
    return quantised_norms.error_of(case, framework, results, y)
