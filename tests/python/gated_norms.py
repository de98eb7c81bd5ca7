# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of rms_norm_gated, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import reference
from arrays import LAYOUTS, Framework
from cases import ROUNDINGS, WEIGHTS, layouts_like, make_weight

import membound
from membound.oracle import norms

# Around a vector, a warp, a block and the switches between kernels; fewer than for rms_norm.
WIDTHS = (1, 7, 33, 64, 256, 1000, 4097)
ORDERS = (True, False)  # norm_before_gate

# The output: new, given, or an input.
FORMS = {"returned": None, "given": "new", "over x": "x", "over z": "z"}


def statistics_of(
    x: np.ndarray, z: np.ndarray, dtype: str, *, norm_before_gate: bool = True, eps: float = 1e-6
) -> np.ndarray:
    """The rstd that a forward would return, rounded to its dtype."""
    found = norms.rms_norm_gated(x, z, None, dtype, norm_before_gate=norm_before_gate, eps=eps)
    return norms.statistics(found)[1]


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    weight: str = "same"
    norm_before_gate: bool = True
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    form: str = "returned"
    return_rstd: bool = True
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout} {self.layouts}, weight "
            f"{self.weight}, {self.rounding}, offset {self.weight_offset}, {self.form}, norm "
            f"{'before' if self.norm_before_gate else 'after'} the gate"
        )

    def layout_of(self, name: str) -> arrays.Layout:
        return LAYOUTS[self.layouts.get(name, self.layout)]

    def place(self, name: str, fill: Any) -> arrays.Placed:
        return arrays.place(self.one, self.layout_of(name), fill, self.dtype, self.rows, self.cols)


def forms_of(case: Case) -> list[str]:
    """The forms whose outputs are writable."""
    if not case.one.takes_out:
        return ["returned"]
    able = {name: case.layout_of(name).writable for name in ("x", "z")}
    return [name for name, place in FORMS.items() if able.get(place, True)]


def vary(case: Case) -> None:
    """Draw what the caller has not fixed: layouts, the weight, and the output."""
    one, rng = case.one, case.rng
    for name in ("z", "out"):
        case.layouts[name] = str(rng.choice(layouts_like(case.layout, one, writable=name == "out")))
    case.weight, case.rounding = str(rng.choice(WEIGHTS)), str(rng.choice(ROUNDINGS))
    case.norm_before_gate = bool(rng.integers(2))
    case.weight_offset = float(rng.choice((0.0, 1.0)))
    case.form = str(rng.choice(forms_of(case)))
    case.return_rstd = bool(rng.integers(2))


def call(one: Framework, *inputs: Any, **options: Any) -> Any:
    return membound.rms_norm_gated(*inputs, **one.options, **options)


def check(case: Case) -> None:
    """Run one case; check values, shapes, dtypes, aliasing, gaps, and that inputs are unchanged."""
    one = case.one
    placed = {name: case.place(name, case.rng.standard_normal) for name in ("x", "z")}
    before = {name: np.array(array.values) for name, array in placed.items()}
    weight, weight_values = make_weight(case)
    options: dict[str, Any] = {"eps": case.eps, "rounding": case.rounding}
    options["weight_offset"] = case.weight_offset if weight is not None else 0.0
    options["norm_before_gate"] = case.norm_before_gate
    wanted = norms.rms_norm_gated(*before.values(), weight_values, case.dtype, **options)
    where, given = FORMS[case.form], None
    if where is not None:
        nothing = lambda shape: np.full(shape, np.nan)  # noqa: E731
        given = case.place("out", nothing) if where == "new" else placed[where]
        options["out"] = given.array
    inputs = (placed["x"].array, placed["z"].array, weight)
    found = call(one, *inputs, return_rstd=case.return_rstd, **options)
    y, rstd = found if case.return_rstd else (found, None)
    if given is not None:
        assert y is given.array, case
        layout = case.layout_of("out" if where == "new" else where)
        assert arrays.gaps_are_untouched(one, layout, given, case.rows, case.cols), case
    reference.assert_right(one.numpy(y), wanted, None if rstd is None else one.numpy(rstd), case)
    for name, array in placed.items():
        if array is not given:
            np.testing.assert_array_equal(one.numpy(array.array), before[name], str(case))
