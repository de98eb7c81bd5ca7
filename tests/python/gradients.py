# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of a norm's backward, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import gated_norms
import numpy as np
import pytest
import reference
from arrays import LAYOUTS, Framework
from cases import layouts_like, make_weight
from reference import NUMPY_DTYPES

import membound
from membound.oracle import Expected, norms

# Gradients do not stage NumPy arrays through a GPU.
ON_GPU = tuple(name for name in arrays.ON_GPU if name != "numpy-cuda")
FRAMEWORKS = [*arrays.ON_CPU, *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU)]

DX_FORMS = ("returned", "given", "over dy", "over x", "none")
DWEIGHT_FORMS = ("returned", "given", "accumulated", "none")


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    added: bool = False  # add_rms_norm_backward, add_layer_norm_backward
    centred: bool = False  # layer_norm_backward, add_layer_norm_backward
    gated: bool = False  # rms_norm_gated_backward
    norm_before_gate: bool = True
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    weight: str = "same"
    weight_offset: float = 0.0
    rounding: str = "once"
    dx: str = "returned"
    dz: str = "returned"
    dweight: str = "returned"
    dbias: str = "returned"
    dweight_dtype: str = "float32"  # of one that is given; of a dbias too
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.op}, {self.rows} x {self.cols} {self.dtype}, {self.layout} {self.layouts}, "
            f"weight {self.weight}, {self.rounding}, offset {self.weight_offset}, dx {self.dx}, "
            f"dz {self.dz}, dweight {self.dweight}, dbias {self.dbias} {self.dweight_dtype}, "
            f"norm {'before' if self.norm_before_gate else 'after'} a gate"
        )

    @property
    def op(self) -> str:
        name = "layer_norm" if self.centred else "rms_norm"
        return f"{'add_' * self.added}{name}{'_gated' * self.gated}_backward"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs with rows."""
        if self.gated:
            return ("dy", "x", "z")
        return ("dy", "dresidual_out", "x") if self.added else ("dy", "x")

    @property
    def of_rows(self) -> dict[str, str]:
        """The gradients with all rows, and how each is requested."""
        return {"dx": self.dx, "dz": self.dz} if self.gated else {"dx": self.dx}

    def layout_of(self, name: str) -> arrays.Layout:
        return LAYOUTS[self.layouts.get(name, self.layout)]

    def place(self, name: str, fill: Any) -> arrays.Placed:
        return arrays.place(self.one, self.layout_of(name), fill, self.dtype, self.rows, self.cols)


def dx_forms(one: Framework, added: bool = False, gated: bool = False) -> tuple[str, ...]:
    if not one.takes_out:
        return ("returned", "none")
    if gated:
        return (*DX_FORMS, "over z")
    return (*DX_FORMS, "over dresidual_out") if added else DX_FORMS


def dweight_forms(one: Framework) -> tuple[str, ...]:
    return DWEIGHT_FORMS if one.takes_out else ("returned", "none")


def vary(case: Case) -> None:
    """Draw what the caller has not fixed: layouts, roundings and the outputs of gradients."""
    one, rng = case.one, case.rng

    def draw(names: Any) -> str:
        return str(rng.choice(list(names)))

    for name in ("x", "dresidual_out", "z", "dx", "dz"):
        case.layouts[name] = draw(layouts_like(case.layout, one, writable=name in ("dx", "dz")))
    case.rounding = "once" if case.centred else draw(("once", "before_weight"))
    case.weight_offset = float(rng.choice((0.0, 1.0)))
    case.norm_before_gate = bool(rng.integers(2)) if case.gated else True
    able = [
        form
        for form in dx_forms(one, case.added, case.gated)
        if "over" not in form or case.layout_of(form.removeprefix("over ")).writable
    ]
    case.dx = draw(able)
    case.dz = draw(form for form in able if form != case.dx or "over" not in form)
    case.dweight, case.dbias = (draw(dweight_forms(one)) for _ in range(2))
    case.dweight_dtype = draw(one.dtypes)


def statistics_of(x: np.ndarray, dtype: str, eps: float = 1e-6) -> np.ndarray:
    """The rstd that a forward would return, rounded to its dtype."""
    return norms.statistics(norms.rms_norm(x, None, dtype, eps=eps))[1]


def centred_statistics_of(
    x: np.ndarray, dtype: str, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and rstd of layer_norm."""
    return norms.statistics(norms.layer_norm(x, None, None, dtype, eps=eps))


def _given(case: Case, placed: dict[str, arrays.Placed]) -> dict[str, arrays.Placed]:
    """The output arrays of gradients with rows, by name."""
    found = {}
    for name, form in case.of_rows.items():
        if form == "given":
            found[name] = case.place(name, lambda shape: np.full(shape, np.nan))
        elif "over" in form:
            found[name] = placed[form.removeprefix("over ")]
    return found


def _sum_forms(case: Case, weighted: bool) -> dict[str, str]:
    """How each sum over rows is requested; if one accumulates, all do."""
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
) -> tuple[list[np.ndarray], dict[str, Expected | None]]:
    """The statistics that the op is given, and the gradients that it must return."""
    x, dy = values["x"], values["dy"]
    options: dict[str, Any] = {"weight_offset": offset}
    options["dresidual_out"] = values.get("dresidual_out")
    if case.centred:
        statistics = list(centred_statistics_of(x, case.dtype))
        wanted = norms.layer_norm_backward(dy, x, weight, *statistics, case.dtype, **options)
        return statistics, dict(zip(("dx", "dweight", "dbias"), wanted, strict=True))
    options["rounding"] = case.rounding
    if case.gated:
        del options["dresidual_out"]
        order = {"norm_before_gate": case.norm_before_gate}
        statistics = [gated_norms.statistics_of(x, values["z"], case.dtype, **order)]
        wanted = norms.rms_norm_gated_backward(
            dy, x, values["z"], weight, *statistics, case.dtype, **order, **options
        )
        return statistics, dict(zip(("dx", "dz", "dweight"), wanted, strict=True))
    statistics = [statistics_of(x, case.dtype)]
    wanted = norms.rms_norm_backward(dy, x, weight, *statistics, case.dtype, **options)
    return statistics, dict(zip(("dx", "dweight"), wanted, strict=True))


def check(case: Case) -> None:
    """Run one case; check values, shapes, dtypes, aliasing, gaps, and that inputs are unchanged."""
    one, rng = case.one, case.rng
    placed = {name: case.place(name, rng.standard_normal) for name in case.inputs}
    weight, weight_values = make_weight(case)
    offset = case.weight_offset if weight is not None else 0.0
    before = {name: np.array(array.values) for name, array in placed.items()}
    statistics, wanted = _expect(case, before, weight_values, offset)
    options: dict[str, Any] = {"weight_offset": offset}
    if not case.centred:
        options["rounding"] = case.rounding
    if case.gated:
        options["norm_before_gate"] = case.norm_before_gate

    given = _given(case, placed)
    options |= {name: array.array for name, array in given.items()}
    options |= {f"need_{name}": form != "none" for name, form in case.of_rows.items()}
    forms = _sum_forms(case, weight is not None)
    for name, form in forms.items():
        options[f"need_{name}"] = form != "none"
        if form in ("given", "accumulated"):
            _give(case, name, form, options, wanted[name])
    inputs = [array.array for array in placed.values()]
    found = getattr(membound, case.op)(*inputs, weight, *map(one.array, statistics), **options)
    got = dict(zip(wanted, found, strict=True))

    for name, form in case.of_rows.items():
        if form == "none":
            assert got[name] is None, case
        else:
            reference.assert_within(one.numpy(got[name]), wanted[name], f"{name} of {case}")
        if name in given:
            assert got[name] is given[name].array, case
            layout = case.layout_of(form.removeprefix("over ") if "over" in form else name)
            assert arrays.gaps_are_untouched(one, layout, given[name], case.rows, case.cols), case
    for name, form in forms.items():
        if form == "none" or wanted[name] is None:
            assert got[name] is None, case
        else:
            assert form == "returned" or got[name] is options[name], case
            reference.assert_within(one.numpy(got[name]), wanted[name], f"{name} of {case}")
    for name, array in placed.items():
        if not any(array is written for written in given.values()):
            np.testing.assert_array_equal(one.numpy(array.array), before[name], err_msg=str(case))


def _give(case: Case, name: str, form: str, options: dict[str, Any], wanted: Expected) -> None:
    """An array that a sum is written to, or added to."""
    kind = NUMPY_DTYPES[case.dweight_dtype]
    start = (10 * case.rng.standard_normal(case.cols)).astype(kind)
    options[name] = case.one.array(start)
    wanted.dtype = case.dweight_dtype
    if form == "accumulated":
        options["accumulate"] = True
        wanted.add(start)
