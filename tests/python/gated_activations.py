# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One call of gated_activation, checked in every respect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
import reference
from arrays import LAYOUTS, Framework
from cases import layouts_like
from reference import NUMPY_DTYPES

import membound
from membound.oracle import statistics_dtype
from membound.oracle.activations import gated_activation

# Around a CPU vector, a 16-byte vector, the lanes of a row and a tile.
WIDTHS = (1, 3, 8, 31, 64, 129, 520, 1000, 4097)
FORMS = ("returned", "given", "over gate", "over up")
PACKINGS = ("apart", "halves", "interleaved", "gate")
GPT_OSS = {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    rows: int = 4
    kind: str = "silu"
    packing: str = "apart"
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)  # of the other arrays, by name
    options: dict[str, Any] = field(default_factory=dict)
    row_scale: bool = False
    form: str = "returned"  # of out
    forms: dict[str, str] = field(default_factory=dict)  # of dgate and dup
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def packed(self) -> bool:
        return self.packing in ("halves", "interleaved")

    def layout_of(self, name: str) -> arrays.Layout:
        return LAYOUTS[self.layouts.get(name, self.layout)]

    def place(self, name: str, scale: float = 1.0, width: int = 1) -> arrays.Placed:
        def fill(shape):
            return self.rng.standard_normal(shape) * scale

        return arrays.place(
            self.one, self.layout_of(name), fill, self.dtype, self.rows, self.cols * width
        )

    def keywords(self) -> dict[str, Any]:
        said = {"kind": self.kind, **self.options}
        return said if self.packing == "apart" else {**said, "packing": self.packing}


def vary(case: Case, *, backward: bool = False) -> None:
    """Draw what the caller has not fixed: layouts, options, and outputs."""
    one, rng = case.one, case.rng
    names = ("up", "out", "dy", "dgate", "dup")
    for name in names:
        writable = name in ("out", "dgate", "dup")
        case.layouts[name] = str(rng.choice(layouts_like(case.layout, one, writable=writable)))
    if rng.integers(2):
        case.options = {"limit": float(rng.choice((0.5, 2.0))), "up_offset": float(rng.integers(2))}
        if case.kind in ("silu", "sigmoid", "situ"):
            case.options["alpha"] = float(rng.choice((1.702, 0.1)))
    if case.packing == "gate":
        case.options.pop("up_offset", None)
    case.row_scale = bool(rng.integers(2))
    if not one.takes_out:
        return
    readable = [name for name in ("gate", "up") if case.layout_of(name).writable]
    if case.packing != "apart" and "up" in readable:
        readable.remove("up")
    case.form = str(rng.choice(["returned", "given", *(f"over {name}" for name in readable)]))


def split(values: Any, packing: str, cols: int) -> tuple[Any, Any]:
    if packing == "interleaved":
        return values[..., ::2], values[..., 1::2]
    return (values[..., :cols], values[..., cols:]) if packing == "halves" else (values, None)


def draw_scale(case: Case, shape: tuple[int, ...]) -> tuple[Any, np.ndarray | None]:
    if not case.row_scale:
        return None, None
    values = case.rng.uniform(0.25, 2.0, shape[:-1]).astype(statistics_dtype(case.dtype))
    return case.one.array(values), values


def check(case: Case) -> None:
    """Run a forward; check values, shapes, dtypes, aliasing, gaps and unchanged inputs."""
    one, cols = case.one, case.cols
    gate = case.place("gate", 3.0, 1 + case.packed)
    up = case.place("up") if case.packing == "apart" else None
    there, there_up = gate.array, up.array if up else None
    part, part_up = split(there, case.packing, cols) if case.packed else (there, there_up)
    values, values_up = split(np.array(gate.values), case.packing, cols)
    values_up = np.array(up.values) if up else values_up
    scale, scale_values = draw_scale(case, values.shape)
    keywords = case.keywords() | ({"row_scale": scale} if case.row_scale else {})
    out = None
    if case.form == "given":
        out = case.place("out")
        keywords["out"] = out.array
    elif case.form.startswith("over"):
        keywords["out"] = part if case.form == "over gate" else part_up
    got = membound.gated_activation(there, *([there_up] if up else []), **keywords)
    if "out" in keywords:
        assert got is keywords["out"]
    found = one.numpy(got)
    assert found.shape == values.shape
    assert found.dtype == NUMPY_DTYPES[case.dtype]
    want = gated_activation(
        values, values_up, values, case.dtype, kind=case.kind, row_scale=scale_values,
        **case.options,
    )  # fmt: skip
    reference.assert_within(found, want["out"], case)
    if out is not None:
        assert arrays.gaps_are_untouched(one, case.layout_of("out"), out, case.rows, cols), case
    if case.form in ("returned", "given"):
        np.testing.assert_array_equal(one.numpy(there), gate.values)
        if up:
            np.testing.assert_array_equal(one.numpy(there_up), up.values)


def check_backward(case: Case) -> None:
    """Run and check one backward; forms are the outputs of each gradient."""
    one, cols = case.one, case.cols
    gate = case.place("gate", 3.0, 1 + case.packed)
    up = case.place("up") if case.packing == "apart" else None
    dy = case.place("dy")
    values, values_up = split(np.array(gate.values), case.packing, cols)
    values_up = np.array(up.values) if up else values_up
    before = np.array(dy.values)
    scale, scale_values = draw_scale(case, values.shape)
    keywords = case.keywords() | ({"row_scale": scale} if case.row_scale else {})
    sources = {"dy": dy, "gate": gate, "up": up}
    for name, form in case.forms.items():
        if form == "none":
            keywords[f"need_{name}"] = False
        elif form == "given":
            width = 1 + (case.packed and name == "dgate")
            keywords[name] = case.place(name, 1.0, width).array
        elif form.startswith("over "):
            keywords[name] = sources[form.removeprefix("over ")].array
    got = membound.gated_activation_backward(
        dy.array, gate.array, *([up.array] if up else []), **keywords
    )
    want = gated_activation(
        values, values_up, before, case.dtype, kind=case.kind, row_scale=scale_values,
        **case.options,
    )  # fmt: skip
    if case.packing == "apart":
        found = dict(zip(("dgate", "dup"), got, strict=True))
    else:
        assert tuple(got.shape) == tuple(gate.array.shape)
        parts = split(one.numpy(got), case.packing, cols)
        found = dict(zip(("dgate", "dup"), parts, strict=True))
        if case.packing == "gate":
            found.pop("dup")
    for name, gradient in found.items():
        if case.forms.get(name) == "none":
            assert gradient is None
            continue
        if case.packing == "apart":
            assert keywords.get(name, gradient) is gradient
            gradient = one.numpy(gradient)
        assert gradient.dtype == NUMPY_DTYPES[case.dtype]
        reference.assert_within(gradient, want[name], (name, case))
