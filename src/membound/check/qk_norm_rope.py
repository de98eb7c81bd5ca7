# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope and its gradients against their definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond
from membound.check import rope
from membound.check.rope import Part
from membound.check.values import normals

# Full and partial rotation, vectorisable on a GPU or not.
PARTS = ((128, 128, 0), (64, 64, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3))
FORMS = ("returned", "out", "in place", "cache")
HEADS, SEQ, EPS, OFFSET = (2, 1), 3, 1e-6, 0.5
SLOTS = (3, 0, 2)  # cache slots of the tokens, in two pages of two
# Of rstd, two products and a rotation, relative to the largest element of the head.
ROUNDINGS = 8.0
# Of a gradient, relative to the terms of each sum, plus one rounding of dx.
BACKWARD_ALLOWED = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
BACKWARD_ALLOWED |= {"float32": 2.0**-19, "float64": 2.0**-47}


@dataclass(frozen=True)
class Case:
    dtype: str
    part: Part
    interleaved: bool
    of_each_head: bool  # k's weight
    form: str

    def __str__(self) -> str:
        head_dim, rotary_dim, offset = self.part
        return (
            f"{self.dtype}, head_dim {head_dim}, rotary_dim {rotary_dim} at {offset}, "
            + rope.style(self.interleaved)
            + (", a weight for each head" if self.of_each_head else "")
            + f", {self.form}"
        )


def axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    forms = FORMS if framework.takes_out else FORMS[:1]
    return PARTS, (False, True), (False, True), forms


def backward_axes(*_: Any) -> Sequence[Sequence[Any]]:
    return PARTS, (False, True), (False, True), ("rstd given", "rstd made again")


@dataclass
class Heads:
    """One array, (1, SEQ, count, head_dim), its weight, and the values of both after rounding."""

    array: Any
    weight: Any
    x: list[list[float]]
    factors: list[list[float]]  # the weight of each head with the offset added

    @classmethod
    def drawn(cls, case: Case, framework: Framework, draw: random.Random, count: int) -> Heads:
        head_dim = case.part[0]
        rows = SEQ * count
        shape = (1, SEQ, count, head_dim)
        array = framework.array(normals(draw, rows * head_dim), shape, case.dtype)
        groups = count if case.of_each_head else 1
        weight_shape = (groups, head_dim) if case.of_each_head else (head_dim,)
        weight = framework.array(normals(draw, groups * head_dim), weight_shape, case.dtype)
        held, factors = framework.values(array), framework.values(weight)
        x = [held[at * head_dim : (at + 1) * head_dim] for at in range(rows)]
        starts = [at % groups * head_dim for at in range(count)]
        with_offset = [[one + OFFSET for one in factors[at:][:head_dim]] for at in starts]
        return cls(array, weight, x, with_offset)


def options_of(case: Case, freqs: Any) -> dict[str, Any]:
    return {
        "freqs": freqs, "interleaved": case.interleaved, "rotary_dim": case.part[1],
        "rotary_offset": case.part[2], "weight_offset": OFFSET, "eps": EPS,
    }  # fmt: skip


def rstd_of(x: list[float]) -> float:
    return 1.0 / math.sqrt(math.fsum(value * value for value in x) / len(x) + EPS)


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for intermediate roundings, and the limit."""
    draw = random.Random(str(case))
    heads = [Heads.drawn(case, framework, draw, count) for count in HEADS]
    freqs, held = rope.frequency_array(framework, case.part[1], case.dtype)
    worst = 0.0
    for one, count, out in zip(heads, HEADS, _call(case, framework, heads, freqs), strict=True):
        found = framework.values(out)
        for row, x in enumerate(one.x):
            by = rstd_of(x)
            normed = [a * by * w for a, w in zip(x, one.factors[row % count], strict=True)]
            slack = rope.rounding(case.dtype, ROUNDINGS) * max(map(abs, normed))
            angles = rope.cos_and_sin(row // count, held)
            wanted = rope.rotated(case.part, case.interleaved, normed, *angles)
            for value, right in zip(found[row * len(x) :], wanted, strict=False):
                worst = max(worst, error_beyond(slack, value, right, case.dtype))
    return worst, ALLOWED[case.dtype]


def _call(case: Case, framework: Framework, heads: list[Heads], freqs: Any) -> list[Any]:
    arrays = [one.array for one in heads]
    given = (*arrays, *(one.weight for one in heads))
    options = options_of(case, freqs)
    if case.form == "returned":
        return list(membound.qk_norm_rope(*given, **options))
    if case.form == "cache":
        return _cached(case, framework, heads, options)
    outs = arrays
    if case.form == "out":
        shapes = [(1, SEQ, count, case.part[0]) for count in HEADS]
        outs = [framework.array([0.0] * math.prod(one), one, case.dtype) for one in shapes]
    membound.qk_norm_rope(*given, out=outs[0], k_out=outs[1], **options)
    return outs


def _cached(case: Case, framework: Framework, heads: list[Heads], options: Any) -> list[Any]:
    """Call with a cache; return k read back from it, or NaN if v was not copied to its cache."""
    (q, k), head_dim = heads, case.part[0]
    keys, values = (
        framework.array([0.0] * (4 * head_dim), (2, 2, 1, head_dim), case.dtype) for _ in range(2)
    )
    out = membound.qk_norm_rope(
        q.array, k.array, q.weight, k.weight, v=k.array, key_cache=keys, value_cache=values,
        slot_mapping=framework.array(SLOTS, (1, SEQ), "int32"), **options,
    )  # fmt: skip
    found, copied = (
        [framework.values(cache)[slot * head_dim :][:head_dim] for slot in SLOTS]
        for cache in (keys, values)
    )
    rows = list(itertools.chain(*found)) if copied == k.x else [math.nan] * (SEQ * head_dim)
    return [out, framework.array(rows, (1, SEQ, 1, head_dim), case.dtype)]


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error relative to the slack for the rounding of its terms, and 1."""
    draw = random.Random(str(case))
    heads, gradients = (
        [Heads.drawn(case, framework, draw, count) for count in HEADS] for _ in range(2)
    )
    freqs, held = rope.frequency_array(framework, case.part[1], case.dtype)
    options = options_of(case, freqs)
    given: tuple[Any, ...] = tuple(one.array for one in heads)
    weights = tuple(one.weight for one in heads)
    if case.form == "rstd given":
        *_, q_rstd, k_rstd = membound.qk_norm_rope(*given, *weights, return_rstd=True, **options)
        options |= {"q_rstd": q_rstd, "k_rstd": k_rstd}
    dq, dk, dq_weight, dk_weight = membound.qk_norm_rope_backward(
        *(one.array for one in gradients), *given, *weights, **options
    )
    worst = 0.0
    for one, dys, dx, dweight in zip(
        heads, gradients, (dq, dk), (dq_weight, dk_weight), strict=True
    ):
        errors = _errors(case, one, dys, held, framework.values(dx), framework.values(dweight))
        worst = max(worst, *(math.inf if math.isnan(error) else error for error in errors))
    return worst / BACKWARD_ALLOWED[case.dtype], 1.0


def _errors(
    case: Case, heads: Heads, dys: Heads, freqs: list[float], dx: list[float], dweight: list[float]
) -> Iterator[float]:
    """The error of every element, relative to the magnitude of its terms."""
    count, cols = len(heads.x) // SEQ, case.part[0]
    sums = [[0.0] * cols for _ in range(count)]
    sizes = [[1e-30] * cols for _ in range(count)]
    for row, (x, dy) in enumerate(zip(heads.x, dys.x, strict=True)):
        by, head = rstd_of(x), row % count
        h = [by * value for value in x]
        cos, sin = rope.cos_and_sin(row // count, freqs)
        t = rope.rotated(case.part, case.interleaved, dy, cos, [-one for one in sin])
        g = [a * w for a, w in zip(t, heads.factors[head], strict=True)]
        mean = math.fsum(a * b for a, b in zip(g, h, strict=True)) / cols
        size = by * (max(map(abs, g)) + max(map(abs, h)) * abs(mean)) * 2
        for col in range(cols):
            right = by * (g[col] - h[col] * mean)
            yield abs(dx[row * cols + col] - right) / (size + abs(right))
            group = head if case.of_each_head else 0
            sums[group][col] += t[col] * h[col]
            sizes[group][col] += abs(t[col] * h[col]) + OFFSET * 1e-3
    for group in range(count if case.of_each_head else 1):
        for col in range(cols):
            yield abs(dweight[group * cols + col] - sums[group][col]) / (2 * sizes[group][col])
