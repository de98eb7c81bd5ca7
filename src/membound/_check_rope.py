# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""rope against its definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond

LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (1, 2, 3)}
TABLES = ("halves", "cache", "freqs")
# (head_dim, rotary_dim, rotary_offset): full and partial rotation, vectorisable on a GPU or not
PARTS = ((128, 128, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3), (2, 2, 0))
FORMS = ("returned", "out", "in place")
POSITIONS = 97
# Roundings of two products, their sum, and a float32 angle.
ROUNDINGS = 4.0


@dataclass(frozen=True)
class Case:
    dtype: str
    layout: str
    table: str
    part: tuple[int, int, int]
    interleaved: bool
    inverse: bool
    ids: bool
    form: str

    def __str__(self) -> str:
        head_dim, rotary_dim, offset = self.part
        return (
            f"{self.layout} {self.dtype}, head_dim {head_dim}, rotary_dim {rotary_dim} at {offset}"
            f", {self.table}, {'interleaved' if self.interleaved else 'halves apart'}"
            + (", inverse" if self.inverse else "") + (", ids" if self.ids else "")
            + f", {self.form}"
        )  # fmt: skip


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    ids = (
        (False,) if framework.name == "memoryview" else (False, True)
    )  # our memoryview arrays have no integer dtype
    everything = itertools.product(LAYOUTS, TABLES, PARTS, (False, True), (False, True), ids, forms)
    for at, (layout, table, part, interleaved, inverse, by_id, form) in enumerate(everything):
        if thorough or at % 23 == 0:
            yield Case(dtype, layout, table, part, interleaved, inverse, by_id, form)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for angles, and the limit."""
    draw = random.Random(str(case))
    batch, seq = (1, 6) if case.layout == "thd" else (2, 3)
    head_dim, rotary_dim, _ = case.part
    wide = "float64" if case.dtype == "float64" else "float32"
    freqs = [10000.0 ** (-at / rotary_dim) for at in range(0, rotary_dim, 2)]
    positions = [draw.randrange(POSITIONS) for _ in range(batch * seq)]
    if not case.ids:
        positions = [at % seq for at in range(batch * seq)]
    angles, numbers = _angles(case, framework, freqs, wide)
    options: dict[str, Any] = {
        "layout": case.layout, "interleaved": case.interleaved, "inverse": case.inverse,
        "rotary_dim": rotary_dim, "rotary_offset": case.part[2], **angles,
    }  # fmt: skip
    if case.ids:
        shape = (seq,) if case.layout == "thd" else (batch, seq)
        options["position_ids"] = framework.array(positions, shape, "int64")
    worst, heads = 0.0, []
    for count in (2, 1):
        shape = (batch, seq, count, head_dim)
        values = normals(draw, math.prod(shape))
        heads.append(_to_array(case, framework, values, shape))
    for (x, shape), out in zip(heads, _call(case, framework, heads, options), strict=True):
        given, found = x, framework.values(out)
        for index, position in enumerate(_tokens(case, batch, seq, shape[2])):
            first = index * head_dim
            wanted = _rotated(case, given[first : first + head_dim], *numbers(positions[position]))
            for value, (right, slack) in zip(found[first:], wanted, strict=False):
                worst = max(worst, error_beyond(slack, value, right, case.dtype))
    return worst, ALLOWED[case.dtype]


def _to_array(
    case: Case, framework: Framework, values: Sequence[float], shape: tuple[int, ...]
) -> tuple[list[float], tuple[int, ...]]:
    """Values rounded to the dtype, in the order of the layout."""
    array = framework.array(values, _shape(case, shape), case.dtype)
    return framework.values(array), shape


def _shape(case: Case, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in LAYOUTS[case.layout])


def _tokens(case: Case, batch: int, seq: int, heads: int) -> Iterator[int]:
    """Which token each head belongs to, in the order of the layout."""
    extents = (batch, seq, heads)
    axes = [axis for axis in LAYOUTS[case.layout] if axis < 3]
    for index in itertools.product(*(range(extents[axis]) for axis in axes)):
        at = dict(zip(axes, index, strict=True))
        yield at.get(0, 0) * seq + at[1]


def _angles(case: Case, framework: Framework, freqs: list[float], wide: str) -> tuple[Any, Any]:
    """The angles as arguments of rope, and a function for cos, sin of a position after rounding."""
    pairs = len(freqs)
    if case.table == "freqs":
        given = framework.array(freqs, (pairs,), wide)
        held = framework.values(given)
        return {"freqs": given}, lambda position: (
            [math.cos(position * one) for one in held],
            [math.sin(position * one) for one in held],
        )
    turns = [position * one for position in range(POSITIONS) for one in freqs]
    tables = [[function(turn) for turn in turns] for function in (math.cos, math.sin)]
    if case.table == "cache":
        rows = [
            [*(table[at * pairs : (at + 1) * pairs] for table in tables)] for at in range(POSITIONS)
        ]
        flat = [one for row in rows for half in row for one in half]
        cache = framework.array(flat, (POSITIONS, 2 * pairs), wide)
        held = framework.values(cache)
        return {"cos": cache}, lambda position: (
            held[2 * position * pairs :][:pairs],
            held[(2 * position + 1) * pairs :][:pairs],
        )
    arrays = [framework.array(table, (POSITIONS, pairs), wide) for table in tables]
    cos, sin = map(framework.values, arrays)
    return dict(zip(("cos", "sin"), arrays, strict=True)), lambda position: (
        cos[position * pairs :][:pairs],
        sin[position * pairs :][:pairs],
    )


def _rotated(
    case: Case, x: Sequence[float], cos: Sequence[float], sin: Sequence[float]
) -> list[tuple[float, float]]:
    """Each rotated element of a head, and the slack for the rounding of its terms."""
    _, rotary_dim, offset = case.part
    wanted = [(value, 0.0) for value in x]
    rounding = ROUNDINGS * 2.0 ** -(53 if case.dtype == "float64" else 24)
    for pair in range(rotary_dim // 2):
        first = offset + (2 * pair if case.interleaved else pair)
        second = first + (1 if case.interleaved else rotary_dim // 2)
        c, s = cos[pair], -sin[pair] if case.inverse else sin[pair]
        slack = rounding * (abs(x[first]) + abs(x[second]))
        wanted[first] = (x[first] * c - x[second] * s, slack)
        wanted[second] = (x[second] * c + x[first] * s, slack)
    return wanted


def _call(case: Case, framework: Framework, heads: list[Any], options: dict[str, Any]) -> list[Any]:
    arrays = [framework.array(values, _shape(case, shape), case.dtype) for values, shape in heads]
    if case.form == "out":
        outs = [framework.array([0.0] * math.prod(shape), _shape(case, shape), case.dtype)
                for _, shape in heads]  # fmt: skip
        membound.rope(*arrays, out=outs[0], k_out=outs[1], **options)
        return outs
    if case.form == "in place":
        membound.rope(*arrays, out=arrays[0], k_out=arrays[1], **options)
        return arrays
    return list(membound.rope(*arrays, **options))
