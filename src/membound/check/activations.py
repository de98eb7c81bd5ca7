# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations and their gradients against exact arithmetic.

The quantised form is compared, bit for bit, with the definition applied to what the activation
returns in float32.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import membound
from membound._frameworks import Framework
from membound._ulps import ACTIVATION_ALLOWED, ACTIVATION_SLACK
from membound.check import cases, quantised_norms
from membound.check.values import (
    Candidates,
    Number,
    exactly,
    number_type,
    require_shape,
    sigmoid,
    statistics_dtype,
    sum_error,
)

KINDS = ("silu", "gelu", "gelu_tanh", "sigmoid", "relu2", "relu", "situ")
WIDTHS = (1, 7, 33, 64, 257, 1000)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


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
    for kind, layout in itertools.product(KINDS, layouts):
        drawn = (next(widths), next(in_turn), bool(source.getrandbits(1)))
        for cols, form, limited in rest if thorough else [drawn]:
            yield Case(dtype, 4, cols, layout, form=form, kind=kind, limited=limited)


def _shuffled(source: random.Random, forms: Sequence[str]) -> Iterator[str]:
    """Yield all values in a random order, then again in another order, without end."""
    while True:
        yield from source.sample(forms, len(forms))


def functions(case: Case, gate: Number) -> tuple[Number, Number, Number]:
    """The function of a gate, its slope, and the size of the slope's terms."""
    number = number_type(case.dtype)
    zero, one = number(0), number(1)
    if case.kind == "relu2":
        positive = max(gate, zero)
        return positive * positive, 2 * positive, 2 * positive
    if case.kind == "relu":
        slope = one if gate > zero else zero
        return max(gate, zero), slope, slope
    if case.kind == "situ":
        capped, steep = soft_cap(gate, number(case.options.get("alpha", 4.0)))
        s, rest = sigmoid(gate), sigmoid(-gate)
        return capped * s, s * (steep + capped * rest), s * (steep + abs(capped) * rest)
    if case.kind == "gelu":
        below, density = _normal(gate)
        return gate * below, below + gate * density, below + abs(gate) * density
    z = steep = gate * number(case.options.get("alpha", 1.0))
    if case.kind == "gelu_tanh":
        cubic = number(44715) / number(1000000) if case.dtype == "float64" else 0.044715
        factor = 2 * (2 / (_PI if case.dtype == "float64" else number(math.pi))) ** (one / 2)
        z = factor * (gate + cubic * gate**3)
        steep = factor * (gate + 3 * cubic * gate**3)
    s, rest = sigmoid(z), sigmoid(-z)
    if case.kind == "sigmoid":
        slope = s * rest * number(case.options.get("alpha", 1.0))
        return s, slope, slope
    return gate * s, s * (1 + steep * rest), s * (1 + abs(steep) * rest)


def soft_cap(x: Number, cap: Number) -> tuple[Number, Number]:
    """cap * tanh(x / cap), and its slope: tanh is 1 - 2 s, with s the logistic function."""
    s = sigmoid(-2 * abs(x) / cap)
    value = cap * (1 - 2 * s)
    return (value if x >= 0 else -value), 4 * s * (1 - s)


def _normal(g: Number) -> tuple[Number, Number]:
    """The normal distribution's integral and density."""
    if isinstance(g, float):
        density = math.exp(-g * g / 2) / math.sqrt(2 * math.pi)
        return math.erfc(-g / math.sqrt(2)) / 2, density
    density = (-g * g / 2).exp() / (2 * _PI).sqrt()
    # the series g + g^3 / 3 + g^5 / (3 * 5) + ... has terms of one sign
    term = total = g
    odd = 1
    while abs(term) > abs(total) * Decimal("1e-33"):
        odd += 2
        term = term * g * g / odd
        total += term
    return Decimal("0.5") + density * total, density


class Factor(NamedTuple):
    """An element's gate and up before clamping, the slopes of the clamps, and dy."""

    gate: Number
    up: Number
    gate_slope: Number
    up_slope: Number
    dy: Number


@dataclass
class Numbers:
    """The exact values of the inputs."""

    gate: list[float]
    up: list[float]
    dy: list[float]

    @classmethod
    def of(cls, case: Case) -> Numbers:
        return cls(*(cases.draw(case, name, "normal") for name in ("gate", "up", "dy")))

    def factors(self, case: Case) -> Iterator[Factor]:
        """One Factor per element, after clamping."""
        number = number_type(case.dtype)
        limit, offset = (1.0, number(1.0)) if case.limited else (math.inf, number(0.0))
        for gate, up, dy in zip(self.gate, self.up, self.dy, strict=True):
            if case.kind == "situ":
                capped, slope = soft_cap(number(up), number(min(limit, 25.0)))
                yield Factor(number(gate), capped, number(1), slope, number(dy))
            else:
                held = number(min(max(up, -limit), limit)) + offset
                passes = number(gate <= limit), number(abs(up) <= limit)
                yield Factor(number(min(gate, limit)), held, *passes, number(dy))


def _arrays(case: Case, framework: Framework, *values: list[float]) -> list[Any]:
    return [cases.to_array(case, framework, one) for one in values]


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    numbers = Numbers.of(case)
    gate, up = _arrays(case, framework, numbers.gate, numbers.up)
    options = case.options
    if case.form != "returned":
        options["out"] = cases.to_array(case, framework) if case.form == "out" else gate
    got = membound.gated_activation(gate, up, **options)
    require_shape(got, tuple(gate.shape))
    with exactly():
        wanted = [{functions(case, g)[0] * factor} for g, factor, _, _, _ in numbers.factors(case)]
        worst = Candidates(wanted).error(framework.values(got), case.dtype)
    return worst, ACTIVATION_ALLOWED[case.dtype]


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return the worst error in ulps, and the limit."""
    numbers = Numbers.of(case)
    dy, gate, up = _arrays(case, framework, numbers.dy, numbers.gate, numbers.up)
    options = case.options
    if case.form == "out":
        options |= {name: cases.to_array(case, framework) for name in ("dgate", "dup")}
    elif case.form == "in place":
        options |= {"dgate": up, "dup": dy}
    gradients = membound.gated_activation_backward(dy, gate, up, **options)
    worst = 0.0
    for got, wanted in zip(gradients, _expected(case, numbers), strict=True):
        require_shape(got, tuple(gate.shape))
        for value, (right, terms) in zip(framework.values(got), wanted, strict=True):
            slack = ACTIVATION_SLACK[case.dtype] * float(terms)
            worst = max(worst, sum_error(value, right, slack, case.dtype))
    return worst, ACTIVATION_ALLOWED[case.dtype]


def _expected(case: Case, numbers: Numbers) -> tuple[list[tuple[Number, Number]], ...]:
    """dgate and dup, each with the magnitude of its terms."""
    dgates: list[tuple[Number, Number]] = []
    dups: list[tuple[Number, Number]] = []
    zero = number_type(case.dtype)(0)
    with exactly():
        for gate, factor, gate_slope, up_slope, dy in numbers.factors(case):
            value, slope, size = functions(case, gate)
            dgates.append((dy * slope * factor * gate_slope, abs(dy * factor) * size))
            dups.append((dy * value * up_slope, zero))
    return dgates, dups


def run_quantised(case: Case, framework: Framework) -> tuple[float, float]:
    """Run one case; return 0, or infinity if any bit differs, and 0, the limit."""
    numbers = Numbers.of(case)
    wide = dataclasses.replace(case, dtype=statistics_dtype(case.dtype))
    y = membound.gated_activation(
        *_arrays(wide, framework, numbers.gate, numbers.up), **case.options
    )
    inputs = _arrays(case, framework, numbers.gate, numbers.up)
    changed = (inputs[::-1], {})
    op = "gated_activation_quant"
    results = quantised_norms.call(case, framework, op, inputs, case.options, changed)
    return quantised_norms.error_of(case, framework, results, y)
