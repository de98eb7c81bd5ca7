# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope and its gradients against their definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond
from membound.check.values import normals, statistics_dtype

# head_dim, rotary_dim, rotary_offset
Part = tuple[int, int, int]
# Full and partial rotation, vectorisable on a GPU or not.
PARTS = ((128, 128, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3), (2, 2, 0))
FORMS = ("returned", "out", "in place")


def style(interleaved: bool) -> str:
    return "interleaved" if interleaved else "halves apart"


def frequencies(rotary_dim: int) -> list[float]:
    return [10000.0 ** (-at / rotary_dim) for at in range(0, rotary_dim, 2)]


def frequency_array(framework: Framework, rotary_dim: int, dtype: str) -> tuple[Any, list[float]]:
    """Frequencies as an array, and their values after rounding."""
    given = framework.array(frequencies(rotary_dim), (rotary_dim // 2,), statistics_dtype(dtype))
    return given, framework.values(given)


def cos_and_sin(position: int, freqs: Sequence[float]) -> tuple[list[float], list[float]]:
    angles = [position * one for one in freqs]
    return list(map(math.cos, angles)), list(map(math.sin, angles))


def pairs(part: Part, interleaved: bool) -> Iterator[tuple[int, int]]:
    """The elements of a head that are rotated together."""
    _, rotary_dim, offset = part
    for pair in range(rotary_dim // 2):
        first = offset + (2 * pair if interleaved else pair)
        yield first, first + (1 if interleaved else rotary_dim // 2)


def rotated(
    part: Part, interleaved: bool, x: Sequence[float], cos: Sequence[float], sin: Sequence[float]
) -> list[float]:
    out = list(x)
    for (first, second), c, s in zip(pairs(part, interleaved), cos, sin, strict=True):
        out[first] = x[first] * c - x[second] * s
        out[second] = x[second] * c + x[first] * s
    return out


def rounding(dtype: str, count: float) -> float:
    """The relative error of that many roundings in the accumulator's dtype."""
    return count * 2.0 ** -(53 if dtype == "float64" else 24)


LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (1, 2, 3)}
TABLES = ("halves", "cache", "freqs")
POSITIONS = 97
# Of two products, their sum, and a float32 angle.
ROUNDINGS = 4.0


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

    def in_layout(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an array, from batch, sequence, heads and head_dim."""
        return tuple(shape[axis] for axis in LAYOUTS[self.layout])

    def tokens(self, batch: int, seq: int, heads: int) -> Iterator[int]:
        """Which token each head belongs to, in the order of the layout."""
        extents = (batch, seq, heads)
        axes = [axis for axis in LAYOUTS[self.layout] if axis < 3]
        for index in itertools.product(*(range(extents[axis]) for axis in axes)):
            at = dict(zip(axes, index, strict=True))
            yield at.get(0, 0) * seq + at[1]


def axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    # Our memoryview arrays have no integer dtype.
    ids = (False,) if framework.name == "memoryview" else (False, True)
    forms = FORMS if framework.takes_out else FORMS[:1]
    return tuple(LAYOUTS), TABLES, PARTS, (False, True), (False, True), ids, forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for angles, and the limit."""
    draw = random.Random(str(case))
    batch, seq = (1, 6) if case.layout == "thd" else (2, 3)
    head_dim, rotary_dim, offset = case.part
    positions = [draw.randrange(POSITIONS) for _ in range(batch * seq)]
    if not case.ids:
        positions = [at % seq for at in range(batch * seq)]
    angles, numbers = _angles(case, framework)
    options: dict[str, Any] = {
        "layout": case.layout, "interleaved": case.interleaved, "inverse": case.inverse,
        "rotary_dim": rotary_dim, "rotary_offset": offset, **angles,
    }  # fmt: skip
    if case.ids:
        shape = (seq,) if case.layout == "thd" else (batch, seq)
        options["position_ids"] = framework.array(positions, shape, "int64")
    worst, heads = 0.0, []
    for count in (2, 1):
        shape = case.in_layout((batch, seq, count, head_dim))
        values = normals(draw, batch * seq * count * head_dim)
        heads.append(framework.array(values, shape, case.dtype))
    given = [framework.values(x) for x in heads]
    results = _call(case, framework, heads, options)
    for x, count, out in zip(given, (2, 1), results, strict=True):
        found = framework.values(out)
        for index, token in enumerate(case.tokens(batch, seq, count)):
            head = slice(index * head_dim, (index + 1) * head_dim)
            wanted = _rotated_with_slack(case, x[head], *numbers(positions[token]))
            for value, (right, slack) in zip(found[head], wanted, strict=True):
                worst = max(worst, error_beyond(slack, value, right, case.dtype))
    return worst, ALLOWED[case.dtype]


def _angles(case: Case, framework: Framework) -> tuple[dict[str, Any], Callable[[int], Any]]:
    """The angles as arguments of rope, and a function for cos, sin of a position after rounding."""
    count, wide = case.part[1] // 2, statistics_dtype(case.dtype)
    if case.table == "freqs":
        given, held = frequency_array(framework, case.part[1], case.dtype)
        return {"freqs": given}, lambda position: cos_and_sin(position, held)
    freqs = frequencies(case.part[1])
    rows = [cos_and_sin(position, freqs) for position in range(POSITIONS)]
    if case.table == "cache":
        flat = [one for row in rows for half in row for one in half]
        cache = framework.array(flat, (POSITIONS, 2 * count), wide)
        held = framework.values(cache)
        return {"cos": cache}, lambda position: (
            held[2 * position * count :][:count],
            held[(2 * position + 1) * count :][:count],
        )
    flat_tables = ([one for row in rows for one in row[which]] for which in (0, 1))
    arrays = [framework.array(flat, (POSITIONS, count), wide) for flat in flat_tables]
    tables = [framework.values(one) for one in arrays]
    return dict(zip(("cos", "sin"), arrays, strict=True)), lambda position: (
        [table[position * count :][:count] for table in tables]
    )


def _rotated_with_slack(
    case: Case, x: Sequence[float], cos: Sequence[float], sin: Sequence[float]
) -> list[tuple[float, float]]:
    """Each element of a rotated head, and the slack for the rounding of its terms."""
    slack = [0.0] * len(x)
    for first, second in pairs(case.part, case.interleaved):
        terms = abs(x[first]) + abs(x[second])
        slack[first] = slack[second] = rounding(case.dtype, ROUNDINGS) * terms
    sin = [-one for one in sin] if case.inverse else sin
    return list(zip(rotated(case.part, case.interleaved, x, cos, sin), slack, strict=True))


def _call(case: Case, framework: Framework, heads: list[Any], options: dict[str, Any]) -> list[Any]:
    if case.form == "returned":
        return list(membound.rope(*heads, **options))
    outs = heads
    if case.form == "out":
        outs = [
            framework.array([0.0] * math.prod(x.shape), tuple(x.shape), case.dtype) for x in heads
        ]
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
    draw = random.Random(str(case))
    shape = (*SHAPE, case.heads, DIM)
    x, dy = (normals(draw, math.prod(shape)) for _ in range(2))
    q, gradient = (framework.array(values, shape, case.dtype) for values in (x, dy))
    freqs, held = frequency_array(framework, DIM, case.dtype)
    options: dict[str, Any] = {"freqs": freqs, "interleaved": case.interleaved}
    if case.wants == "transpose":
        found = framework.values(membound.rope_backward(gradient, **options))
        wanted = framework.values(membound.rope(gradient, inverse=True, **options))
        return float(sum(a != b for a, b in zip(found, wanted, strict=True))), 0.0
    _, dfreqs = membound.rope_backward(gradient, q=q, **options)
    right, size = _dfreqs(case, framework.values(q), framework.values(gradient), held)
    allowed = DFREQS_ALLOWED[case.dtype]
    found = framework.values(dfreqs)
    errors = [abs(a - b) / (allowed * c) for a, b, c in zip(found, right, size, strict=True)]
    return max(math.inf if math.isnan(error) else error for error in errors), 1.0


def _dfreqs(
    case: BackwardCase, x: list[float], dy: list[float], freqs: list[float]
) -> tuple[list[float], list[float]]:
    """The gradient, and the magnitude of its terms."""
    part = (DIM, DIM, 0)
    sums, sizes = [0.0] * len(freqs), [1e-30] * len(freqs)
    for head in range(len(x) // DIM):
        position = head // case.heads % SHAPE[1]
        cos, sin = cos_and_sin(position, freqs)
        out = rotated(part, case.interleaved, x[DIM * head :][:DIM], cos, sin)
        given = dy[DIM * head :][:DIM]
        for pair, (first, second) in enumerate(pairs(part, case.interleaved)):
            terms = (given[second] * out[first], -given[first] * out[second])
            sums[pair] += position * sum(terms)
            sizes[pair] += position * sum(map(abs, terms))
    return sums, sizes
