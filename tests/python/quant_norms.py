# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rms_norm_quant and add_rms_norm_quant against their definition, applied to the norm's result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
from arrays import FRAMEWORKS, LAYOUTS, Framework, Layout, Spot
from cases import make_weight
from reference import QUANTISED

import membound
from membound.oracle import quantised as oracle
from membound.oracle.quantised import LIMITS

# These ops do not stage NumPy arrays through a GPU.
NAMES = [name for name in FRAMEWORKS if "numpy-cuda" not in str(name)]
SCALES = ("row", 64, 128, "static")
NOTHING = 0x5A  # filler of unwritten bytes


def numbers(kind: str) -> np.ndarray:
    """Values of the codes 0 to 127 that are finite and not above the limit, in order."""
    codes = np.arange(128, dtype=np.uint8).view(QUANTISED[kind])
    values = codes.astype(np.float64)
    return values[values <= LIMITS[kind]]


def quantised(y: np.ndarray, kind: str, *scale: Any, **options: Any) -> tuple[np.ndarray, Any]:
    """The codes of the oracle's numbers, and the scales."""
    found, scales = oracle.quantised(y, kind, *scale, **options)
    return found.astype(QUANTISED[kind]), scales


def assert_same(got: np.ndarray, wanted: np.ndarray, what: Any) -> None:
    """Compare bits; any NaN equals any other."""
    assert got.dtype == wanted.dtype, what
    assert got.shape == wanted.shape, what
    same = np.ascontiguousarray(got).view(np.uint8) == np.ascontiguousarray(wanted).view(np.uint8)
    same = same.reshape(*got.shape, got.itemsize).all(-1)
    if got.dtype.kind != "i":
        same |= np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
    assert same.all(), f"{what}: {np.argwhere(~same)[:4].tolist()}"


def place_codes(one: Framework, layout: Layout, kind: str, rows: int, cols: int) -> arrays.Placed:
    """An array for results of 8 bits in a larger buffer."""
    buffer = np.full(layout.buffer_shape(Spot(rows, cols)), NOTHING, np.uint8)
    there = one.array(buffer.view(QUANTISED[kind]))
    return arrays.Placed(layout.matrix(Spot(rows, cols, there, one)), there, buffer)


def gaps_are_untouched(
    one: Framework, layout: Layout, out: arrays.Placed, rows: int, cols: int
) -> bool:
    buffer = one.numpy(out.buffer).view(np.uint8)
    gap = np.ones(buffer.shape, bool)
    layout.matrix(Spot(rows, cols, gap, arrays.NumPy()))[...] = False
    return bool((buffer[gap] == NOTHING).all())


@dataclass
class Case:
    """One call; parameters that are not given have the simplest value."""

    one: Framework
    dtype: str
    cols: int
    kind: str = "float8_e4m3fn"
    scale: Any = "row"
    bound: float | None = None
    given: float = 0.0625
    rows: int = 4
    layout: str = "contiguous"
    out_layout: str = ""  # none: a new array is returned
    weight: str = "same"
    rounding: str = "once"
    weight_offset: float = 0.0
    eps: float = 1e-6
    added: bool = False
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.cols} {self.dtype} to {self.kind}, scale {self.scale}, bound "
            f"{self.bound}, {self.layout} to {self.out_layout}, weight {self.weight}, "
            f"{self.rounding}, offset {self.weight_offset}, added {self.added}"
        )


def options_of(case: Case) -> dict[str, Any]:
    """The arguments of the quantisation alone."""
    options: dict[str, Any] = {"dtype": case.kind}
    if case.scale == "static":
        options["scale"] = case.one.array(np.array([case.given], np.float32))
        return options
    if case.scale != "row":
        options["group_size"] = case.scale
    if case.bound is not None:
        options["scale_upper_bound"] = case.bound
    return options


def call(
    case: Case, inputs: list[Any], norm_options: dict[str, Any], **more: Any
) -> tuple[Any, Any, Any]:
    """out, residual_out and scales; None for what there is not."""
    op = membound.add_rms_norm_quant if case.added else membound.rms_norm_quant
    found = op(*inputs, **norm_options, **options_of(case), **more)
    static = case.scale == "static"
    assert isinstance(found, tuple) == (case.added or not static), case
    results = list(found) if isinstance(found, tuple) else [found]
    assert len(results) == 1 + case.added + (not static), case
    return results[0], results[1] if case.added else None, None if static else results[-1]


def check(case: Case) -> None:
    """Runs one case: every bit, where it went, and the inputs left alone."""
    one = case.one
    fill = case.rng.standard_normal
    size = (case.dtype, case.rows, case.cols)
    placed = [arrays.place(one, LAYOUTS[case.layout], fill, *size) for _ in range(1 + case.added)]
    inputs = [each.array for each in placed]
    inputs.append(make_weight(case)[0])
    offset = case.weight_offset if inputs[-1] is not None else 0.0
    norm_options = {"eps": case.eps, "rounding": case.rounding, "weight_offset": offset}
    norm = membound.add_rms_norm if case.added else membound.rms_norm
    found = norm(*inputs, **norm_options)
    y = np.array(one.numpy(found[0] if case.added else found))
    wanted, scales = quantised(y, case.kind, case.scale, case.bound, case.given)

    more = {}
    if case.out_layout:
        layout = LAYOUTS[case.out_layout]
        into = place_codes(one, layout, case.kind, case.rows, case.cols)
        more["out"] = into.array
        if scales is not None and one.strided:  # column by column
            empty = np.full(scales.shape[::-1], np.nan, np.float32)
            more["scale_out"] = one.permute(one.array(empty), list(range(scales.ndim))[::-1])
    out, total, got = call(case, inputs, norm_options, **more)
    assert_same(one.numpy(out), wanted, case)
    if scales is not None:
        assert_same(one.numpy(got), scales, case)
    if case.added:
        assert_same(one.numpy(total), one.numpy(found[1]), case)
    if case.out_layout:
        assert out is more["out"], case
        assert got is more.get("scale_out", got), case
        assert gaps_are_untouched(one, layout, into, case.rows, case.cols), case
    for each in placed:
        np.testing.assert_array_equal(one.numpy(each.array), each.values, str(case))
