# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the checks of gated activations share: cases, and the functions in exact arithmetic."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from membound import _check_norm as norm
from membound._check_norm import LAYOUTS, Number
from membound._frameworks import Framework

KINDS = ("silu", "gelu", "gelu_tanh", "sigmoid", "relu2", "relu", "situ")
WIDTHS = (1, 7, 33, 64, 257, 1000)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


@dataclass(frozen=True)
class Case(norm.Case):
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


def cases(
    framework: Framework, dtype: str, thorough: bool, forms: tuple[str, ...]
) -> Iterator[Case]:
    """forms: the first returns a new array."""
    forms = forms if framework.takes_out else forms[:1]
    return all_cases(
        framework, dtype, thorough, forms[1:] if framework.name == "memoryview" else forms
    )


def all_cases(
    framework: Framework, dtype: str, thorough: bool, forms: Sequence[str]
) -> Iterator[Case]:
    """Cross kinds with layouts and cycle or draw the rest; thorough: the whole product."""
    if framework.call_options:  # these ops take no device
        return
    layouts = [name for name, layout in LAYOUTS.items() if framework.strided or layout.contiguous]
    source = random.Random(20251121)
    widths = itertools.cycle(width for width in WIDTHS if width <= max(norm.WIDTHS))
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
    number = norm.number_type(case.dtype)
    zero, one = number(0), number(1)
    if case.kind == "relu2":
        positive = max(gate, zero)
        return positive * positive, 2 * positive, 2 * positive
    if case.kind == "relu":
        slope = one if gate > zero else zero
        return max(gate, zero), slope, slope
    if case.kind == "situ":
        capped, steep = soft_cap(gate, number(case.options.get("alpha", 4.0)))
        s, rest = norm.sigmoid(gate), norm.sigmoid(-gate)
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
    s, rest = norm.sigmoid(z), norm.sigmoid(-z)
    if case.kind == "sigmoid":
        slope = s * rest * number(case.options.get("alpha", 1.0))
        return s, slope, slope
    return gate * s, s * (1 + steep * rest), s * (1 + abs(steep) * rest)


def soft_cap(x: Number, cap: Number) -> tuple[Number, Number]:
    """cap * tanh(x / cap), and its slope: tanh is 1 - 2 s, with s the logistic function."""
    s = norm.sigmoid(-2 * abs(x) / cap)
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
        return cls(*(norm.draw(case, name, "normal") for name in ("gate", "up", "dy")))

    def factors(self, case: Case) -> Iterator[Factor]:
        """One Factor per element, after clamping."""
        number = norm.number_type(case.dtype)
        limit, offset = (1.0, number(1.0)) if case.limited else (math.inf, number(0.0))
        for gate, up, dy in zip(self.gate, self.up, self.dy, strict=True):
            if case.kind == "situ":
                capped, slope = soft_cap(number(up), number(min(limit, 25.0)))
                yield Factor(number(gate), capped, number(1), slope, number(dy))
            else:
                held = number(min(max(up, -limit), limit)) + offset
                passes = number(gate <= limit), number(abs(up) <= limit)
                yield Factor(number(min(gate, limit)), held, *passes, number(dy))
