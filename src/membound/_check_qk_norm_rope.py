# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope against its definition in Python's floats."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import membound
from membound._check_values import normals
from membound._frameworks import Framework
from membound._ulps import ALLOWED, error_beyond

# (head_dim, rotary_dim, rotary_offset): full and partial rotation, vectorisable on a GPU or not
PARTS = ((128, 128, 0), (64, 64, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3))
FORMS = ("returned", "out", "in place", "cache")
HEADS, SEQ, EPS, OFFSET = (2, 1), 3, 1e-6, 0.5
SLOTS = (3, 0, 2)  # cache slots of the tokens, in two pages of two
# Roundings of rstd, two products and a rotation, relative to the largest element of the head.
ROUNDINGS = 8.0


@dataclass(frozen=True)
class Case:
    dtype: str
    part: tuple[int, int, int]
    interleaved: bool
    of_each_head: bool  # k's weight
    form: str

    def __str__(self) -> str:
        head_dim, rotary_dim, offset = self.part
        return (
            f"{self.dtype}, head_dim {head_dim}, rotary_dim {rotary_dim} at {offset}, "
            + ("interleaved" if self.interleaved else "halves apart")
            + (", a weight for each head" if self.of_each_head else "")
            + f", {self.form}"
        )


def cases(framework: Framework, dtype: str, thorough: bool) -> Iterator[Case]:
    if framework.call_options:  # it takes no device
        return
    forms = FORMS if framework.takes_out else FORMS[:1]
    everything = itertools.product(PARTS, (False, True), (False, True), forms)
    for at, case in enumerate(everything):
        if thorough or at % 7 == 0:
            yield Case(dtype, *case)


@dataclass
class Heads:
    """One array, (1, SEQ, count, head_dim), its weight, and the values of both after rounding."""

    array: Any
    weight: Any
    x: list[list[float]]
    factors: list[list[float]]  # the weight of each head with the offset added


def heads_of(case: Case, framework: Framework, draw: random.Random, count: int) -> Heads:
    head_dim = case.part[0]
    rows = SEQ * count
    shape = (1, SEQ, count, head_dim)
    array = framework.array(normals(draw, rows * head_dim), shape, case.dtype)
    groups = count if case.of_each_head else 1
    weight = framework.array(
        normals(draw, groups * head_dim),
        (groups, head_dim) if case.of_each_head else (head_dim,),
        case.dtype,
    )
    held, factors = framework.values(array), framework.values(weight)
    return Heads(
        array, weight,
        [held[at * head_dim : (at + 1) * head_dim] for at in range(rows)],
        [[one + OFFSET for one in factors[at % groups * head_dim :][:head_dim]]
         for at in range(count)],
    )  # fmt: skip


def angles_of(case: Case, framework: Framework) -> tuple[Any, list[float]]:
    """Frequencies as an array, and their values after rounding."""
    rotary_dim = case.part[1]
    wide = "float64" if case.dtype == "float64" else "float32"
    freqs = [10000.0 ** (-at / rotary_dim) for at in range(0, rotary_dim, 2)]
    given = framework.array(freqs, (rotary_dim // 2,), wide)
    return given, framework.values(given)


def options_of(case: Case, freqs: Any) -> dict[str, Any]:
    return {
        "freqs": freqs, "interleaved": case.interleaved, "rotary_dim": case.part[1],
        "rotary_offset": case.part[2], "weight_offset": OFFSET, "eps": EPS,
    }  # fmt: skip


def rstd_of(x: list[float]) -> float:
    return 1.0 / math.sqrt(math.fsum(value * value for value in x) / len(x) + EPS)


def rotated(
    case: Case, x: list[float], position: int, freqs: list[float], sign: int
) -> list[float]:
    out = list(x)
    _, rotary_dim, offset = case.part
    for pair, frequency in enumerate(freqs):
        first = offset + (2 * pair if case.interleaved else pair)
        second = first + (1 if case.interleaved else rotary_dim // 2)
        c, s = math.cos(position * frequency), sign * math.sin(position * frequency)
        out[first] = x[first] * c - x[second] * s
        out[second] = x[second] * c + x[first] * s
    return out


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for intermediate roundings, and the limit."""
    draw = random.Random(str(case))
    heads = [heads_of(case, framework, draw, count) for count in HEADS]
    freqs, held = angles_of(case, framework)
    rounding = ROUNDINGS * 2.0 ** -(53 if case.dtype == "float64" else 24)
    worst = 0.0
    for one, count, out in zip(heads, HEADS, _call(case, framework, heads, freqs), strict=True):
        found = framework.values(out)
        for row, x in enumerate(one.x):
            by = rstd_of(x)
            normed = [a * by * w for a, w in zip(x, one.factors[row % count], strict=True)]
            slack = rounding * max(map(abs, normed))
            wanted = rotated(case, normed, row // count, held, 1)
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
        outs = [
            framework.array([0.0] * (len(one.x) * case.part[0]), (1, SEQ, count, case.part[0]),
                            case.dtype)
            for one, count in zip(heads, HEADS, strict=True)
        ]  # fmt: skip
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
