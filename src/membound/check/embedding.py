# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""embedding and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import membound
from membound._frameworks import Framework
from membound.check import cases
from membound.oracle import Expected, np, of_sum, round_to, statistics_dtype, wide
from membound.oracle import embedding as oracle

VOCAB, POSITIONS, TOKENS = 37, 5, (3, 4)
IDS, STARTS = ("int32", "int64"), (0, 1000)


@dataclass(frozen=True)
class Case:
    dtype: str
    dim: int
    kind: str
    ids: str
    start: int
    transposed: bool
    form: str

    def __str__(self) -> str:
        return (
            f"{self.kind}, {VOCAB} x {self.dim} {self.dtype}"
            + (" transposed" if self.transposed else "")
            + f", {self.ids} from {self.start}, {self.form}"
        )


def axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    dims = (1, 7, 64, 96, 1000)  # multiples of a GPU's vector width, and not
    kinds = ("copy", "scale", "positions", "both")
    forms = cases.available_forms(framework, ("returned", "out"))
    return dims, kinds, IDS, STARTS, cases.transposed_or_not(framework), forms


def run(case: Case, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps, and the limit."""
    rng, kind = cases.generator(case), statistics_dtype(case.dtype)
    weight, held = _table(case, framework, rng, VOCAB)
    ids = case.start + rng.integers(0, VOCAB, TOKENS)
    ids.flat[1], ids.flat[5] = case.start + VOCAB, -1
    options: dict[str, Any] = {"vocab_start": case.start}
    scale = 1.75 if case.kind in ("scale", "both") else 1.0
    added = None
    if scale != 1.0:
        options["scale"] = scale
    if case.kind in ("positions", "both"):
        options["position_weight"], added = _table(case, framework, rng, POSITIONS)
    if case.form == "out":
        options["out"] = cases.plain(framework, np.zeros((*TOKENS, case.dim)), case.dtype)
    found = membound.embedding(cases.plain(framework, ids, case.ids), weight, **options)
    right = oracle.embedding(ids, held.astype(kind), scale, case.start, added)
    wanted = Expected([wide(right, case.dtype)], case.dtype)
    return cases.compare(framework, case.dtype, [(found, wanted)])


def _table(
    case: Case, framework: Framework, rng: np.random.Generator, rows: int
) -> tuple[Any, np.ndarray]:
    """A table, and its values."""
    values = round_to(rng.standard_normal((rows, case.dim)), case.dtype)
    return cases.matrix(framework, values, case.dtype, case.transposed), values


BACKWARD_TOKENS = ((3, 4), (70, 2))  # one segment of tokens per row, and several
PADDING, SCALE = 3, 1.75


@dataclass(frozen=True)
class BackwardCase:
    dtype: str
    dim: int
    tokens: tuple[int, int]
    ids: str
    start: int
    frequency: bool
    transposed: bool
    form: str

    def __str__(self) -> str:
        return (
            f"{self.tokens[0]} x {self.tokens[1]} tokens of {VOCAB} x {self.dim} {self.dtype}"
            + (" transposed" if self.transposed else "")
            + (" by frequency" if self.frequency else "")
            + f", {self.ids} from {self.start}, {self.form}"
        )


def backward_axes(framework: Framework, _: bool) -> Sequence[Sequence[Any]]:
    dims = (1, 7, 64, 96, 264)  # multiples of a GPU's vector width, and not
    layouts = cases.transposed_or_not(framework)
    forms = cases.available_forms(framework, ("returned", "out", "accumulated"))
    return dims, BACKWARD_TOKENS, IDS, STARTS, (False, True), layouts, forms


def run_backward(case: BackwardCase, framework: Framework) -> tuple[float, float]:
    """Return the worst error in ulps, and the limit."""
    rng, kind = cases.generator(case), statistics_dtype(case.dtype)
    ids = case.start + rng.integers(0, VOCAB, case.tokens)
    ids = np.where(rng.random(case.tokens) < 0.5, case.start + 5, ids)
    ids.flat[1], ids.flat[5] = case.start + VOCAB, -1
    dy = round_to(rng.standard_normal((*case.tokens, case.dim)), case.dtype)
    array, given = cases.plain(framework, dy, case.dtype), cases.plain(framework, ids, case.ids)
    if case.transposed:  # another order of the same tokens
        array, given = framework.transpose(array, (1, 0, 2)), framework.transpose(given, (1, 0))
        dy, ids = dy.transpose(1, 0, 2), ids.T
    options: dict[str, Any] = {
        "vocab_start": case.start,
        "padding_idx": case.start + PADDING,
        "scale": SCALE,
        "scale_grad_by_freq": case.frequency,
    }
    right = oracle.embedding_backward(
        dy.astype(kind), ids, VOCAB, SCALE, case.start, case.start + PADDING, case.frequency
    )
    terms = np.abs(right)
    if case.form != "returned":
        before = np.zeros(right.shape)
        if case.form == "accumulated":
            before = round_to(rng.standard_normal(right.shape), case.dtype)
        options["out"] = cases.plain(framework, before, case.dtype)
        options["accumulate"] = case.form == "accumulated"
        right, terms = right + before.astype(kind), terms + np.abs(before)
    found = membound.embedding_backward(array, given, VOCAB, **options)
    wanted = of_sum(wide(right, case.dtype), terms, case.dtype, case.dtype)
    return cases.compare(framework, case.dtype, [(found, wanted)])
