# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of layer_norm or add_layer_norm, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import reference
from arrays import LAYOUTS, Framework
from cases import WEIGHTS, layouts_like, make_bias, make_weight

import membound
from membound.oracle import norms

# Around a vector, a warp, a block and the thresholds between kernels; fewer than for rms_norm, as
# the kernels have the same tiles.
WIDTHS = (1, 2, 7, 33, 64, 127, 256, 1000, 4097, 8192)
BIASES = ("none", "same", "float32", "strided")

# The outputs of (out, residual_out).
FORMS = {"returned": (None,), "given": ("new",), "in place": ("x",)}
ADDED_FORMS = {
    "returned": (None, None),
    "given": ("new", "new"),
    "in place": ("x", "residual"),
    "crossed": ("residual", "x"),
    "sum in place": (None, "residual"),
}


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    added: bool = False  # add_layer_norm
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    weight: str = "same"
    bias: str = "same"
    weight_offset: float = 0.0
    eps: float = 1e-6
    form: str = "returned"
    return_stats: bool = True
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype}, {self.layout} {self.layouts}, weight "
            f"{self.weight}, bias {self.bias}, offset {self.weight_offset}, {self.form}"
        )

    def layout_of(self, name: str) -> arrays.Layout:
        return LAYOUTS[self.layouts.get(name, self.layout)]

    def place(self, name: str, fill: Any) -> arrays.Placed:
        return arrays.place(self.one, self.layout_of(name), fill, self.dtype, self.rows, self.cols)

    @property
    def outputs(self) -> dict[str, str | None]:
        """Each output: an input, a given array, or one that the op allocates."""
        forms = ADDED_FORMS if self.added else FORMS
        return dict(zip(("out", "residual_out"), forms[self.form], strict=False))


def forms_of(case: Case) -> list[str]:
    """The forms whose outputs are writable."""
    if not case.one.takes_out:
        return ["returned"]
    able = {name: case.layout_of(name).writable for name in ("x", "residual")}
    forms = ADDED_FORMS if case.added else FORMS
    return [name for name, places in forms.items() if all(able.get(p, True) for p in places)]


def vary(case: Case) -> None:
    """Draw what the caller has not fixed: layouts, parameters, and outputs."""
    one, rng = case.one, case.rng

    def draw(names: Any) -> str:
        return str(rng.choice(list(names)))

    for name in ("residual", "out", "residual_out"):
        case.layouts[name] = draw(layouts_like(case.layout, one, writable=name != "residual"))
    case.weight, case.bias = draw(WEIGHTS), draw(BIASES)
    case.weight_offset = float(rng.choice((0.0, 1.0)))
    case.form = draw(forms_of(case))
    case.return_stats = bool(rng.integers(2))


def check(case: Case) -> None:
    """Run one case; check values, shapes, dtypes, aliasing, gaps, and that inputs are unchanged."""
    one = case.one
    inputs = ("x", "residual") if case.added else ("x",)
    placed = {name: case.place(name, case.rng.standard_normal) for name in inputs}
    weight, weight_values = make_weight(case)
    bias, bias_values = make_bias(case)
    offset = case.weight_offset if weight is not None else 0.0
    options: dict[str, Any] = {"eps": case.eps, "weight_offset": offset}
    values = [np.array(placed[name].values) for name in inputs]
    formula = norms.add_layer_norm if case.added else norms.layer_norm
    wanted = formula(*values, weight_values, bias_values, case.dtype, **options)
    wanted, total = wanted if case.added else (wanted, None)

    given = {}
    for name, where in case.outputs.items():
        if where == "new":
            given[name] = (case.place(name, lambda shape: np.full(shape, np.nan)), name)
        elif where is not None:
            given[name] = (placed[where], where)
    options |= {name: array.array for name, (array, _) in given.items()}
    function = membound.add_layer_norm if case.added else membound.layer_norm
    arguments = [placed[name].array for name in inputs]
    found = function(
        *arguments, weight, bias, return_stats=case.return_stats, **options, **one.options
    )
    results = list(found) if isinstance(found, tuple) else [found]
    assert len(results) == 1 + case.added + 2 * case.return_stats, case

    for name, got in zip(case.outputs, results, strict=False):
        if name in given:
            array, layout = given[name]
            assert got is array.array, case
            layout = case.layout_of(layout)
            assert arrays.gaps_are_untouched(one, layout, array, case.rows, case.cols), case
    results = [one.numpy(result) for result in results]
    statistics = tuple(results[-2:]) if case.return_stats else None
    reference.assert_centred_right(results[0], wanted, statistics, case)
    if case.added:  # one rounding: its bits are known
        assert results[1].dtype == total.dtype, case
        np.testing.assert_array_equal(results[1], total, err_msg=str(case))
    written = [array for array, _ in given.values()]
    for name, before in zip(inputs, values, strict=True):
        if not any(placed[name] is one_written for one_written in written):
            np.testing.assert_array_equal(one.numpy(placed[name].array), before, str(case))
