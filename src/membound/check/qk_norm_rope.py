# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""qk_norm_rope and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases, rope
from membound.check.rope import Part
from membound.oracle import np, round_to
from membound.oracle import rotary as oracle

# Full and partial rotation, vectorisable on a GPU or not.
PARTS = ((128, 128, 0), (64, 64, 0), (80, 80, 0), (64, 32, 32), (10, 6, 3))
FORMS = ("returned", "out", "in place", "cache")
HEADS, SEQ, EPS, OFFSET = (2, 1), 3, 1e-6, 0.5
SLOTS = (3, 0, 2)  # cache slots of the tokens, in two pages of two


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
    """One array, (1, SEQ, count, head_dim), its weight, and the formula of both after rounding."""

    array: Any
    weight: Any
    formula: oracle.NormAndRotation

    @classmethod
    def drawn(
        cls, case: Case, framework: Framework, rng: np.random.Generator, count: int, freqs: Any
    ) -> Heads:
        head_dim, _, offset = case.part
        columns = (count, head_dim) if case.of_each_head else (head_dim,)
        shapes = ((1, SEQ, count, head_dim), columns)
        x, weight = (round_to(rng.standard_normal(shape), case.dtype) for shape in shapes)
        angles = np.arange(SEQ)[None, :, None] * freqs
        rotation = oracle.Rotation(np.cos(angles), np.sin(angles), case.interleaved, offset)
        formula = oracle.NormAndRotation(x, weight, rotation, EPS, OFFSET)
        return cls(*(cases.plain(framework, one, case.dtype) for one in (x, weight)), formula)


def options_of(case: Case, freqs: Any) -> dict[str, Any]:
    return {
        "freqs": freqs, "interleaved": case.interleaved, "rotary_dim": case.part[1],
        "rotary_offset": case.part[2], "weight_offset": OFFSET, "eps": EPS,
    }  # fmt: skip


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for intermediate roundings, and the limit."""
    rng = cases.generator(case)
    freqs, held = rope.frequency_array(framework, case.part[1], case.dtype)
    heads = [Heads.drawn(case, framework, rng, count, held) for count in HEADS]
    wanted = [one.formula.expected(case.dtype) for one in heads]
    results = _call(case, framework, heads, freqs)
    return cases.compare(framework, case.dtype, list(zip(results, wanted, strict=True)))


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
        outs = [cases.plain(framework, np.zeros(one), case.dtype) for one in shapes]
    membound.qk_norm_rope(*given, out=outs[0], k_out=outs[1], **options)
    return outs


def _cached(case: Case, framework: Framework, heads: list[Heads], options: Any) -> list[Any]:
    """Call with a cache; return k read back from it, or NaN if v was not copied to its cache."""
    (q, k), head_dim = heads, case.part[0]
    nothing = np.zeros((2, 2, 1, head_dim))
    keys, values = (cases.plain(framework, nothing, case.dtype) for _ in range(2))
    out = membound.qk_norm_rope(
        q.array, k.array, q.weight, k.weight, v=k.array, key_cache=keys, value_cache=values,
        slot_mapping=cases.plain(framework, [SLOTS], "int32"), **options,
    )  # fmt: skip
    found, copied = (
        cases.held(framework, cache).reshape(4, head_dim)[list(SLOTS)].reshape(k.formula.x.shape)
        for cache in (keys, values)
    )
    rows = found if np.array_equal(copied, k.formula.x) else np.full_like(found, np.nan)
    return [out, cases.plain(framework, rows, case.dtype)]


def run_backward(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps beyond the slack for sums, and the limit."""
    rng = cases.generator(case)
    freqs, numbers = rope.frequency_array(framework, case.part[1], case.dtype)
    heads, gradients = (
        [Heads.drawn(case, framework, rng, count, numbers) for count in HEADS] for _ in range(2)
    )
    options = options_of(case, freqs)
    given: tuple[Any, ...] = tuple(one.array for one in heads)
    weights = tuple(one.weight for one in heads)
    if case.form == "rstd given":
        *_, q_rstd, k_rstd = membound.qk_norm_rope(*given, *weights, return_rstd=True, **options)
        options |= {"q_rstd": q_rstd, "k_rstd": k_rstd}
    dq, dk, dq_weight, dk_weight = membound.qk_norm_rope_backward(
        *(one.array for one in gradients), *given, *weights, **options
    )
    pairs = []
    for one, dy, dx, dweight in zip(
        heads, gradients, (dq, dk), (dq_weight, dk_weight), strict=True
    ):
        right, of_weight = one.formula.gradients(dy.formula.x, case.dtype)
        if not case.of_each_head:
            of_weight.values, of_weight.terms = of_weight.values.sum(0), of_weight.terms.sum(0)
        pairs += [(dx, right), (dweight, of_weight)]
    return cases.compare(framework, case.dtype, pairs)
