# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of rms_norm_backward or add_rms_norm_backward, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import pytest
import reference
from arrays import LAYOUTS, Framework
from cases import layouts_like, make_weight
from reference import NUMPY_DTYPES

import membound

# NumPy arrays are not carried through a GPU for gradients.
ON_GPU = tuple(name for name in arrays.ON_GPU if name != "numpy-cuda")
FRAMEWORKS = [*arrays.ON_CPU, *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU)]

DX_FORMS = ("returned", "given", "over dy", "over x", "none")
DWEIGHT_FORMS = ("returned", "given", "accumulated", "none")


@dataclass
class Case:
    """One call; what is not given takes the plainest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    added: bool = False  # add_rms_norm_backward
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    weight: str = "same"
    weight_offset: float = 0.0
    rounding: str = "once"
    dx: str = "returned"
    dweight: str = "returned"
    dweight_dtype: str = "float32"  # of one that is given
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout} {self.layouts}, weight "
            f"{self.weight}, {self.rounding}, offset {self.weight_offset}, dx {self.dx}, dweight "
            f"{self.dweight} {self.dweight_dtype}"
        )

    def layout_of(self, name: str) -> arrays.Layout:
        return LAYOUTS[self.layouts.get(name, self.layout)]

    def place(self, name: str, fill: Any) -> arrays.Placed:
        return arrays.place(self.one, self.layout_of(name), fill, self.dtype, self.rows, self.cols)


def dx_forms(one: Framework, added: bool) -> tuple[str, ...]:
    if not one.takes_out:
        return ("returned", "none")
    return (*DX_FORMS, "over dresidual_out") if added else DX_FORMS


def dweight_forms(one: Framework) -> tuple[str, ...]:
    return DWEIGHT_FORMS if one.takes_out else ("returned", "none")


def vary(case: Case) -> None:
    """Draws what the caller has not fixed: layouts, roundings and where the gradients go."""
    one, rng = case.one, case.rng

    def draw(names: Any) -> str:
        return str(rng.choice(list(names)))

    for name in ("x", "dresidual_out", "dx"):
        case.layouts[name] = draw(layouts_like(case.layout, one, writable=name == "dx"))
    case.rounding = draw(("once", "before_weight"))
    case.weight_offset = float(rng.choice((0.0, 1.0)))
    written = {"over dy": "dy", "over x": "x", "over dresidual_out": "dresidual_out"}
    case.dx = draw(
        form
        for form in dx_forms(one, case.added)
        if form not in written or case.layout_of(written[form]).writable
    )
    case.dweight = draw(dweight_forms(one))
    case.dweight_dtype = draw(one.dtypes)


def statistics_of(x: np.ndarray, dtype: str, eps: float = 1e-6) -> np.ndarray:
    """The rstd that a forward would have given, rounded to its dtype."""
    rstd = reference.rms_norm(x, None, dtype, eps=eps).rstd
    return np.asarray(rstd, reference.statistics_dtype(dtype))


def _given_dx(case: Case, placed: dict[str, arrays.Placed]) -> arrays.Placed | None:
    if case.dx in ("returned", "none"):
        return None
    if case.dx == "given":
        return case.place("dx", lambda shape: np.full(shape, np.nan))
    return placed[case.dx.removeprefix("over ")]


def check(case: Case) -> None:
    """Runs one case: values, shapes, dtypes, aliasing, gaps, and the inputs left alone."""
    one, rng = case.one, case.rng
    names = ("dy", "dresidual_out", "x") if case.added else ("dy", "x")
    placed = {name: case.place(name, rng.standard_normal) for name in names}
    weight, weight_values = make_weight(case)
    offset = case.weight_offset if weight is not None else 0.0
    x = placed["x"].values
    rstd = statistics_of(x, case.dtype)
    options = {"weight_offset": offset, "rounding": case.rounding}
    dsum = placed["dresidual_out"].values if case.added else None
    wanted_dx, wanted_dweight = reference.rms_norm_backward(
        placed["dy"].values, x, weight_values, rstd, case.dtype, dresidual_out=dsum, **options
    )
    before = {name: np.array(array.values) for name, array in placed.items()}

    given_dx = _given_dx(case, placed)
    if given_dx is not None:
        options["dx"] = given_dx.array
    form = "returned" if weight is None and case.dweight != "none" else case.dweight
    if form in ("given", "accumulated"):
        kind = NUMPY_DTYPES[case.dweight_dtype]
        start = (10 * rng.standard_normal(case.cols)).astype(kind)
        options["dweight"] = one.array(start)
        wanted_dweight.dtype = case.dweight_dtype
        if form == "accumulated":
            options["accumulate"] = True
            wanted_dweight.values = wanted_dweight.values + start
            wanted_dweight.terms = wanted_dweight.terms + np.abs(start.astype(np.float64))
    options |= {"need_dx": case.dx != "none", "need_dweight": case.dweight != "none"}
    function = membound.add_rms_norm_backward if case.added else membound.rms_norm_backward
    inputs = [placed[name].array for name in names]
    dx, dweight = function(*inputs, weight, one.array(rstd), **options)

    if case.dx == "none":
        assert dx is None, case
    else:
        reference.assert_gradient_right(one.numpy(dx), wanted_dx, f"dx of {case}")
    if given_dx is not None:
        assert dx is given_dx.array, case
        layout = case.layout_of(case.dx.removeprefix("over ") if "over" in case.dx else "dx")
        assert arrays.gaps_are_untouched(one, layout, given_dx, case.rows, case.cols), case
    if case.dweight == "none" or weight is None:
        assert dweight is None, case
    else:
        assert form == "returned" or dweight is options["dweight"], case
        reference.assert_gradient_right(one.numpy(dweight), wanted_dweight, f"dweight of {case}")
    for name, array in placed.items():
        if array is not given_dx:
            np.testing.assert_array_equal(one.numpy(array.array), before[name], err_msg=str(case))
