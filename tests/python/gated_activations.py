# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A reference of gated_activation in a wider dtype, and one call, checked in every respect."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import arrays
import numpy as np
from arrays import LAYOUTS, Framework
from cases import layouts_like
from reference import NUMPY_DTYPES, statistics_dtype, wide

import membound
from membound._ulps import ACTIVATION_ALLOWED, ACTIVATION_SLACK, FORMATS

KINDS = ("silu", "gelu", "gelu_tanh", "sigmoid", "relu2", "relu", "situ")
# Around a CPU vector, a 16-byte vector, the lanes of a row and a tile.
WIDTHS = (1, 3, 8, 31, 64, 129, 520, 1000, 4097)
FORMS = ("returned", "given", "over gate", "over up")
PACKINGS = ("apart", "halves", "interleaved", "gate")
# The exponent of half of the smallest value.
_LEAST = {"float32": -150, "float64": -1075}
GPT_OSS = {"alpha": 1.702, "limit": 7.0, "up_offset": 1.0}


def _erfc(x: np.ndarray) -> np.ndarray:
    """To the precision of x: where float64 rounds x, its slope tells what that takes."""
    near = x.astype(np.float64)
    found = np.vectorize(math.erfc, otypes=[np.float64])(near).astype(x.dtype)
    return found - (x - near) * np.exp(-(x * x)) / np.sqrt(np.arctan(x.dtype.type(1)))


def soft_cap(x: np.ndarray, cap: Any) -> tuple[np.ndarray, np.ndarray]:
    """cap * tanh(x / cap) and its slope, which loses no digits where tanh is near 1."""
    power = np.exp(-2 * np.abs(x / cap))
    return cap * np.tanh(x / cap), 4 * power / (1 + power) ** 2


def activation(kind: str, g: np.ndarray, alpha: float) -> tuple[np.ndarray, ...]:
    """The function, its slope, and the magnitude of the slope's terms, in the dtype of g."""
    number = g.dtype.type
    pi = 4 * np.arctan(number(1))
    if kind == "relu2":
        positive = np.maximum(g, 0)
        return positive**2, 2 * positive, 2 * positive
    if kind == "relu":
        return np.maximum(g, 0), (g > 0).astype(g.dtype), (g > 0).astype(g.dtype)
    if kind == "situ":
        s, rest = 1 / (1 + np.exp(-g)), 1 / (1 + np.exp(g))
        capped, steep = soft_cap(g, number(alpha))
        return capped * s, s * (steep + capped * rest), s * (steep + np.abs(capped) * rest)
    if kind == "gelu":
        root = np.sqrt(number(2))
        below = _erfc(-g / root) / 2
        steep = g * np.exp(-(g * g) / 2) / np.sqrt(2 * pi)
        return g * below, below + steep, below + np.abs(steep)
    if kind == "gelu_tanh":
        cubic = number(44715) / 1000000
        factor = 2 * np.sqrt(2 / pi)
        z, steep = factor * (g + cubic * g**3), factor * (g + 3 * cubic * g**3)
    else:
        z = steep = number(alpha) * g
    s, rest = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))
    if kind == "sigmoid":
        return s, number(alpha) * s * rest, number(alpha) * s * rest
    return g * s, s * (1 + steep * rest), s * (1 + np.abs(steep) * rest)


def expected(
    gate: np.ndarray,
    up: np.ndarray | None,
    dy: np.ndarray,
    dtype: str,
    *,
    kind: str = "silu",
    alpha: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    row_scale: np.ndarray | None = None,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """out, dgate and dup, each with the magnitude of its terms."""
    situ = kind == "situ"
    alpha = alpha or (4.0 if situ else 1.0)
    bound = limit or (25.0 if situ else math.inf)
    with np.errstate(all="ignore"):
        g, d = wide(gate, dtype), wide(dy, dtype)
        u = np.ones_like(g) if up is None else wide(up, dtype)
        held = g if situ else np.minimum(g, g.dtype.type(bound))
        parts = activation(kind, held, alpha)
        # What alone would round to 0 is 0, however large what it is multiplied by. relu2 is not
        # rounded before that.
        least = 0 if kind == "relu2" else np.ldexp(g.dtype.type(1), _LEAST[statistics_dtype(dtype)])
        value, slope, size = (np.where(np.abs(part) < least, 0 * part, part) for part in parts)
        factor, slope_of_up = np.clip(u, -bound, bound), np.where(np.abs(u) > bound, 0, 1)
        if situ and bound < math.inf:
            factor, slope_of_up = soft_cap(u, g.dtype.type(bound))
        factor = u if up is None else factor + g.dtype.type(up_offset)
        scale = 1 if row_scale is None else wide(row_scale, dtype)[..., None]
        # A sum of up and its offset rounds once.
        terms = np.abs(factor) if up is None else np.abs(factor) + abs(up_offset)
        out = value * factor * scale, np.abs(value) * (terms - np.abs(factor)) * np.abs(scale)
        scaled = d * scale
        dgate = np.where(g > held, 0, scaled * slope * factor)
        dup = np.where(slope_of_up == 0, 0, scaled * value * slope_of_up)
        return {
            "out": out,
            "dgate": (dgate, np.abs(scaled) * size * terms),
            "dup": (dup, np.zeros_like(dup)),
        }


def check_close(got: np.ndarray, want: np.ndarray, terms: np.ndarray, dtype: str, said: Any):
    bits, lowest, largest = FORMATS[dtype]
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.abs(want))[1] - 1
        ulp = np.ldexp(np.ones_like(want), np.maximum(exponent, lowest) - bits + 1)
        error = np.abs(got.astype(want.dtype) - want)
        allowed = ACTIVATION_ALLOWED[dtype] * ulp + ACTIVATION_SLACK[dtype] * terms
        over = np.abs(want) >= largest
        right = (error <= allowed) | (np.isnan(want) & np.isnan(got.astype(want.dtype)))
        right |= over & (np.abs(got.astype(want.dtype)) >= largest)
    if not right.all():
        at = np.unravel_index(np.argmin(right), right.shape)
        raise AssertionError(
            f"{said}: element {tuple(map(int, at))} is {got[at]!r}, not {want[at]!r}, off by "
            f"{float(error[at] / ulp[at]):.3g} ulp; {int((~right).sum())} of {right.size} are wrong"
        )


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
    want = expected(
        values, values_up, values, case.dtype, kind=case.kind, row_scale=scale_values,
        **case.options,
    )  # fmt: skip
    check_close(found, *want["out"], case.dtype, case)
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
    want = expected(
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
        check_close(gradient, *want[name], case.dtype, (name, case))
