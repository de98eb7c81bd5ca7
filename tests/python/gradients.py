# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of a norm's backward, checked in every respect."""

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
    added: bool = False  # add_rms_norm_backward, add_layer_norm_backward
    centred: bool = False  # layer_norm_backward, add_layer_norm_backward
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    weight: str = "same"
    weight_offset: float = 0.0
    rounding: str = "once"
    dx: str = "returned"
    dweight: str = "returned"
    dbias: str = "returned"
    dweight_dtype: str = "float32"  # of one that is given; of a dbias too
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.op}, {self.rows} x {self.cols} {self.dtype}, {self.layout} {self.layouts}, "
            f"weight {self.weight}, {self.rounding}, offset {self.weight_offset}, dx {self.dx}, "
            f"dweight {self.dweight}, dbias {self.dbias} {self.dweight_dtype}"
        )

    @property
    def op(self) -> str:
        name = "layer_norm" if self.centred else "rms_norm"
        return f"{'add_' * self.added}{name}_backward"

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
    case.rounding = "once" if case.centred else draw(("once", "before_weight"))
    case.weight_offset = float(rng.choice((0.0, 1.0)))
    written = {"over dy": "dy", "over x": "x", "over dresidual_out": "dresidual_out"}
    case.dx = draw(
        form
        for form in dx_forms(one, case.added)
        if form not in written or case.layout_of(written[form]).writable
    )
    case.dweight, case.dbias = (draw(dweight_forms(one)) for _ in range(2))
    case.dweight_dtype = draw(one.dtypes)


def statistics_of(x: np.ndarray, dtype: str, eps: float = 1e-6) -> np.ndarray:
    """The rstd that a forward would have given, rounded to its dtype."""
    rstd = reference.rms_norm(x, None, dtype, eps=eps).rstd
    return np.asarray(rstd, reference.statistics_dtype(dtype))


def centred_statistics_of(
    x: np.ndarray, dtype: str, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and rstd of layer_norm."""
    found = reference.layer_norm(x, None, None, dtype, eps=eps)
    kind = reference.statistics_dtype(dtype)
    return np.asarray(found.mean.values, kind), np.asarray(found.rstd, kind)


def _given_dx(case: Case, placed: dict[str, arrays.Placed]) -> arrays.Placed | None:
    if case.dx in ("returned", "none"):
        return None
    if case.dx == "given":
        return case.place("dx", lambda shape: np.full(shape, np.nan))
    return placed[case.dx.removeprefix("over ")]


def _sum_forms(case: Case, weighted: bool) -> dict[str, str]:
    """How each sum over rows is asked for; where one is added to, every other is too."""
    forms = {"dweight": case.dweight if weighted or case.dweight == "none" else "returned"}
    if case.centred:
        forms["dbias"] = case.dbias
    if "accumulated" in forms.values():
        able = {"dweight": weighted, "dbias": True}
        forms = {
            name: "accumulated" if able[name] and form != "none" else form
            for name, form in forms.items()
        }
    return forms


def _expect(
    case: Case, values: dict[str, np.ndarray], weight: np.ndarray | None, offset: float
) -> tuple[list[np.ndarray], dict[str, reference.ExpectedSum | None]]:
    """The statistics that the op is given, and the gradients that it must give."""
    x, dy = values["x"], values["dy"]
    options: dict[str, Any] = {"weight_offset": offset}
    options["dresidual_out"] = values.get("dresidual_out")
    if case.centred:
        statistics = list(centred_statistics_of(x, case.dtype))
        wanted = reference.layer_norm_backward(dy, x, weight, *statistics, case.dtype, **options)
        return statistics, dict(zip(("dx", "dweight", "dbias"), wanted, strict=True))
    statistics = [statistics_of(x, case.dtype)]
    options["rounding"] = case.rounding
    wanted = reference.rms_norm_backward(dy, x, weight, *statistics, case.dtype, **options)
    return statistics, dict(zip(("dx", "dweight"), wanted, strict=True))


def check(case: Case) -> None:
    """Runs one case: values, shapes, dtypes, aliasing, gaps, and the inputs left alone."""
    one, rng = case.one, case.rng
    names = ("dy", "dresidual_out", "x") if case.added else ("dy", "x")
    placed = {name: case.place(name, rng.standard_normal) for name in names}
    weight, weight_values = make_weight(case)
    offset = case.weight_offset if weight is not None else 0.0
    before = {name: np.array(array.values) for name, array in placed.items()}
    statistics, wanted = _expect(case, before, weight_values, offset)
    options: dict[str, Any] = {"weight_offset": offset, "need_dx": case.dx != "none"}
    if not case.centred:
        options["rounding"] = case.rounding

    given_dx = _given_dx(case, placed)
    if given_dx is not None:
        options["dx"] = given_dx.array
    forms = _sum_forms(case, weight is not None)
    for name, form in forms.items():
        options[f"need_{name}"] = form != "none"
        if form in ("given", "accumulated"):
            _give(case, name, form, options, wanted[name])
    inputs = [placed[name].array for name in names]
    found = getattr(membound, case.op)(*inputs, weight, *map(one.array, statistics), **options)
    got = dict(zip(wanted, found, strict=True))

    if case.dx == "none":
        assert got["dx"] is None, case
    else:
        reference.assert_sum_right(one.numpy(got["dx"]), wanted["dx"], f"dx of {case}")
    if given_dx is not None:
        assert got["dx"] is given_dx.array, case
        layout = case.layout_of(case.dx.removeprefix("over ") if "over" in case.dx else "dx")
        assert arrays.gaps_are_untouched(one, layout, given_dx, case.rows, case.cols), case
    for name, form in forms.items():
        if form == "none" or wanted[name] is None:
            assert got[name] is None, case
        else:
            assert form == "returned" or got[name] is options[name], case
            reference.assert_sum_right(one.numpy(got[name]), wanted[name], f"{name} of {case}")
    for name, array in placed.items():
        if array is not given_dx:
            np.testing.assert_array_equal(one.numpy(array.array), before[name], err_msg=str(case))


def _give(
    case: Case, name: str, form: str, options: dict[str, Any], wanted: reference.ExpectedSum
) -> None:
    """An array to write a sum to, or to add it to."""
    kind = NUMPY_DTYPES[case.dweight_dtype]
    start = (10 * case.rng.standard_normal(case.cols)).astype(kind)
    options[name] = case.one.array(start)
    wanted.dtype = case.dweight_dtype
    if form == "accumulated":
        options["accumulate"] = True
        wanted.values = wanted.values + start
        wanted.terms = wanted.terms + np.abs(start.astype(np.float64))
