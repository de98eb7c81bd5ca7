# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases
from membound.oracle import np, round_to, statistics_dtype
from membound.oracle import rotary as oracle

# head_dim, rotary_dim, rotary_offset
Part = tuple[int, int, int]
# Full and partial rotation, vectorisable on a GPU or not.
PARTS = ((128, 128, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3), (2, 2, 0))
FORMS = ("returned", "out", "in place")


def style(interleaved: bool) -> str:
    return "interleaved" if interleaved else "halves apart"


def frequency_array(framework: Framework, rotary_dim: int, dtype: str) -> tuple[Any, np.ndarray]:
    """Frequencies as an array, and their values after rounding."""
    kind = statistics_dtype(dtype)
    held = round_to(oracle.frequencies(rotary_dim), kind)
    return cases.plain(framework, held, kind), held


LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (1, 2, 3)}
TABLES = ("halves", "cache", "freqs")
POSITIONS = 97


@dataclass(frozen=True)
class Case:
    dtype: str
    layout: str
    table: str
    part: Part
    interleaved: bool
    inverse: bool
    ids: bool
    form: str

    def __str__(self) -> str:
        head_dim, rotary_dim, offset = self.part
        return (
            f"{self.layout} {self.dtype}, head_dim {head_dim}, rotary_dim {rotary_dim} at {offset}"
            f", {self.table}, {style(self.interleaved)}"
            + (", inverse" if self.inverse else "") + (", ids" if self.ids else "")
            + f", {self.form}"
        )  # fmt: skip

    def in_layout(self, x: np.ndarray) -> np.ndarray:
        """An array of (batch, sequence, heads, head_dim) with the axes of the layout."""
        return x[0] if self.layout == "thd" else x.transpose(LAYOUTS[self.layout])


def axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    # Our memoryview arrays have no integer dtype.
    ids = (False,) if framework.name == "memoryview" else (False, True)
    forms = FORMS if framework.takes_out else FORMS[:1]
    return tuple(LAYOUTS), TABLES, PARTS, (False, True), (False, True), ids, forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for angles, and the limit."""
    rng, (head_dim, rotary_dim, offset) = cases.generator(case), case.part
    batch, seq = (1, 6) if case.layout == "thd" else (2, 3)
    positions = np.broadcast_to(np.arange(seq), (batch, seq))
    if case.ids:
        positions = rng.integers(0, POSITIONS, (batch, seq))
    angles, cos, sin = _angles(case, framework, positions)
    options: dict[str, Any] = {
        "layout": case.layout, "interleaved": case.interleaved, "inverse": case.inverse,
        "rotary_dim": rotary_dim, "rotary_offset": offset, **angles,
    }  # fmt: skip
    if case.ids:
        ids = positions[0] if case.layout == "thd" else positions
        options["position_ids"] = cases.plain(framework, ids, "int64")
    rotation = oracle.Rotation(cos, sin, case.interleaved, offset, case.inverse)
    heads, wanted = [], []
    for count in (2, 1):
        x = round_to(rng.standard_normal((batch, seq, count, head_dim)), case.dtype)
        heads.append(cases.plain(framework, case.in_layout(x), case.dtype))
        right = oracle.rope(x, case.dtype, rotation)
        right.terms = case.in_layout(right.terms)
        right.values = case.in_layout(right.values)
        wanted.append(right)
    results = _call(case, framework, heads, options)
    return cases.compare(framework, case.dtype, list(zip(results, wanted, strict=True)))


def _angles(
    case: Case, framework: Framework, positions: np.ndarray
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """The angles as arguments of rope, and cos, sin of each token after rounding."""
    kind = statistics_dtype(case.dtype)
    if case.table == "freqs":
        given, held = frequency_array(framework, case.part[1], case.dtype)
        angles = positions[..., None] * held
        return {"freqs": given}, np.cos(angles), np.sin(angles)
    angles = np.arange(POSITIONS)[:, None] * oracle.frequencies(case.part[1])
    cos, sin = (round_to(one, kind) for one in (np.cos(angles), np.sin(angles)))
    tables = {"cos": cos, "sin": sin}
    if case.table == "cache":
        tables = {"cos": np.concatenate([cos, sin], 1)}
    given = {name: cases.plain(framework, one, kind) for name, one in tables.items()}
    return given, cos[positions], sin[positions]


def _call(case: Case, framework: Framework, heads: list[Any], options: dict[str, Any]) -> list[Any]:
    if case.form == "returned":
        return list(membound.rope(*heads, **options))
    outs = heads
    if case.form == "out":
        outs = [cases.plain(framework, np.zeros(tuple(x.shape)), case.dtype) for x in heads]
    membound.rope(*heads, out=outs[0], k_out=outs[1], **options)
    return outs


SHAPE, DIM = (2, 5), 16
# dfreqs is a sum of products of two rounded values.
DFREQS_ALLOWED = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-20, "float64": 2.0**-48}


@dataclass(frozen=True)
class BackwardCase:
    dtype: str
    heads: int
    interleaved: bool
    wants: str  # "transpose" or "freqs"

    def __str__(self) -> str:
        return f"{self.wants} of {self.heads} heads, {self.dtype}, {style(self.interleaved)}"


def backward_axes(_: Framework, thorough: bool) -> Sequence[Sequence[Any]]:
    return (1, 3, 8) if thorough else (3,), (False, True), ("transpose", "freqs")


def run_backward(case: BackwardCase, framework: Framework) -> tuple[float, float]:
    """Return the error of the result, and the limit.

    For the transpose: the number of elements that differ from rope with inverse, and 0. For freqs:
    the error relative to the slack for the rounding of its terms, and 1.
    """
    rng, shape = cases.generator(case), (*SHAPE, case.heads, DIM)
    x, dy = (round_to(rng.standard_normal(shape), case.dtype) for _ in range(2))
    q, gradient = (cases.plain(framework, values, case.dtype) for values in (x, dy))
    freqs, frequencies = frequency_array(framework, DIM, case.dtype)
    options: dict[str, Any] = {"freqs": freqs, "interleaved": case.interleaved}
    if case.wants == "transpose":
        found, wanted = (
            cases.held(framework, one)
            for one in (
                membound.rope_backward(gradient, **options),
                membound.rope(gradient, inverse=True, **options),
            )
        )
        return float((found != wanted).sum()), 0.0
    _, dfreqs = membound.rope_backward(gradient, q=q, **options)
    positions = np.broadcast_to(np.arange(SHAPE[1]), SHAPE)
    angles = positions[..., None] * frequencies
    rotation = oracle.Rotation(np.cos(angles), np.sin(angles), case.interleaved)
    right, size = oracle.gradient_of_freqs(dy, x, positions, rotation)
    error = np.abs(cases.held(framework, dfreqs) - right)
    error = error / (DFREQS_ALLOWED[case.dtype] * size + 1e-30)
    return float(np.nan_to_num(error, nan=np.inf).max()), 1.0
