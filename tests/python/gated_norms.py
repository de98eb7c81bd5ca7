# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A reference of rms_norm_gated in a wider dtype, and one call of it, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import reference
from arrays import LAYOUTS, Framework
from cases import ROUNDINGS, WEIGHTS, layouts_like, make_weight
from reference import NUMPY_DTYPES, wide

import membound
from membound._ulps import GATED_ALLOWED, sum_slack

# Around a vector, a warp, a block and the switches between kernels; fewer than for rms_norm.
WIDTHS = (1, 7, 33, 64, 256, 1000, 4097)
ORDERS = (True, False)  # norm_before_gate

# The output: new, given, or an input.
FORMS = {"returned": None, "given": "new", "over x": "x", "over z": "z"}

# Error bound of the float32 value that the modules round, including the gate's part.
_SLACK = 2.0**-20


def gates(z: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """silu(z), its derivative, and the magnitude of the derivative's terms."""
    values = wide(z, dtype)
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-values))
    with np.errstate(invalid="ignore"):
        return values * s, s * (1 + values * (1 - s)), s * (1 + np.abs(values) * (1 - s))


def rounds(dtype: str, rounding: str) -> bool:
    return rounding == "before_weight" and dtype in ("float16", "bfloat16")


def rms_norm_gated(
    x: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    *,
    norm_before_gate: bool = True,
    rounding: str = "once",
    **options: Any,
) -> reference.Expected:
    gate = gates(z, dtype)[0]
    row = x if norm_before_gate else wide(x, dtype) * gate
    found = reference.rms_norm(row, weight, dtype, rounding=rounding, slack=_SLACK, **options)
    found.allowed = GATED_ALLOWED
    if norm_before_gate:
        products = found.candidates
        if rounds(dtype, rounding):
            every = (reference.roundings(one, dtype, _SLACK) for one in products)
            products = [rounded for pair in every for rounded in pair]
        with np.errstate(all="ignore"):
            found.candidates = [one * gate for one in products]
    return found


def statistics_of(
    x: np.ndarray, z: np.ndarray, dtype: str, *, norm_before_gate: bool = True, eps: float = 1e-6
) -> np.ndarray:
    """The rstd that a forward would return, rounded to its dtype."""
    found = rms_norm_gated(x, z, None, dtype, norm_before_gate=norm_before_gate, eps=eps)
    return np.asarray(found.rstd, reference.statistics_dtype(dtype))


def rms_norm_gated_backward(
    dy: np.ndarray,
    x: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray | None,
    rstd: np.ndarray,
    dtype: str,
    *,
    norm_before_gate: bool = True,
    **options: Any,
) -> tuple[reference.ExpectedSum, reference.ExpectedSum, reference.ExpectedSum | None]:
    """dx, dz and dweight from the formula, with the rstd that the op is given."""
    formula = _after if norm_before_gate else _before
    with np.errstate(all="ignore"):
        found = formula(dy, x, z, weight, rstd, dtype, **options)
    for one in found:
        if one is not None:
            one.allowed = GATED_ALLOWED
    return found


def _after(dy, x, z, weight, rstd, dtype, *, weight_offset=0.0, rounding="once"):
    """The gate after the norm."""
    silu, slope, size = gates(z, dtype)
    numbers = {"weight_offset": weight_offset, "rounding": rounding}
    of_norm = wide(dy, dtype) * silu
    dx, dweight = reference.rms_norm_backward(of_norm, x, weight, rstd, dtype, **numbers)
    if rounds(dtype, rounding):  # in float32, as the forward did
        kind = NUMPY_DTYPES[dtype]
        out = (x.astype(np.float32) * rstd[..., None]).astype(kind)
        if weight is not None:
            factor = weight.astype(np.float32) + np.float32(weight_offset)
            out = (out.astype(np.float32) * factor).astype(kind)
        out = out.astype(np.float64)
    else:
        out = wide(x, dtype) * wide(rstd, dtype)[..., None]
        if weight is not None:
            out = out * (wide(weight, dtype) + out.dtype.type(weight_offset))
    product = wide(dy, dtype) * out
    dz = reference.ExpectedSum(product * slope, np.abs(product) * size, dtype, dtype)
    return dx, dz, dweight


def _before(dy, x, z, weight, rstd, dtype, *, rounding="once", **numbers):
    """The gate before the norm."""
    silu, slope, size = gates(z, dtype)
    row = wide(x, dtype) * silu
    du, dweight = reference.rms_norm_backward(
        dy, row, weight, rstd, dtype, rounding=rounding, **numbers
    )
    if weight is not None and rounds(dtype, rounding):
        # The last bits of the float32 row are unknown, so some elements may round the other way.
        low, high = reference.roundings(row * rstd[..., None], dtype, _SLACK)
        apart = wide(dy, dtype) * (high - low)
        dweight.terms += reference.sum_of_rows(apart, weight, dtype).terms / sum_slack(dtype)
    dx = reference.ExpectedSum(du.values * silu, du.terms * np.abs(silu), dtype, dtype)
    dz = wide(x, dtype) * slope * du.values, np.abs(wide(x, dtype)) * size * du.terms
    return dx, reference.ExpectedSum(*dz, dtype, dtype), dweight


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
    wanted = rms_norm_gated(*before.values(), weight_values, case.dtype, **options)
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
